"""One source partition as a lane holds it: how far it is read, settled and saved.

Other code looks at its state, and changes it by calls alone. Two parts of it are changed by one
owner each, `read` by Reading and `order` by Crossing.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

import structlog

from headgate.decide.delivery import gaps
from headgate.decide.delivery.gaps import Gap
from headgate.decide.delivery.settling import Outcome, SettleTracker
from headgate.errors import HeadgateError
from headgate.lane.positions.read_so_far import ReadSoFar
from headgate.model.control.reports import PartitionReport, PartitionState
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, Record
from headgate.model.position import Position
from headgate.model.topology import Owner
from headgate.ports.checkpoints import CheckpointStore
from headgate.telemetry import LogLine

log = structlog.get_logger()


@dataclass(slots=True)
class Order:
    """`version` is the partitioning version up to which records may be read: of what comes before
    them elsewhere, all is settled. `awaits` is that of the next record, where it had to wait."""

    version: int = 0
    awaits: int = 0


class SourcePartition:
    """Records up to `redeliver_to` are delivered again because an operator wants it, which is his
    `wish`."""

    def __init__(self, owner: Owner, fence: Fence, position: Position, *, read_limit: int) -> None:
        self.owner: Final = owner
        self.ref: Final = owner.ref
        self.fence: Final = fence
        self.redeliver_to: Final = position.redeliver_to
        self.wish: Final = position.repeated
        self.to_be_skipped: Final = gaps.skipped(position)
        self.read: Final = ReadSoFar(owner.ref, position.settled, limit=read_limit)
        self.order: Final = Order()
        self._tracker = SettleTracker(position.settled, position.tally)
        self._saved = position.settled
        self._save_error = ""
        self._leaving = False
        self._failure, self._saved_failure = "", position.stopped
        self._gaps: dict[int, Gap] = {}
        """Those that a gateway has yet to hear of, by their last seq."""
        self._settled = asyncio.Event()
        if position.stopped:
            self.stop(position.stopped)

    # --- whether it goes on ----------------------------------------------------------------------

    @property
    def is_still(self) -> bool:
        """Is nothing more to be read of it?"""
        return self._leaving or self.has_stopped

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

    def leave(self) -> None:
        """It is being handed off: nothing more is read."""
        self._leaving = True

    def stay(self) -> None:
        """It isn't, after all."""
        self._leaving = False

    @property
    def state(self) -> PartitionState:
        """Stale while its history is lost, or not everybody knows of a gap that isn't small."""
        if self._failure or self.read.unreadable:
            return "failed"
        return "stale" if self.read.lost_history or self._untold_gap else "flowing"

    @property
    def reason(self) -> str:
        """Why it isn't flowing."""
        if self._failure or self.read.unreadable:
            return self._failure or self.read.unreadable
        if self.read.lost_history:
            return self.read.lost_history.message
        gap = self._untold_gap
        return f"{gap}, and not every gateway has told its subscribers yet" if gap else ""

    @property
    def _untold_gap(self) -> Gap | None:
        return next((gap for gap in self._gaps.values() if not gap.is_small), None)

    # --- what is matched -------------------------------------------------------------------------

    def matched(self, record: Record, pending: int) -> None:
        """So many gateways must answer for `record`; the records between it and the last one that
        was matched concern none."""
        tracker, seq = self._tracker, record.seq
        tracker.pass_unmatched(seq - 1)
        tracker.take(seq, pending=pending, time_ms=record.time_ms)

    def split(self, seq: int, parts: int) -> None:
        """One of the gateways that must answer for `seq` does so in so many parts."""
        self._tracker.split(seq, parts)

    def matched_through(self, record: Record) -> None:
        """Everything up to `record` was read; records of it that weren't matched concern no
        gateway."""
        self._tracker.pass_unmatched(record.seq)
        self.read.accept(record)

    def lose(self, gap: Gap, *, untold: int, now_ms: int) -> None:
        """Nothing of `gap` will be read; it counts as settled once all `untold` gateways know."""
        self.read.pass_over(gap)
        if untold:
            self._gaps[gap.last_seq] = gap
            self._tracker.lose(gap.last_seq, gap.count, pending=untold, time_ms=now_ms)
        else:
            self._tracker.skip(gap.last_seq, gap.count)

    def notice(self, gap: Gap) -> Delivery:
        return gaps.notice(gap, self.ref, epoch=self.fence.epoch, time_ms=self.read.time_ms)

    # --- what is settled -------------------------------------------------------------------------

    @property
    def settled(self) -> int:
        """Up to where all is settled: what may be saved."""
        return self._tracker.position

    @property
    def unsettled(self) -> int:
        """How many records are remembered because a gateway must still answer for them."""
        return self._tracker.unsettled

    def is_awaited(self, seq: int) -> bool:
        """Must a gateway still answer for the record?"""
        return self._tracker.awaits(seq)

    def settle(self, seq: int, outcome: Outcome) -> int:
        """One of the gateways that must answer for `seq` has; returns by how much the position
        moves."""
        tracker = self._tracker
        before = tracker.position
        tracker.settle(seq, outcome)
        if self._gaps and seq in self._gaps and not tracker.awaits(seq):
            del self._gaps[seq]
        if tracker.unsettled == 0:
            self._settled.set()
        return tracker.position - before

    async def all_settled(self, timeout_s: float) -> None:
        """Wait until nothing is in flight, at most `timeout_s`; nothing may be read meanwhile."""
        if self._tracker.unsettled == 0:
            return
        self._settled.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()

    # --- what is saved ---------------------------------------------------------------------------

    @property
    def saved(self) -> int:
        """Up to where it is saved."""
        return self._saved

    @property
    def save_error(self) -> str:
        """Why the position couldn't be saved the last time, if it couldn't."""
        return self._save_error

    async def save(self, store: CheckpointStore) -> bool:
        """Save the position if it has moved, and that nothing more is read; a failure is said and
        tried again later."""
        position, failure = self._tracker.position, self._failure
        if position == self._saved and failure == self._saved_failure:
            return True
        try:
            if failure != self._saved_failure:
                await store.stop(self.ref, self.fence, failure)
                self._saved_failure = failure
            if position != self._saved:
                await store.save(self.ref, self.fence, position, self._tracker.tally)
        except HeadgateError as error:
            log.warning(LogLine.CHECKPOINT_FAILED, partition=str(self.ref), error=error.message)
            if error.code == "fenced":
                raise
            self._save_error = error.message
            return False
        self._saved, self._save_error = position, ""
        return True

    def report(self, halt: str = "", *, parked: bool = False) -> PartitionReport:
        """`halt`: why it stands still for some gateway, if it does; `parked`: some of it is."""
        tracker = self._tracker
        return PartitionReport(
            self.ref,
            self.read.seq,
            tracker.position,
            tracker.oldest_unsettled_ms or self.read.unread_ms,
            tracker.tally,
            "failed" if halt else self.state,
            self.reason or halt,
            parked,
        )
