"""The partitions of a lane that somebody newer turned out to have, for the lane to act upon.

Whoever delivers, saves or writes letters finds out in the middle of something: it says so here and
goes on. The lane takes its word afterwards, on a task of its own, so nobody is called back.

Invariants: from the moment it is said the partition isn't held, so nothing of it is sent, saved or
written any more; each is said to the lane once, so what waits is bounded by what the lane held.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from headgate.lane.holding import Holding
from headgate.model.event import PartitionRef


class Overtaken(NamedTuple):
    ref: PartitionRef
    reason: str


class Overtakings:
    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._said: asyncio.Queue[Overtaken] = asyncio.Queue()

    def say(self, ref: PartitionRef, reason: str) -> None:
        """Somebody newer has `ref`; nothing where that is known."""
        if self._holding.let_go(ref):
            self._said.put_nowait(Overtaken(ref, reason))

    async def next(self) -> Overtaken:
        return await self._said.get()
