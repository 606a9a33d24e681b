"""How often the consumers of a group were handed something of a target in vain, and what that means
for the next time.

Invariants: only as many failures as the consumer's limit give something up, and the last of them is
a certain one. A consumer that is lost may have had many things in hand, all but one of them
innocent; that never counts as the last failure of any of them, and whatever has one delivery left
is to be handed out alone. Counts only grow, until the thing is forgotten. A limit of 0 means never.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from enum import Enum

from headgate.model.position import Tries

Place = tuple[int, int]
"""Partition and seq of a record; a redelivery is known by its mark instead."""
MOST_REMEMBERED = 10_000


class Chance(Enum):
    SOME = "some"
    LAST = "last"
    """One more failure gives it up."""
    NONE = "none"


class TriedInVain:
    """Counts of anything; beyond `capacity` the oldest are forgotten, and begin anew."""

    def __init__(self, capacity: int = MOST_REMEMBERED) -> None:
        self._counts: dict[Hashable, int] = {}
        self._capacity = capacity

    def count(self, thing: Hashable) -> int:
        return self._counts.get(thing, 0)

    def chance(self, thing: Hashable, limit: int) -> Chance:
        if not limit or (left := limit - self.count(thing)) > 1:
            return Chance.SOME
        return Chance.LAST if left == 1 else Chance.NONE

    def failed(self, thing: Hashable, times: int) -> None:
        """Its consumer said so: that was its delivery number `times`."""
        if times > self.count(thing):
            self._counts[thing] = times
        while len(self._counts) > self._capacity:
            del self._counts[next(iter(self._counts))]

    def lost(self, things: Iterable[Hashable], limit: int, *, certain: bool) -> None:
        """The consumer that had these is gone, or took too long; `certain`: it had one of them,
        and nothing else."""
        most = limit if certain else limit - 1
        for thing in things:
            self.failed(thing, min(self.count(thing) + 1, most))

    def forget(self, thing: Hashable) -> None:
        self._counts.pop(thing, None)


class RecordsTried(TriedInVain):
    """Those of the records of one target, which are kept with its positions: `saved`."""

    def __init__(self, saved: Mapping[int, Tries]) -> None:
        super().__init__()
        self._saved = {partition: tries for partition, tries in saved.items() if tries}
        for partition, tries in self._saved.items():
            for seq, count in tries:
                self.failed((partition, seq), count)

    def settled(self, positions: Mapping[int, int]) -> None:
        """Nothing up to `positions` comes again; the store forgets it with the position."""
        if self._counts:
            for place in self._places():
                if place[1] <= positions.get(place[0], 0):
                    self.forget(place)

    def unsaved(self) -> dict[int, Tries]:
        if not self._counts:
            return {}
        found: dict[int, list[tuple[int, int]]] = {}
        for partition, seq in self._places():
            found.setdefault(partition, []).append((seq, self.count((partition, seq))))
        tries = {partition: tuple(sorted(some)) for partition, some in found.items()}
        return {p: some for p, some in tries.items() if some != self._saved.get(p)}

    def saved(self, partition: int, tries: Tries) -> None:
        self._saved[partition] = tries

    def _places(self) -> list[Place]:
        return [thing for thing in self._counts if isinstance(thing, tuple)]
