"""Positions in memory, by the same rule as every other store's (decide.lane.checkpoints).

A call takes effect at once and as a whole, and is answered a turn of the event loop later. Stores
that share `stored` share their positions, as processes share a database; nothing outlives them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from headgate.decide.lane.checkpoints import (
    Checkpoint,
    claimed,
    moved,
    noted,
    put,
    stopped,
    wanted_ahead,
    wanted_back,
)
from headgate.model.event import Fence, PartitionRef
from headgate.model.groups import is_target
from headgate.model.position import Position, Tally, Tries


class MemoryCheckpointStore:
    """Implements ports.checkpoints.CheckpointStore."""

    def __init__(self, stored: dict[PartitionRef, Checkpoint] | None = None) -> None:
        self.stored = {} if stored is None else stored

    async def claim(
        self, ref: PartitionRef, fence: Fence, *, after: Collection[Fence] | None = None
    ) -> Position:
        held = self.stored[ref] = claimed(self.stored.get(ref), ref, fence, after=after)
        await asyncio.sleep(0)
        return held.position

    async def save(self, ref: PartitionRef, fence: Fence, settled: int, tally: Tally) -> None:
        stored = self.stored.get(ref)
        self.stored[ref] = moved(stored, ref, fence, settled=settled, tally=tally)
        await asyncio.sleep(0)

    async def note_tries(self, ref: PartitionRef, fence: Fence, tried: Tries) -> None:
        self.stored[ref] = noted(self.stored.get(ref), ref, fence, tried=tried)
        await asyncio.sleep(0)

    async def stop(self, ref: PartitionRef, fence: Fence, why: str) -> None:
        self.stored[ref] = stopped(self.stored.get(ref), ref, fence, why)
        await asyncio.sleep(0)

    async def reset(
        self, ref: PartitionRef, fence: Fence, settled: int, *, resync: bool = False
    ) -> None:
        stored = self.stored.get(ref)
        self.stored[ref] = put(stored, ref, fence, settled=settled, resync=resync)
        await asyncio.sleep(0)

    async def put_back(
        self, ref: PartitionRef, settled: int, until: int, *, instead: bool = False
    ) -> None:
        self.stored[ref] = wanted_back(self.stored.get(ref), settled, until, instead=instead)
        await asyncio.sleep(0)

    async def put_ahead(self, ref: PartitionRef, settled: int) -> None:
        self.stored[ref] = wanted_ahead(self.stored.get(ref), settled)
        await asyncio.sleep(0)

    async def of_group(self, group_id: str) -> dict[PartitionRef, Position]:
        await asyncio.sleep(0)
        return {
            ref: one.position
            for ref, one in self.stored.items()
            if ref.topic.startswith(f"{group_id}/")
        }

    async def list(self) -> dict[PartitionRef, Position]:
        await asyncio.sleep(0)
        return {ref: one.position for ref, one in self.stored.items() if not is_target(ref)}

    async def close(self) -> None:
        return
