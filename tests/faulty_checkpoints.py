"""Positions in memory, in a store that fails or takes its time when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.decide.lane.checkpoints import Checkpoint
from headgate.errors import NoPosition
from headgate.model.event import Fence, PartitionRef
from headgate.model.position import Position, Tally


class FaultyCheckpoints(MemoryCheckpointStore):
    """Every call takes `takes_s`, and raises `failing` while that is set; what is stored for those
    in `damaged` is no position."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: Exception | None = None
        self.damaged: set[PartitionRef] = set()
        self.takes_s = 0.0
        self.saves: list[tuple[float, PartitionRef, int]] = []
        """When, of which partition, and how far."""
        self.lists = 0
        self.closed = False

    def put(self, ref: PartitionRef, position: Position) -> None:
        """As if somebody had left it there, whom everybody overtakes."""
        self.stored[ref] = Checkpoint(
            epoch=0,
            window=0,
            attempt=0,
            settled=position.settled,
            tally=position.tally,
            redeliver_to=position.redeliver_to,
            skip_to=position.skip_to,
        )

    async def claim(
        self, ref: PartitionRef, fence: Fence, *, after: Collection[Fence] | None = None
    ) -> Position:
        await self._reached(ref)
        return await super().claim(ref, fence, after=after)

    async def save(self, ref: PartitionRef, fence: Fence, settled: int, tally: Tally) -> None:
        await self._reached(ref)
        await super().save(ref, fence, settled, tally)
        self.saves.append((asyncio.get_running_loop().time(), ref, settled))

    async def stop(self, ref: PartitionRef, fence: Fence, why: str) -> None:
        await self._reached(ref)
        await super().stop(ref, fence, why)

    async def reset(
        self, ref: PartitionRef, fence: Fence, settled: int, *, resync: bool = False
    ) -> None:
        await self._reached(ref)
        await super().reset(ref, fence, settled, resync=resync)

    async def list(self) -> dict[PartitionRef, Position]:
        self.lists += 1
        await self._reached()
        found = await super().list()
        return {
            ref: Position(unreadable=_is_none(ref)) if ref in self.damaged else position
            for ref, position in found.items()
        }

    async def close(self) -> None:
        await super().close()
        self.closed = True

    async def _reached(self, *refs: PartitionRef) -> None:
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        if self.failing is not None:
            raise self.failing
        for ref in self.damaged.intersection(refs):
            raise NoPosition(_is_none(ref))


def _is_none(ref: PartitionRef) -> str:
    return f"what is stored for {ref} is no position"
