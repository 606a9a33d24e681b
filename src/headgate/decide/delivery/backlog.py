"""What waits in memory to be sent to one gateway, in the order in which it came.

Deliveries leave from the front, a batch at a time, and come back there where nothing came of it. A
partition of which the gateway wants something later waits by itself (held_partitions.py).
Invariant: per partition everything here is in its order, the batch on its way before the rest.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

from headgate.decide.delivery.breaker import NEVER
from headgate.decide.delivery.held_partitions import Held, Waiting, documents_bytes
from headgate.decide.delivery.parts import ref_of
from headgate.decide.delivery.retrying import Backoff
from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef


class Backlog:
    def __init__(self, backoff: Backoff) -> None:
        self._waiting: deque[Waiting] = deque()
        self._held = Held(backoff)
        self._in_flight: list[Waiting] = []
        self.size_bytes = 0
        """Of all documents, on their way included."""
        self._waiting_of: Counter[PartitionRef] | None = None
        """How much waits of each partition, held or not; counted from the first question on, until
        nothing waits that isn't held."""

    def __len__(self) -> int:
        """All deliveries, those on their way included."""
        return len(self._waiting) + len(self._in_flight) + self._held.size

    @property
    def ready(self) -> int:
        """How much may be sent."""
        return len(self._waiting)

    @property
    def since_s(self) -> float:
        """Since when the first of that waits; never where nothing does."""
        return self._waiting[0][0] if self._waiting else NEVER

    @property
    def held_until_s(self) -> float:
        """When the first partition that waits by itself is to be tried again."""
        return self._held.due_s

    def counted(self) -> Counter[PartitionRef]:
        """How much waits of each partition, but for what is on its way."""
        if self._waiting_of is None:
            self._waiting_of = Counter([ref_of(delivery) for _, delivery in self._waiting])
            self._waiting_of.update(map(ref_of, self._held))
        return self._waiting_of

    def old(self, since_s: float) -> set[PartitionRef]:
        """The partitions of which something waits since then, or longer."""
        return {ref_of(delivery) for at_s, delivery in self._waiting if at_s <= since_s}

    # --- in --------------------------------------------------------------------------------------

    def add(self, now_s: float, delivery: Delivery) -> None:
        self.size_bytes += len(delivery.document)
        if self._held.size and (ref := ref_of(delivery)) in self._held:
            self._held.add(ref, (now_s, delivery))
        else:
            self._waiting.append((now_s, delivery))
        if self._waiting_of is not None:
            self._waiting_of[ref_of(delivery)] += 1

    def put_back(self, batch: Sequence[Waiting]) -> None:
        """Before everything else."""
        self.size_bytes += documents_bytes(batch)
        self._waiting.extendleft(reversed(batch))
        if self._waiting_of is not None:
            self._waiting_of.update([ref_of(delivery) for _, delivery in batch])

    # --- out -------------------------------------------------------------------------------------

    def upcoming(self, most: int, most_bytes: int) -> list[Delivery]:
        """The deliveries that are sent next, behind those on their way, if all goes well."""
        count = self._fitting(most, most_bytes)
        return [delivery for _, delivery in islice(self._waiting, count)]

    def _fitting(self, most: int, most_bytes: int) -> int:
        """How many of the first make a batch: one at least, whatever its size."""
        most = min(len(self._waiting), most)
        if self.size_bytes <= most_bytes:
            return most
        size_bytes = 0
        for count, (_, delivery) in enumerate(islice(self._waiting, most)):
            size_bytes += len(delivery.document)
            if count and size_bytes > most_bytes:
                return count
        return most

    def send(self, most: int, most_bytes: int) -> list[Delivery]:
        """The first ones are on their way."""
        size = self._fitting(most, most_bytes)
        self._in_flight = [self._waiting.popleft() for _ in range(size)]
        if not self._waiting:
            self._waiting_of = None
        elif self._waiting_of is not None:
            self._waiting_of.subtract([ref_of(delivery) for _, delivery in self._in_flight])
        return [delivery for _, delivery in self._in_flight]

    def arrived(self) -> list[Waiting]:
        """What was on its way isn't any more."""
        batch, self._in_flight = self._in_flight, []
        self.size_bytes -= documents_bytes(batch)
        return batch

    def take(self, refs: AbstractSet[PartitionRef]) -> list[Delivery]:
        """All that waits of these partitions."""
        waiting, self._waiting, self._waiting_of = self._waiting, deque(), None
        leaving = [delivery for ref in refs for _, delivery in self._held.take(ref)]
        for one in waiting:
            if ref_of(one[1]) in refs:
                leaving.append(one[1])
            else:
                self._waiting.append(one)
        self.size_bytes -= sum(len(delivery.document) for delivery in leaving)
        return leaving

    def take_all(self) -> list[Delivery]:
        waiting = [*self._held.take_all(), *self._waiting]
        self._waiting, self._waiting_of = deque(), None
        self.size_bytes -= documents_bytes(waiting)
        return [delivery for _, delivery in waiting]

    def drop(self, ref: PartitionRef) -> None:
        """Nothing of it waits any more; what is on its way arrives, or comes back."""
        waiting_of = self.counted()
        self.size_bytes -= documents_bytes(self._held.take(ref))
        if waiting_of[ref]:
            dropped = [one for one in self._waiting if ref_of(one[1]) == ref]
            self.size_bytes -= documents_bytes(dropped)
            self._waiting = deque(one for one in self._waiting if ref_of(one[1]) != ref)
            del waiting_of[ref]

    # --- partitions that wait by themselves ------------------------------------------------------

    def hold(self, ref: PartitionRef, *, now_s: float, jitter: float) -> None:
        """It waits by itself, for longer each time that nothing of it went forward."""
        items = [one for one in self._waiting if ref_of(one[1]) == ref]
        self._waiting = deque(one for one in self._waiting if ref_of(one[1]) != ref)
        self._held.hold(ref, items, now_s=now_s, jitter=jitter)

    def held_so_often(self, ref: PartitionRef) -> int:
        """Since something of it went forward."""
        return self._held.attempts(ref)

    def went_forward(self, refs: Iterable[PartitionRef]) -> None:
        if self._held.counts:
            for ref in refs:
                self._held.went_forward(ref)

    def look(self, now_s: float) -> None:
        """Partitions whose pause is over wait like the others."""
        if self._held.size:
            self._waiting.extendleft(reversed(self._held.take_due(now_s)))

    def hold_none(self) -> None:
        self._waiting.extendleft(reversed(self._held.take_all()))
