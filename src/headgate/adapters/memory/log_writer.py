"""The writer of a log in memory.

A call takes effect when it is made, in the order of the calls, and is answered a turn of the event
loop later, so that nobody comes to rely on an answer at once. Nothing ever waits to be written, so
there is nothing to bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headgate.adapters.log.appending import AppendRequest, stopping
from headgate.adapters.log.retention import droppable_seq
from headgate.adapters.memory.log import MemoryLog, MemoryPartition
from headgate.model.event import Event, PartitionRef
from headgate.model.intake import IntakeMark
from headgate.ports.log import Appended, Extent, Retention, Taken


class MemoryLogWriter:
    """Implements ports.log.LogWriter."""

    def __init__(self, stored: MemoryLog | None = None) -> None:
        self.stored = MemoryLog() if stored is None else stored
        self._epochs: dict[PartitionRef, int] = {}
        self._closed = False

    async def open(
        self, ref: PartitionRef, *, epoch: int, version: int = 1, sealed: bool = False
    ) -> Extent:
        extent = self._partition(ref).open(epoch, version, sealed=sealed)
        self._epochs[ref] = epoch
        await asyncio.sleep(0)
        return extent

    async def append(
        self, ref: PartitionRef, events: Sequence[Event], *, version: int, now_ms: int
    ) -> list[Appended]:
        request = AppendRequest(events, version=version, now_ms=now_ms)
        appended = self._partition(ref).append(request, mine=self._epochs.get(ref))
        self.stored.grown(ref)
        await asyncio.sleep(0)
        return appended

    async def take_in(
        self,
        ref: PartitionRef,
        mark: IntakeMark,
        events: Sequence[Event],
        *,
        version: int,
        now_ms: int,
    ) -> Taken:
        request = AppendRequest(events, version=version, now_ms=now_ms)
        taken = self._partition(ref).take_in(mark, request, mine=self._epochs.get(ref))
        if taken.added:
            self.stored.grown(ref)
        await asyncio.sleep(0)
        return taken

    async def find(self, ref: PartitionRef, event_ids: Sequence[str]) -> dict[str, int]:
        found = self._partition(ref).find(event_ids)
        await asyncio.sleep(0)
        return found

    async def move_on(self, ref: PartitionRef, *, from_head: int, to_head: int) -> Extent:
        extent = self._partition(ref).move_on(from_head, to_head, mine=self._epochs.get(ref))
        await asyncio.sleep(0)
        return extent

    async def retain(
        self, ref: PartitionRef, retention: Retention, *, settled: int, ids_ms: int, now_ms: int
    ) -> Extent:
        partition, mine = self._partition(ref), self._epochs.get(ref)
        up_to_seq = droppable_seq(retention, settled=settled, head=partition.state.head)
        left = True
        while left:
            left = partition.drop_expired(
                retention, up_to_seq=up_to_seq, ids_ms=ids_ms, now_ms=now_ms, mine=mine
            )
            await asyncio.sleep(0)  # Each turn drops something; appends get theirs in between.
        return partition.extent

    async def drop_records(self, ref: PartitionRef, *, epoch: int) -> None:
        self._partition(ref).drop_records(epoch)
        self._epochs.pop(ref, None)
        await asyncio.sleep(0)

    async def close(self) -> None:
        self._closed = True

    def _partition(self, ref: PartitionRef) -> MemoryPartition:
        if self._closed:
            raise stopping()
        return self.stored.partition(ref)
