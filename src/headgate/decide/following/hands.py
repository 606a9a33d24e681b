"""What a consumer itself has been handed and has processed, whatever became of its connections.

A gateway gives what it hasn't heard to be processed again, after every new connection. Invariants:
what was processed here, before or after the connection was lost, isn't handed out here again; what
is remembered is bounded: what is forgotten comes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MOST_REMEMBERED = 10_000
"""Items from earlier connections that may still be acknowledged."""

Place = tuple[int, int, int]
"""Target, partition and seq."""


class Hands:
    def __init__(self) -> None:
        self._done: dict[tuple[int, int], int] = {}
        """Per target and partition the seq up to which all is processed."""
        self._held: set[Place] = set()
        """Handed out on an earlier connection, not acknowledged."""
        self._processed: set[Place] = set()
        """Acknowledged after their connection was lost; they come again."""

    def reached(self, target: int, partition: int, seq: int) -> None:
        """All up to there is processed."""
        where = target, partition
        self._done[where] = max(seq, self._done.get(where, 0))

    def disconnected(self, held: Iterable[Place]) -> None:
        """These are in the user's hands, and come again unless they are acknowledged."""
        self._held.update(held)
        if len(self._held) + len(self._processed) > MOST_REMEMBERED:
            self._held.clear()
            self._processed.clear()

    def acknowledge(self, place: Place) -> bool:
        """Whether it is one of an earlier connection."""
        if place in self._held:
            self._held.discard(place)
            self._processed.add(place)
            return True
        target, partition, seq = place
        return place in self._processed or seq <= self._done.get((target, partition), 0)

    def is_new(self, place: Place) -> bool:
        """Whether it is to be handed out; False: it is processed already."""
        target, partition, seq = place
        self._held.discard(place)
        if place in self._processed:
            self._processed.discard(place)
            return False
        return seq > self._done.get((target, partition), 0)

    def assigned(self, target: int, positions: Mapping[int, int]) -> None:
        """What stands up to `positions` doesn't come again."""
        for places in (self._held, self._processed):
            stale = [
                place
                for place in places
                if place[0] == target and place[2] <= positions.get(place[1], 0)
            ]
            places.difference_update(stale)
