"""A lane's grip on its partitions: the one place that changes which of them it holds.

The lane takes them and lets go of them (tenure.py). The code that delivers, saves or writes letters
finds out in the middle of its work that a newer lane has one: it says so here and goes on. The
lane acts upon it afterwards, on a task of its own, so nobody is called back.

Invariants: from the moment it is said the partition isn't held, so nothing of it is sent, saved or
written any more; each is said to the lane once, so what waits is bounded by what the lane held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from headgate.lane.holding import Around, Holding
from headgate.lane.positions.partition import SourcePartition
from headgate.lane.subscriptions.adopted import Adopted
from headgate.model.event import PartitionRef


class Overtaken(NamedTuple):
    ref: PartitionRef
    reason: str


class Grip:
    """`holding` is what all other code sees of it. `taken` hears of each partition that the lane
    takes, and `left` of each that it lets go of."""

    def __init__(
        self,
        adopted: Adopted,
        around: Around,
        *,
        taken: Callable[[SourcePartition], None] = lambda _: None,
        left: Callable[[SourcePartition], None] = lambda _: None,
    ) -> None:
        self._taken, self._left = taken, left
        self._partitions: dict[PartitionRef, SourcePartition] = {}
        self._gone: set[PartitionRef] = set()
        self.holding = Holding(adopted, around, self._partitions, self._gone)
        self._said: asyncio.Queue[Overtaken] = asyncio.Queue()

    # --- by the lane -----------------------------------------------------------------------------

    def take(self, claimed: Iterable[SourcePartition]) -> None:
        for one in claimed:
            self._partitions[one.ref] = one
            self._taken(one)

    def leave_to_others(self, refs: Iterable[PartitionRef]) -> None:
        """These partitions were planned for the lane, and other lanes have them."""
        self._gone.update(refs)

    def let_go(self, ref: PartitionRef) -> bool:
        """It is another lane's from now on; False where it was before."""
        partition = self._partitions.pop(ref, None)
        if partition is None:
            return False
        self._gone.add(ref)
        self._left(partition)
        return True

    def let_go_of_all(self) -> None:
        """Nobody is known to have them."""
        for partition in self._partitions.values():
            self._left(partition)
        self._partitions.clear()

    async def next(self) -> Overtaken:
        return await self._said.get()

    # --- by the code that finds out --------------------------------------------------------------

    def overtaken(self, ref: PartitionRef, reason: str) -> None:
        """A newer lane has `ref`; nothing happens where that is known."""
        if self.let_go(ref):
            self._said.put_nowait(Overtaken(ref, reason))
