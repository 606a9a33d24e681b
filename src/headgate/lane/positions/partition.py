"""One source partition as a lane holds it: where it reads, what is unsettled, what is saved."""

from __future__ import annotations

import asyncio
import contextlib
import math

import structlog

from headgate.decide.delivery import gaps
from headgate.decide.delivery import lost_logs as history
from headgate.decide.delivery.gaps import Gap
from headgate.decide.delivery.retrying import Backoff
from headgate.decide.delivery.settling import Outcome, SettleTracker
from headgate.decide.portions import Portion
from headgate.errors import HeadgateError, HistoryLost
from headgate.model.control.reports import PartitionReport, PartitionState
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, Record
from headgate.model.position import Position
from headgate.model.topology import Owner
from headgate.ports.checkpoints import CheckpointStore
from headgate.telemetry import LogLine

log = structlog.get_logger()

PAUSES = Backoff(1.0, 30.0)
"""Between two tries to read what can't be read."""
SURE_S = 2.0
"""For so long after a read the log is taken to be the one that was read. A lane that nothing holds
reads every partition at least every second (LogReader.follow), so it never has to look back."""


class SourcePartition:
    """`read_seq` is the last seq read; the tracker's position is what may be saved.

    `leaving` says that it is being handed off: nothing more is read. Records up to `redeliver_to`
    are delivered again because an operator wants it, which is his `wish`. What can't be read is
    tried again from `read_at_s` on, with fewer records at a time: `portion` has up to `read_limit`.
    """

    def __init__(self, owner: Owner, fence: Fence, position: Position, *, read_limit: int) -> None:
        self.owner = owner
        self.ref = owner.ref
        self.fence = fence
        self.read_seq = position.settled
        self.redeliver_to = position.redeliver_to
        self.wish = position.repeated
        self.tracker = SettleTracker(position.settled, position.tally)
        self.saved = position.settled
        self.save_error = ""
        """Why the position couldn't be saved the last time, if it couldn't."""
        self.leaving = False
        self.to_be_skipped = gaps.skipped(position)
        self.version = 0
        """The partitioning version up to which its records may be read: of what comes before them
        elsewhere, all is settled."""
        self.awaits = 0
        """The version of the record that comes next, where that has to wait."""
        self.read_ms = 0
        """Time of the last record that was read; 0 before the first one."""
        self.unread_ms = 0
        """Time of the oldest record that was not read, as far as anybody looked."""
        self.lost_history: HistoryLost | None = None
        """The log was found to end before what was read of it, and has not been moved on since."""
        self.look_at_s = 0.0
        """When to ask again whether the log ends where nothing more is found."""
        self._last: Record | None = None
        """The record at `read_seq`, where somebody has seen it."""
        self._sure_until_s = -math.inf
        self.read_at_s = 0.0
        self.portion = Portion(read_limit)
        self._failure, self._saved_failure = "", position.stopped
        self._unreadable = ""
        """Why the log couldn't be read the last time, if it couldn't."""
        self._failed_reads = 0
        self._gaps: dict[int, Gap] = {}
        """Those that somebody has yet to hear of, by their last seq."""
        self._settled = asyncio.Event()
        if position.stopped:
            self.stop(position.stopped)

    @property
    def is_still(self) -> bool:
        """Is nothing more to be read of it?"""
        return self.leaving or self.has_stopped

    @property
    def has_stopped(self) -> bool:
        """Is nothing more read until its position is reset? One that can't be read is tried
        again."""
        return bool(self._failure)

    def stop(self, reason: str) -> None:
        """Nothing more is read, for `reason`, until its position is reset; that is saved with it,
        because the lanes to come have nothing to tell it by."""
        if not self.has_stopped:
            log.error(LogLine.PARTITION_STOPPED, partition=str(self.ref), error=reason)
            self._failure = reason

    def read_failed(self, error: HeadgateError, *, now_s: float) -> None:
        """It can't be read, for now."""
        if not self._unreadable:
            log.error(LogLine.PARTITION_STOPPED, partition=str(self.ref), error=error.message)
        self._unreadable = error.message
        self._sure_until_s = -math.inf
        self.read_at_s = now_s + PAUSES.delay_s(self._failed_reads, jitter=1.0)
        self._failed_reads += 1

    def read_well(self) -> None:
        if self._unreadable and not self.has_stopped:
            log.info(LogLine.PARTITION_GOES_ON, partition=str(self.ref))
        self._unreadable, self._failed_reads = "", 0

    @property
    def state(self) -> PartitionState:
        """Stale while its history is lost, or not everybody knows of a gap that isn't small."""
        if self._failure or self._unreadable:
            return "failed"
        return "stale" if self.lost_history or self._untold_gap else "flowing"

    @property
    def reason(self) -> str:
        """Why it isn't flowing."""
        if self._failure or self._unreadable:
            return self._failure or self._unreadable
        if self.lost_history:
            return self.lost_history.message
        gap = self._untold_gap
        return f"{gap}, and not every gateway has told its subscribers yet" if gap else ""

    @property
    def _untold_gap(self) -> Gap | None:
        return next((gap for gap in self._gaps.values() if not gap.is_small), None)

    def settle(self, seq: int, outcome: Outcome) -> None:
        self.tracker.settle(seq, outcome)
        if self._gaps and seq in self._gaps and not self.tracker.awaits(seq):
            del self._gaps[seq]
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
        """Move the reading position to `record`, the next one."""
        self.read_seq, self.read_ms, self._last = record.seq, record.time_ms, record

    def is_sure(self, now_s: float) -> bool:
        """Is this the log that was read, because somebody looked just before? A log that is lost
        while nobody looks may have grown past `read_seq` since."""
        return now_s < self._sure_until_s

    def looked(self, now_s: float) -> None:
        """It was read, and is the log that it was."""
        self._sure_until_s = now_s + SURE_S

    @property
    def has_memory(self) -> bool:
        """Is there a record that can be compared with what the log has in its place?"""
        return self._last is not None

    def found_again(self, record: Record | None) -> HistoryLost | None:
        """The first record from `read_seq` on is this one, if there is any: what is wrong with
        that, if something is."""
        if self._last is None:
            is_there = record is not None and record.seq == self.read_seq
            self._last = record if is_there else None
            return None
        lost = history.another(self.ref, known=self._last, found=record)
        self._lost(lost)
        return lost

    def ends_at(self, head: int) -> None:
        """Nothing is behind what was read, and the log says that it ends at `head`."""
        self._lost(history.lost(self.ref, head=head, settled=self.read_seq))

    def _lost(self, lost: HistoryLost | None) -> None:
        if lost is not None and self.lost_history is None:
            log.error(LogLine.HISTORY_LOST, partition=str(self.ref), error=lost.message)
            self.lost_history = lost

    def begins_again(self, record: Record) -> bool:
        """Is `record` one of a log that lost its history and wasn't moved on? Then some before it
        are new and were never read."""
        return self.lost_history is not None and record.seq == self.read_seq + 1

    def gap_before(self, record: Record, max_gap_s: float) -> Gap | None:
        """What is missing between the last record that was read and this one."""
        return gaps.found(
            read_seq=self.read_seq,
            read_ms=gaps.UNKNOWN_MS if self.lost_history else self.read_ms,
            next_seq=record.seq,
            next_ms=record.time_ms,
            max_gap_ms=round(max_gap_s * 1_000),
        )

    def lose(self, gap: Gap, *, untold: int, now_ms: int) -> None:
        """Nothing of `gap` will be read; it counts as settled once all `untold` gateways know."""
        self.read_seq, self.lost_history, self._last = gap.last_seq, None, None
        if untold:
            self._gaps[gap.last_seq] = gap
            self.tracker.lose(gap.last_seq, gap.count, pending=untold, time_ms=now_ms)
        else:
            self.tracker.skip(gap.last_seq, gap.count)

    def notice(self, gap: Gap) -> Delivery:
        return gaps.notice(gap, self.ref, epoch=self.fence.epoch, time_ms=self.read_ms)

    async def save(self, store: CheckpointStore) -> bool:
        """Save the position if it has moved, and that nothing more is read; a failure is said and
        tried again later."""
        position, failure = self.tracker.position, self._failure
        if position == self.saved and failure == self._saved_failure:
            return True
        try:
            if failure != self._saved_failure:
                await store.stop(self.ref, self.fence, failure)
                self._saved_failure = failure
            if position != self.saved:
                await store.save(self.ref, self.fence, position, self.tracker.tally)
        except HeadgateError as error:
            log.warning(LogLine.CHECKPOINT_FAILED, partition=str(self.ref), error=error.message)
            if error.code == "fenced":
                raise
            self.save_error = error.message
            return False
        self.saved, self.save_error = position, ""
        return True

    def report(self, halt: str = "", *, parked: bool = False) -> PartitionReport:
        """`halt`: why it stands still for some gateway, if it does; `parked`: some of it is."""
        tracker = self.tracker
        return PartitionReport(
            self.ref,
            self.read_seq,
            tracker.position,
            tracker.oldest_unsettled_ms or self.unread_ms,
            tracker.tally,
            "failed" if halt else self.state,
            self.reason or halt,
            parked,
        )
