"""Where events may be that a producer might send again: remembered by id, for a time, up to a
bound.

A retry on an opportunistic topic could be placed anywhere; looking first where its events may be
already keeps them from being written twice. Forgetting the oldest costs that protection, no record.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class PlacingMemory:
    """`ttl_s` is how long the partitions themselves know the ids they hold."""

    def __init__(self, *, ttl_s: float, entries: int) -> None:
        self._ttl_s = ttl_s
        self._entries = entries
        self._places: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def remember(self, now_s: float, topic: str, ids: Iterable[str], partition: int) -> None:
        for one in ids:
            self._places[topic, one] = (partition, now_s + self._ttl_s)
            self._places.move_to_end((topic, one))
        while len(self._places) > self._entries or self._oldest_until_s() <= now_s:
            self._places.popitem(last=False)

    def _oldest_until_s(self) -> float:
        return next((until_s for _, until_s in self._places.values()), float("inf"))

    def partitions(self, now_s: float, topic: str, ids: Iterable[str]) -> frozenset[int]:
        """Where some of `ids` may be."""
        if not self._places:
            return frozenset()
        found = (self._places.get((topic, one)) for one in ids)
        return frozenset(place[0] for place in found if place is not None and now_s < place[1])

    def forget(self, topic: str, ids: Iterable[str], partition: int) -> None:
        """They aren't in `partition`, for sure."""
        for one in ids:
            place = self._places.get((topic, one))
            if place is not None and place[0] == partition:
                del self._places[topic, one]
