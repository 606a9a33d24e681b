"""How far the log of a partition was read, whether it can be, and whether it is still the same log.

Reading alone changes it; what is found out about the log is said in the log of this process once.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import structlog

from headgate.decide.delivery import gaps
from headgate.decide.delivery import lost_logs as history
from headgate.decide.delivery.gaps import Gap
from headgate.decide.delivery.retrying import Backoff
from headgate.decide.portions import Portion
from headgate.errors import HeadgateError, HistoryLost
from headgate.model.event import PartitionRef, Record
from headgate.telemetry import LogLine

log = structlog.get_logger()

PAUSES = Backoff(1.0, 30.0)
"""Between two tries to read what can't be read."""
SURE_S = 2.0
"""For so long after a read the log is taken to be the one that was read. A lane that nothing holds
reads every partition at least every second (LogReader.follow), so it never has to look back."""


class ReadSoFar:
    """`seq` is the last one read. What can't be read is tried again later, with fewer records at a
    time: `limit` at most."""

    def __init__(self, ref: PartitionRef, seq: int, *, limit: int) -> None:
        self._ref = ref
        self.seq = seq
        self.time_ms = 0
        """Time of the last record that was read; 0 before the first one."""
        self.unread_ms = 0
        """Time of the oldest record that was not read, as of the last look."""
        self.unreadable = ""
        """Why the log couldn't be read the last time, if it couldn't."""
        self.lost_history: HistoryLost | None = None
        """The log was found to end before what was read of it, and has not been moved on since."""
        self._last: Record | None = None
        """The record at `seq`, where the lane has seen it."""
        self._sure_until_s = -math.inf
        self._look_at_s = 0.0
        """When to ask again whether the log ends where nothing more is found."""
        self._due_s = 0.0
        self._failures = 0
        self._portion = Portion(limit)

    # --- whether it can be read ------------------------------------------------------------------

    def is_due(self, now_s: float) -> bool:
        """May the partition be tried again, where it couldn't be read?"""
        return self._due_s <= now_s

    def up_to(self, limit: int) -> int:
        """How many records to read now."""
        return self._portion.up_to(limit)

    def tried(self) -> AbstractContextManager[None]:
        """They are read in here; where that fails, there are fewer the next time."""
        return self._portion.tried()

    def failed(self, error: HeadgateError, *, now_s: float) -> None:
        """It can't be read, for now."""
        if not self.unreadable:
            log.error(LogLine.PARTITION_STOPPED, partition=str(self._ref), error=error.message)
        self.unreadable = error.message
        self._sure_until_s = -math.inf
        self._due_s = now_s + PAUSES.delay_s(self._failures, jitter=1.0)
        self._failures += 1

    def went_well(self, *, goes_on: bool) -> None:
        if self.unreadable and goes_on:
            log.info(LogLine.PARTITION_GOES_ON, partition=str(self._ref))
        self.unreadable, self._failures = "", 0

    # --- how far it was --------------------------------------------------------------------------

    def accept(self, record: Record) -> None:
        """Move on to `record`, the next one."""
        self.seq, self.time_ms, self._last = record.seq, record.time_ms, record

    def pass_over(self, gap: Gap) -> None:
        """Move on behind `gap`, of which nothing will be read."""
        self.seq, self.lost_history, self._last = gap.last_seq, None, None

    def gap_before(self, record: Record, max_gap_s: float) -> Gap | None:
        """What is missing between the last record that was read and this one."""
        return gaps.found(
            read_seq=self.seq,
            read_ms=gaps.UNKNOWN_MS if self.lost_history else self.time_ms,
            next_seq=record.seq,
            next_ms=record.time_ms,
            max_gap_ms=round(max_gap_s * 1_000),
        )

    def looked_ahead(self, unread_ms: int) -> None:
        """The oldest record that was not read is of that time; 0: there is none, or it counts for
        nothing beside what is unsettled."""
        self.unread_ms = unread_ms

    # --- whether it is the same log --------------------------------------------------------------

    def is_sure(self, now_s: float) -> bool:
        """Is this the log that was read, because somebody looked just before? A log that is lost
        while nobody looks may have grown past `seq` since."""
        return now_s < self._sure_until_s

    def looked(self, now_s: float) -> None:
        """The log was read, and is the same that it was."""
        self._sure_until_s = now_s + SURE_S

    @property
    def has_memory(self) -> bool:
        """Is there a record that can be compared with what the log has in its place?"""
        return self._last is not None

    def found_again(self, record: Record | None) -> HistoryLost | None:
        """`record` is the first one from `seq` on, if there is any; returns what is wrong with
        that."""
        if self._last is None:
            is_there = record is not None and record.seq == self.seq
            self._last = record if is_there else None
            return None
        lost = history.another(self._ref, known=self._last, found=record)
        self._lost(lost)
        return lost

    def asks_for_the_end(self, now_s: float, *, every_s: float) -> bool:
        """Is it time to ask whether the log ends where nothing more is found? The next time comes
        after `every_s`."""
        if now_s < self._look_at_s:
            return False
        self._look_at_s = now_s + every_s
        return True

    def ends_at(self, head: int) -> None:
        """Nothing is behind what was read, and the log says that it ends at `head`."""
        self._lost(history.lost(self._ref, head=head, settled=self.seq))

    def begins_again(self, record: Record) -> HistoryLost | None:
        """The log lost its history and wasn't moved on, and `record` is one of it: then some before
        it are new and were never read."""
        return self.lost_history if record.seq == self.seq + 1 else None

    def _lost(self, lost: HistoryLost | None) -> None:
        if lost is not None and self.lost_history is None:
            log.error(LogLine.HISTORY_LOST, partition=str(self._ref), error=lost.message)
            self.lost_history = lost
