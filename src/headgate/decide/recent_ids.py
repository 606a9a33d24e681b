"""Which events went by lately, by their id: the same event may be in the log twice, under different
positions, when a producer's retry met another partition.

Invariant: at most `capacity` ids are remembered, none for longer than `ttl_s`, and an id keeps the
place where it was seen first. Time is an argument; it must never go backwards.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    partition: int
    seq: int


class RecentIds:
    def __init__(self, *, capacity: int, ttl_s: float) -> None:
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._seen: OrderedDict[tuple[str, str], tuple[float, Place]] = OrderedDict()

    def elsewhere(self, topic: str, event_id: str, place: Place, now_s: float) -> Place | None:
        """Where the event was seen first, if that is another place than `place`."""
        found = self._seen.get((topic, event_id))
        if found is None or now_s - found[0] >= self._ttl_s or found[1] == place:
            return None
        return found[1]

    def remember(self, topic: str, event_id: str, place: Place, now_s: float) -> None:
        """The event was delivered from `place`; an earlier place that still counts stays."""
        self._forget_old(now_s)
        known = (topic, event_id)
        if known in self._seen:
            return
        self._seen[known] = (now_s, place)
        if len(self._seen) > self._capacity:
            self._seen.popitem(last=False)

    def __len__(self) -> int:
        return len(self._seen)

    def _forget_old(self, now_s: float) -> None:
        """In the order of their times, so the first that is young enough ends it."""
        while self._seen:
            oldest = next(iter(self._seen))
            if now_s - self._seen[oldest][0] < self._ttl_s:
                return
            del self._seen[oldest]
