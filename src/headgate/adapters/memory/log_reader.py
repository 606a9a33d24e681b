"""The reader of a log in memory: sees what is stored, and is rung by the writer.

Like every call that leaves the process, each one gives the event loop a turn. Never writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import astuple

from headgate.adapters.log.wake_ups import WakeUps
from headgate.adapters.memory.log import PLACE_COLUMNS, MemoryLog
from headgate.model.event import FIRST_SEQ, PartitionRef, Record
from headgate.model.intake import IntakePosition
from headgate.ports.log import READ_BYTES, Extent, Verified, size_bytes

if TYPE_CHECKING:
    import pyarrow as pa

NOTHING_YET = Extent(FIRST_SEQ, 0)
MAX_SEQ = 2**63 - 1
SAFETY_S = 1.0


class MemoryLogReader:
    """Implements ports.log.LogReader."""

    def __init__(self, stored: MemoryLog | None = None, *, safety_s: float = SAFETY_S) -> None:
        self.stored = MemoryLog() if stored is None else stored
        self._safety_s = safety_s

    async def extent(self, ref: PartitionRef) -> Extent:
        await asyncio.sleep(0)
        partition = self.stored.partitions.get(ref)
        return NOTHING_YET if partition is None else partition.extent

    async def read(self, ref: PartitionRef, *, after_seq: int, limit: int) -> list[Record]:
        await asyncio.sleep(0)
        return self._records(ref, after_seq=after_seq, up_to_seq=MAX_SEQ, limit=limit)

    async def verify(self, ref: PartitionRef, *, after_seq: int, limit: int) -> Verified | None:
        await asyncio.sleep(0)
        partition = self.stored.partitions.get(ref)
        return None if partition is None else partition.verify(after_seq=after_seq, limit=limit)

    async def first_since(self, ref: PartitionRef, time_ms: int) -> int:
        await asyncio.sleep(0)
        partition = self.stored.partitions.get(ref)
        return FIRST_SEQ if partition is None else partition.first_since(time_ms)

    async def find(self, ref: PartitionRef, event_ids: Sequence[str]) -> dict[str, int]:
        await asyncio.sleep(0)
        partition = self.stored.partitions.get(ref)
        return {} if partition is None else partition.find(event_ids)

    async def taken_in(self, ref: PartitionRef, connector: str) -> list[IntakePosition]:
        await asyncio.sleep(0)
        partition = self.stored.partitions.get(ref)
        return [] if partition is None else partition.taken_in(connector)

    def read_arrow(
        self, ref: PartitionRef, *, after_seq: int, up_to_seq: int
    ) -> pa.RecordBatchReader:
        from headgate.adapters.log.arrow import ARROW_BATCH_ROWS, batches_of

        bounds = {"after_seq": after_seq, "up_to_seq": up_to_seq}
        return batches_of(ref, self._pages(ref, **bounds, rows=ARROW_BATCH_ROWS))

    def follow(
        self, refs: Sequence[PartitionRef]
    ) -> AbstractAsyncContextManager[AsyncIterator[frozenset[PartitionRef]]]:
        return self._follow(refs)

    async def close(self) -> None:
        return

    @asynccontextmanager
    async def _follow(self, refs: Sequence[PartitionRef]) -> AsyncIterator[WakeUps]:
        wake_ups = WakeUps(refs, safety_s=self._safety_s)
        wake_ups.start()
        followers = [self.stored.followers.setdefault(ref, {}) for ref in set(refs)]
        for followed in followers:
            followed[wake_ups] = None
        try:
            yield wake_ups
        finally:
            for followed in followers:
                followed.pop(wake_ups, None)
            wake_ups.stop()

    def _pages(
        self, ref: PartitionRef, *, after_seq: int, up_to_seq: int, rows: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        while records := self._records(ref, after_seq=after_seq, up_to_seq=up_to_seq, limit=rows):
            yield [astuple(record)[PLACE_COLUMNS:] for record in records]
            after_seq = records[-1].seq

    def _records(
        self, ref: PartitionRef, *, after_seq: int, up_to_seq: int, limit: int
    ) -> list[Record]:
        partition = self.stored.partitions.get(ref)
        if partition is None:
            return []
        found = partition.read(after_seq=after_seq, up_to_seq=up_to_seq, limit=limit)
        size = 0
        for number, record in enumerate(found, 1):
            size += size_bytes(record)
            if size >= READ_BYTES:
                return found[:number]
        return found
