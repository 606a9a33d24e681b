"""What a consumer's user wants again later, and what stands behind it.

Invariant: while an item waits for its time, nothing of its key is handed out that came after it; it
comes back first, then the rest in its order. Items without a key hold nobody.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headgate.model.client_messages import Item, Resync

_Key = tuple[int, str, str]
"""Target, collection and key."""


@dataclass(frozen=True, slots=True)
class Again:
    """One that was in the user's hands already."""

    item: Item


class Later:
    def __init__(self) -> None:
        self._due: list[tuple[float, int, Item]] = []
        self._numbers = itertools.count()
        self._behind: dict[_Key, deque[Item]] = {}
        """Per key of which something waits for its time: what came after that."""
        self._free: list[Item] = []

    def put(self, item: Item, due_s: float) -> None:
        """Not before what waits of its key already."""
        if (key := _key(item)) is not None:
            self._behind.setdefault(key, deque())
            due_s = max([due_s, *(at_s for at_s, _, one in self._due if _key(one) == key)])
        heapq.heappush(self._due, (due_s, next(self._numbers), item))

    def holds(self, item: Item) -> bool:
        """Whether it has to wait, behind one of its key; then it does."""
        key = _key(item)
        if key is None or key not in self._behind:
            return False
        self._behind[key].append(item)
        return True

    def take_due(self, now_s: float) -> list[Again | Item]:
        """All whose time has come, each with what stood behind it and nothing else does."""
        found: list[Again | Item] = [*self.take_free()]
        while self._due and self._due[0][0] <= now_s:
            _, _, item = heapq.heappop(self._due)
            found.append(Again(item))
            key = _key(item)
            if key is not None and not any(_key(other) == key for _, _, other in self._due):
                found += self._behind.pop(key)
        return found

    def take_free(self) -> list[Item]:
        """What stood behind something that is gone."""
        free, self._free = self._free, []
        return free

    def next_s(self) -> float:
        """When something is due."""
        return self._due[0][0] if self._due else math.inf

    def count(self, target: int) -> int:
        """How many of a target wait for their time."""
        return sum(item.target == target for _, _, item in self._due)

    def __bool__(self) -> bool:
        return bool(self._due)

    def drop(self, is_gone: Callable[[Item], bool]) -> None:
        """Those that are gone come again to whoever owns them."""
        self._due = [one for one in self._due if not is_gone(one[2])]
        heapq.heapify(self._due)
        self._free = [item for item in self._free if not is_gone(item)]
        waiting = {_key(item) for _, _, item in self._due}
        for key in [key for key in self._behind if key not in waiting]:
            self._free += [item for item in self._behind.pop(key) if not is_gone(item)]


def _key(item: Item) -> _Key | None:
    if isinstance(item, Resync) or item.key is None:
        return None
    return item.target, item.collection, item.key
