"""What an operator wants delivered again to one subscriber, beside its queue.

Invariant: they are taken in the order in which they came; bounded in number and bytes, within the
gateway's budget; a sender that finds no room tries again later. They are no positions, but each
knows which records of its partition came after it, and those have to wait for it; and by its `mark`
it is known whether it still waits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar


class Sized(Protocol):
    def __len__(self) -> int: ...


class Shared(Protocol):
    """What may wait for all subscribers together: decide.feed.queue.Budget."""

    taken_bytes: int

    @property
    def share_bytes(self) -> int: ...

    def share_beside(self, size_bytes: int) -> int: ...


T = TypeVar("T", bound=Sized)


class Redelivery(NamedTuple, Generic[T]):
    """A record that may have been delivered before."""

    partition: int
    seq: int
    value: T
    mark: Hashable = None


class Redeliveries(Generic[T]):
    def __init__(self, *, capacity: int, capacity_bytes: int, budget: Shared) -> None:
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._budget = budget
        self._queue: deque[Redelivery[T]] = deque()
        self._queued_bytes = 0
        self._positions: dict[int, deque[int]] = {}
        """Per partition, of each that waits: how far the subscriber's records were when it came."""
        self._marks: Counter[Hashable] = Counter()

    @property
    def has_room(self) -> bool:
        return self.has_room_beside(0)

    def has_room_beside(self, size_bytes: int) -> bool:
        """Will there be room once others have taken so much?"""
        # An empty queue takes one of any size, or a large document could never pass.
        if not self._queue:
            return True
        limit_bytes = min(self._capacity_bytes, self._budget.share_beside(size_bytes))
        return len(self._queue) < self._capacity and self._queued_bytes < limit_bytes

    @property
    def is_roomy(self) -> bool:
        """Is it half empty? To ask for more earlier would mean a record or two at a time."""
        limit_bytes = min(self._capacity_bytes, self._budget.share_bytes)
        half_empty = 2 * len(self._queue) <= self._capacity
        return self.has_room and half_empty and 2 * self._queued_bytes <= limit_bytes

    def add(self, item: Redelivery[T], *, position: int) -> None:
        """`position`: records of the partition up to there came before it."""
        partition, _, value, mark = item
        self._queue.append(item)
        self._marks[mark] += 1
        self._positions.setdefault(partition, deque()).append(position)
        self._queued_bytes += len(value)
        self._budget.taken_bytes += len(value)

    def go_before(self, partition: int, seq: int) -> bool:
        """Does one of that partition wait that came before the record with this seq?"""
        positions = self._positions.get(partition)
        # Positions only grow, so the first one that waits is the lowest.
        return positions is not None and positions[0] < seq

    def peek(self) -> Redelivery[T]:
        return self._queue[0]

    def take(self) -> Redelivery[T]:
        item = self._queue.popleft()
        self._marks[item.mark] -= 1
        if not self._marks[item.mark]:
            del self._marks[item.mark]
        positions = self._positions[item.partition]
        positions.popleft()
        if not positions:
            del self._positions[item.partition]
        self._queued_bytes -= len(item.value)
        self._budget.taken_bytes -= len(item.value)
        return item

    def clear(self) -> None:
        while self._queue:
            self.take()

    def __contains__(self, mark: Hashable) -> bool:
        """Does one with this mark wait?"""
        return mark in self._marks

    def __len__(self) -> int:
        return len(self._queue)
