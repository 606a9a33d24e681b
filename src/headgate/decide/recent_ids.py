"""Which events went by lately, by their id: the same event may be in the log twice, under different
positions, when a producer's retry met another partition.

Invariant: at most `capacity` ids are kept, none counts for longer than `ttl_s`, and an id keeps the
place where it was seen first. Time is an argument; it must never go backwards.
"""

from __future__ import annotations

from collections import deque

Place = tuple[int, int]
"""Partition and seq. Plain, because one is made for every delivery."""


class RecentIds:
    """`forget_old` is to be called now and then: what it would drop stays until then."""

    def __init__(self, *, capacity: int, ttl_s: float) -> None:
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._seen: dict[tuple[str, str], tuple[float, Place]] = {}
        self._order: deque[tuple[str, str]] = deque()
        """The ids as they came, the oldest first."""

    def see(self, topic: str, event_id: str, place: Place, now_s: float) -> Place | None:
        """Where the event was seen first; None if that is here and now, which is remembered."""
        known, entry = (topic, event_id), (now_s, place)
        found = self._seen.setdefault(known, entry)
        if found is not entry:
            if now_s - found[0] < self._ttl_s:
                return found[1]
            self._order.remove(known)
            self._seen[known] = entry
        self._order.append(known)
        return None

    def take_back(self) -> None:
        """What `see` remembered last didn't take place after all."""
        del self._seen[self._order.pop()]

    def has(self, topic: str, event_id: str, now_s: float) -> bool:
        found = self._seen.get((topic, event_id))
        return found is not None and now_s - found[0] < self._ttl_s

    def alike(self) -> RecentIds:
        """An empty one with the same bounds."""
        return RecentIds(capacity=self._capacity, ttl_s=self._ttl_s)

    def forget_old(self, now_s: float) -> None:
        """Drop what is too old or too much; in the order of their times, so the first that may stay
        ends it."""
        order, seen, ttl_s = self._order, self._seen, self._ttl_s
        for _ in range(len(order) - self._capacity):
            del seen[order.popleft()]
        while order and now_s - seen[order[0]][0] >= ttl_s:
            del seen[order.popleft()]

    def __len__(self) -> int:
        return len(self._seen)
