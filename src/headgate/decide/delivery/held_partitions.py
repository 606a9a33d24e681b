"""Partitions of which a gateway wants something later, and that wait by themselves until then.

The gateway has no room for what one of its subscribers is to get again, and takes everything else:
so no other partition has to wait. Each try after which the partition hasn't moved at all counts,
and the pause grows; after too many tries what waits is parked. Invariant: of a held partition all
that waits is here, in its order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from headgate.decide.delivery.breaker import NEVER
from headgate.decide.delivery.retrying import Backoff
from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef

Waiting = tuple[float, Delivery]
"""A delivery, and since when it waits."""


def documents_bytes(items: Iterable[Waiting]) -> int:
    return sum(len(delivery.document) for _, delivery in items)


class Held:
    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._items: dict[PartitionRef, deque[Waiting]] = {}
        self._until_s: dict[PartitionRef, float] = {}
        self._attempts: Counter[PartitionRef] = Counter()
        self.size = 0
        """How much is held."""

    def __contains__(self, ref: PartitionRef) -> bool:
        return ref in self._items

    def __iter__(self) -> Iterator[Delivery]:
        for items in self._items.values():
            for _, delivery in items:
                yield delivery

    @property
    def due_s(self) -> float:
        """When the first of them is to be tried again."""
        return min(self._until_s.values(), default=NEVER)

    @property
    def counts(self) -> bool:
        """Is there a partition that didn't go forward the last time?"""
        return bool(self._attempts)

    def attempts(self, ref: PartitionRef) -> int:
        """How often the partition was tried since something of it was taken."""
        return self._attempts[ref]

    def went_forward(self, ref: PartitionRef) -> None:
        del self._attempts[ref]

    def hold(
        self, ref: PartitionRef, items: Iterable[Waiting], *, now_s: float, jitter: float
    ) -> None:
        """Hold all waiting deliveries of `ref`."""
        delay_s = self._backoff.delay_s(self._attempts[ref], jitter=jitter)
        self._attempts[ref] += 1
        held = self._items[ref] = deque(items)
        self.size += len(held)
        self._until_s[ref] = now_s + delay_s

    def add(self, ref: PartitionRef, one: Waiting) -> None:
        self._items[ref].append(one)
        self.size += 1

    def take_due(self, now_s: float) -> list[Waiting]:
        """Those whose pause is over; what was tried is remembered."""
        due = [ref for ref, until_s in self._until_s.items() if until_s <= now_s]
        return [one for ref in due for one in self._take(ref)]

    def take_all(self) -> list[Waiting]:
        return [one for ref in list(self._items) for one in self.take(ref)]

    def take(self, ref: PartitionRef) -> list[Waiting]:
        """The deliveries of `ref` that wait; its attempts are counted anew."""
        del self._attempts[ref]
        return self._take(ref)

    def _take(self, ref: PartitionRef) -> list[Waiting]:
        self._until_s.pop(ref, None)
        items = list(self._items.pop(ref, ()))
        self.size -= len(items)
        return items
