"""Partitions whose last parked letters are on their way: new deliveries of such a partition wait
here until the letters are through, and are sent right behind them.

Parked behind them it would take as long again, and by then there is more: of a partition of which
something comes all the time, however little, everything would go through the store for ever.
Invariant: all that waits of a partition here is newer than its letters, in its order, and for no
longer than `JOINS_WITHIN_S`; then it is parked after all. Time is an argument.
"""

from __future__ import annotations

from collections import deque

from headgate.decide.delivery.breaker import NEVER
from headgate.decide.delivery.held_partitions import Waiting, documents_bytes
from headgate.model.event import PartitionRef

JOINS_WITHIN_S = 5.0


class Joining:
    def __init__(self) -> None:
        self._items: dict[PartitionRef, deque[Waiting]] = {}
        self._until_s: dict[PartitionRef, float] = {}
        self.size = 0
        """How much waits."""
        self.size_bytes = 0

    def __contains__(self, ref: PartitionRef) -> bool:
        return ref in self._items

    @property
    def due_s(self) -> float:
        """When the first of them has waited for too long."""
        return min(self._until_s.values(), default=NEVER)

    def begin(self, ref: PartitionRef, now_s: float) -> None:
        """New deliveries of `ref` wait from now on; where they wait already, nothing changes."""
        if ref not in self._items:
            self._items[ref] = deque()
            self._until_s[ref] = now_s + JOINS_WITHIN_S

    def add(self, ref: PartitionRef, one: Waiting) -> None:
        self._items[ref].append(one)
        self.size += 1
        self.size_bytes += len(one[1].document)

    def overdue(self, now_s: float) -> list[PartitionRef]:
        return [ref for ref, until_s in self._until_s.items() if until_s <= now_s]

    def refs(self) -> list[PartitionRef]:
        return list(self._items)

    def take(self, ref: PartitionRef) -> list[Waiting]:
        """All that waits of it, if anything does; it doesn't join any more."""
        self._until_s.pop(ref, None)
        items = list(self._items.pop(ref, ()))
        self.size -= len(items)
        self.size_bytes -= documents_bytes(items)
        return items
