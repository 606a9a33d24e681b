"""One source partition as a lane holds it: where it reads, what is unsettled, what is saved."""

from __future__ import annotations

import structlog

from headgate.decide.settling import SettleTracker
from headgate.errors import HeadgateError
from headgate.model.control import PartitionReport
from headgate.model.event import Fence, PartitionRef, Record
from headgate.ports.checkpoints import CheckpointStore
from headgate.telemetry import LogEvent

log = structlog.get_logger()


class SourcePartition:
    """`read_seq` is the last seq read; the tracker's position is what may be saved."""

    def __init__(self, ref: PartitionRef, fence: Fence, position: int) -> None:
        self.ref = ref
        self.fence = fence
        self.read_seq = position
        self.tracker = SettleTracker(position)
        self.saved = position

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
