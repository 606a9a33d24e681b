"""Which events went by lately, by their identities (model/delivery.py): the same event may be in
the log twice, under different positions, when a producer's retry met another partition.

Invariant: `forget_old` leaves at most `capacity` of them, and none that is older than `ttl_s`; an
event keeps the place where it was seen first. Two events that share an id and not the key have
nothing to do with each other. Time is an argument; it must never go backwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Place = tuple[int, int]
"""Partition and seq. Plain, because one is made for every delivery."""
Places = Sequence[tuple[int, Sequence[int]]]
"""Many of them: partitions, each with the seqs that follow each other there."""


class _Sighting:
    """Ids of a topic that were seen at the same time, the first of them first: a batch of them is
    one thing to keep and to let go."""

    __slots__ = ("_at", "_places", "ids", "now_s", "topic")

    def __init__(self, topic: str, now_s: float, ids: Sequence[str], places: Places) -> None:
        self.topic = topic
        self.now_s = now_s
        self.ids = deque(ids)
        self._places = places
        self._at: dict[str, int] = {}
        """Of each id its number, once it was asked for: that is rare, and then for many."""

    def place_of(self, identity: str) -> Place:
        if not self._at:
            count = sum(len(seqs) for _, seqs in self._places)
            self._at = dict(zip(self.ids, range(count - len(self.ids), count), strict=True))
        at = self._at[identity]
        for partition, seqs in self._places:
            if at < len(seqs):
                return partition, seqs[at]
            at -= len(seqs)
        raise LookupError(identity)


class RecentIds:
    """Call `forget_old` before anything is asked: what is too old counts until then."""

    def __init__(self, *, capacity: int, ttl_s: float) -> None:
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._seen: dict[str, dict[str, _Sighting]] = {}
        """Per topic the ids, each with when and where it was seen first."""
        self._sightings: deque[_Sighting] = deque()
        self._count = 0

    def see(self, topic: str, identity: str, place: Place, now_s: float) -> Place | None:
        """Where the event was seen first; None if that is here and now, which is remembered."""
        found = self._seen.get(topic, {}).get(identity)
        if found is not None:
            return found.place_of(identity)
        partition, seq = place
        self.remember(topic, (identity,), ((partition, (seq,)),), now_s)
        return None

    def remember(self, topic: str, identities: Sequence[str], places: Places, now_s: float) -> None:
        """These were seen, each for the first time: `knows_none_of` them."""
        if not identities:
            return
        sighting = _Sighting(topic, now_s, identities, places)
        self._seen.setdefault(topic, {}).update(dict.fromkeys(identities, sighting))
        self._sightings.append(sighting)
        self._count += len(identities)

    def take_back(self) -> None:
        """What `see` remembered last didn't take place after all."""
        self._drop(self._sightings.pop())

    def knows_none_of(self, topic: str, identities: Sequence[str]) -> bool:
        """Whether none of them is remembered, or among them twice."""
        known = self._seen.get(topic, {})
        return len(set(identities)) == len(identities) and known.keys().isdisjoint(identities)

    def forget_old(self, now_s: float) -> None:
        """Drop what is too old or too much; in the order of their times, so the first that may stay
        ends it."""
        sightings = self._sightings
        while sightings and now_s - sightings[0].now_s >= self._ttl_s:
            self._drop(sightings.popleft())
        while self._count > self._capacity:
            oldest = sightings[0]
            excess = self._count - self._capacity
            if excess < len(oldest.ids):
                known = self._seen[oldest.topic]
                for _ in range(excess):
                    del known[oldest.ids.popleft()]
                self._count -= excess
            else:
                self._drop(sightings.popleft())

    def _drop(self, sighting: _Sighting) -> None:
        known = self._seen[sighting.topic]
        for identity in sighting.ids:
            del known[identity]
        self._count -= len(sighting.ids)
        if not known:
            del self._seen[sighting.topic]

    def __len__(self) -> int:
        return self._count
