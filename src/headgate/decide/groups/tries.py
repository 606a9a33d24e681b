"""How often the consumers of a group were handed something of a target in vain, and what that means
for the next time.

Invariants: only as many failures as the consumer's limit give something up, and the last of them is
a certain one. A consumer that is lost may have had many things in hand, all but one of them
innocent; that never counts as the last failure of any of them, and whatever has one delivery left
is to be handed out alone. A limit of 0 means never.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from enum import Enum, IntEnum

from headgate.model.position import Tries

Place = tuple[int, int]
"""Partition and seq of a record; a redelivery is known by its mark instead."""
MOST_REMEMBERED = 10_000


class Chance(Enum):
    SOME = "some"
    LAST = "last"
    """One more certain failure gives the item up."""
    NONE = "none"


class Known(IntEnum):
    """How it is known that an item failed."""

    LOST = 0
    """Its consumer was lost, with that and others in hand."""
    LOST_ALONE = 1
    SAID = 2


CERTAIN = (Known.LOST_ALONE, Known.SAID)


class TriedInVain:
    """Counts of anything; beyond `capacity` the oldest are forgotten, and begin anew."""

    def __init__(self, capacity: int = MOST_REMEMBERED) -> None:
        self._counts: dict[Hashable, tuple[int, Known]] = {}
        self._capacity = capacity

    def count(self, thing: Hashable) -> int:
        return self._get(thing)[0]

    def _get(self, thing: Hashable) -> tuple[int, Known]:
        return self._counts.get(thing, (0, Known.LOST))

    def chance(self, thing: Hashable, limit: int) -> Chance:
        count, known = self._get(thing)
        if not limit or count + 1 < limit:
            return Chance.SOME
        return Chance.NONE if count >= limit and known in CERTAIN else Chance.LAST

    def failed(self, thing: Hashable, times: int, known: Known = Known.SAID) -> None:
        """That was its delivery number `times`."""
        self._counts[thing] = max(times, self.count(thing)), known
        while len(self._counts) > self._capacity:
            self.forget(next(iter(self._counts)))

    def lost(self, things: Iterable[Hashable], *, certain: bool) -> None:
        """The consumer that had these is gone, or took too long; `certain`: it had a single one,
        and nothing else."""
        for thing in things:
            self.failed(thing, self.count(thing) + 1, Known.LOST_ALONE if certain else Known.LOST)

    def spare(self, thing: Hashable, deliveries: int) -> None:
        """The consumer that was lost with it is back, and works on it: on its delivery number
        `deliveries`, which has not failed. What another consumer has said of it since then
        stays."""
        count, known = self._get(thing)
        if count >= deliveries and known is not Known.SAID:
            self._counts[thing] = deliveries - 1, Known.LOST

    def forget(self, thing: Hashable) -> None:
        self._counts.pop(thing, None)


class RecordsTried(TriedInVain):
    """The tries of one target's records, which are kept with its positions: `saved`."""

    def __init__(self, saved: Mapping[int, Tries]) -> None:
        super().__init__()
        self._saved = {partition: tries for partition, tries in saved.items() if tries}
        for partition, tries in self._saved.items():
            for seq, count, known in tries:
                self.failed((partition, seq), count, Known(known))

    def settled(self, positions: Mapping[int, int]) -> None:
        """Nothing up to `positions` comes again; the store forgets it with the position."""
        if self._counts:
            for place in self._places():
                if place[1] <= positions.get(place[0], 0):
                    self.forget(place)

    def unsaved(self) -> dict[int, Tries]:
        if not self._counts and not self._saved:
            return {}
        found: dict[int, list[tuple[int, int, int]]] = {}
        for place in self._places():
            count, known = self._get(place)
            found.setdefault(place[0], []).append((place[1], count, int(known)))
        tries = {partition: tuple(sorted(some)) for partition, some in found.items()}
        return {p: some for p, some in tries.items() if some != self._saved.get(p)}

    def saved(self, partition: int, tries: Tries) -> None:
        self._saved[partition] = tries

    def _places(self) -> list[Place]:
        return [thing for thing in self._counts if isinstance(thing, tuple)]
