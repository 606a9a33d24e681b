"""One source partition as a lane holds it: where it reads, what is unsettled, what is saved."""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from headgate.decide.settling import SettleTracker
from headgate.errors import HeadgateError
from headgate.model.control import PartitionReport
from headgate.model.event import Fence, Record
from headgate.model.topology import Owner
from headgate.ports.checkpoints import CheckpointStore
from headgate.telemetry import LogEvent

log = structlog.get_logger()


class SourcePartition:
    """`read_seq` is the last seq read; the tracker's position is what may be saved.

    `leaving` says that it is being handed off: nothing more is read.
    """

    def __init__(self, owner: Owner, fence: Fence, position: int) -> None:
        self.owner = owner
        self.ref = owner.ref
        self.fence = fence
        self.read_seq = position
        self.tracker = SettleTracker(position)
        self.saved = position
        self.leaving = False
        self._settled = asyncio.Event()

    def settle(self, seq: int) -> None:
        self.tracker.settle(seq)
        if self.tracker.unsettled == 0:
            self._settled.set()

    async def all_settled(self, timeout_s: float) -> None:
        """Wait until nothing is in flight, at most `timeout_s`; nothing may be read meanwhile."""
        if self.tracker.unsettled == 0:
            return
        self._settled.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()

    def accept(self, record: Record) -> None:
        """Move the reading position to `record`."""
        if record.seq != self.read_seq + 1:
            # The records in between were dropped with their topic: nobody can get them any more.
            log.warning(
                LogEvent.RECORDS_MISSING,
                partition=str(self.ref),
                from_seq=self.read_seq + 1,
                to_seq=record.seq - 1,
            )
        self.read_seq = record.seq

    async def save(self, store: CheckpointStore) -> bool:
        """Save the position if it has moved; a failure is said and tried again later."""
        position = self.tracker.position
        if position == self.saved:
            return True
        try:
            await store.save(self.ref, self.fence, position)
        except HeadgateError as error:
            log.warning(LogEvent.CHECKPOINT_FAILED, partition=str(self.ref), error=error.message)
            if error.code == "fenced":
                raise
            return False
        self.saved = position
        return True

    def report(self) -> PartitionReport:
        return PartitionReport(
            self.ref, self.read_seq, self.tracker.position, self.tracker.oldest_unsettled_ms
        )
