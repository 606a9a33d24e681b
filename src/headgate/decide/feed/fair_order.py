"""Whose turn it is, when several subscriptions share one connection.

Each subscription has a queue of its own. Where the first items of several stand at the same place
of the log, they go out together, as one message. The lowest place goes first, so that queues which
got the same records at different paces meet again.

Invariant: within a round every source has at most `quota` turns, so that none can starve another;
the order of each source's own items is never changed. It holds no more than the sources themselves.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)

Place = tuple[str, int, int]
"""Topic, partition and seq."""


class Turns(Generic[S]):
    """`place_of` tells where a source's first item stands; None when it has nothing."""

    def __init__(self, place_of: Callable[[S], Place | None], *, quota: int = 64) -> None:
        self._place_of = place_of
        self._quota = quota
        self._heap: list[tuple[Place, int, S]] = []
        self._spent: dict[S, int] = {}
        """Of every source that takes part: its turns in this round."""
        self._resting: list[S] = []
        self._entries = itertools.count()

    def add(self, source: S) -> None:
        """`source` may have something; adding it again is fine."""
        if source not in self._spent:
            self._spent[source] = 0
            self._enter(source)

    def next(self) -> list[S]:
        """The sources whose first items go out now, from one place; [] when there is nothing.

        Each must be taken from before the next call.
        """
        group: list[S] = []
        place: Place | None = None
        while self._heap or (not group and self._new_round()):
            known, _, source = self._heap[0]
            if place is not None and known != place:
                break
            heapq.heappop(self._heap)
            if self._place_of(source) != known:
                self._enter(source)  # its first item has changed since
                continue
            place = known
            group.append(source)
        return group

    def taken(self, source: S) -> None:
        """`source` had its turn."""
        if source not in self._spent:
            return
        self._spent[source] += 1
        if self._spent[source] >= self._quota:
            self._resting.append(source)
        else:
            self._enter(source)

    def _enter(self, source: S) -> None:
        place = self._place_of(source)
        if place is None:
            del self._spent[source]
        else:
            heapq.heappush(self._heap, (place, next(self._entries), source))

    def _new_round(self) -> bool:
        resting, self._resting = self._resting, []
        for source in self._spent:
            self._spent[source] = 0
        for source in resting:
            self._enter(source)
        return bool(self._heap)
