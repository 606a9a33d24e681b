"""What is remembered for a while: bounded in number and in age, and honest about where it begins.

One append per batch is all that delivering pays for it. Invariant: whatever was added since
`since_ms` is there, and what is older may be gone. Time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ring(Generic[T]):
    """Entries with a weight each, the newest `capacity` of them in all (0: nothing is kept), none
    older than `age_ms`. An entry that weighs more than all is kept until the next one comes."""

    __slots__ = ("_age_ms", "_began_ms", "_capacity", "_entries", "_weight")

    def __init__(self, *, capacity: int, age_ms: int, began_ms: int) -> None:
        self._capacity = capacity
        self._age_ms = age_ms
        self._began_ms = began_ms
        self._entries: deque[tuple[int, int, T]] = deque()
        self._weight = 0

    @property
    def keeps(self) -> bool:
        return self._capacity > 0

    def add(self, entry: T, weight: int, now_ms: int) -> None:
        entries = self._entries
        entries.append((now_ms, weight, entry))
        self._weight += weight
        while self._weight > self._capacity and len(entries) > 1:
            self._drop()
        if entries[0][0] < now_ms - self._age_ms:
            self.forget_old(now_ms)

    def forget_old(self, now_ms: int) -> None:
        while self._entries and self._entries[0][0] < now_ms - self._age_ms:
            self._drop()

    def _drop(self) -> None:
        at_ms, weight, _ = self._entries.popleft()
        self._weight -= weight
        self._began_ms = max(at_ms + 1, self._began_ms)

    def since_ms(self, now_ms: int) -> int:
        """From when on everything is there; `now_ms` where nothing is kept."""
        if not self.keeps:
            return now_ms
        self.forget_old(now_ms)
        return max(self._began_ms, now_ms - self._age_ms)

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """With their times, the oldest first."""
        return ((at_ms, entry) for at_ms, _, entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)
