"""How far a source partition is settled, and what became of every record.

A record is taken in `seq` order with the number of gateways that must still answer for it, in one
part or in several, and is settled when none is left. The position is the highest seq with
everything up to it settled, so it never passes a record that a gateway must still answer for; the
tally moves with it.

Invariant: the tally's sum grows by as many records as the position passes.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from headgate.model.position import Tally

Outcome = Literal["released", "acknowledged", "parked", "dead"]
_RANK: dict[Outcome, int] = {"released": 0, "acknowledged": 1, "parked": 2, "dead": 3}
_RELEASED, _ACKNOWLEDGED, _PARKED, _DEAD, _UNMATCHED, _SKIPPED = range(6)
_LOST = -1
"""Instead of an outcome: the entry stands for records that can't be read."""


class _Entry:
    """A record that gateways must answer for, with those after it that concern none."""

    __slots__ = ("end_seq", "pending", "skipped", "time_ms", "unmatched", "worst")

    def __init__(self, seq: int, pending: int, time_ms: int) -> None:
        self.end_seq = seq
        self.pending = pending
        self.time_ms = time_ms
        self.worst = _RELEASED
        self.unmatched = self.skipped = 0


class SettleTracker:
    """Bounded by its caller: `unsettled` is how many records it remembers."""

    __slots__ = ("_by_seq", "_counts", "_order", "position")

    def __init__(self, position: int, tally: Tally | None = None) -> None:
        self.position = position
        t = tally or Tally()
        self._counts = [t.released, t.acknowledged, t.parked, t.dead, t.unmatched, t.skipped]
        self._order: deque[_Entry] = deque()
        self._by_seq: dict[int, _Entry] = {}

    @property
    def unsettled(self) -> int:
        return len(self._order)

    @property
    def oldest_unsettled_ms(self) -> int:
        """The record time of the oldest unsettled record, 0 when there is none."""
        return self._order[0].time_ms if self._order else 0

    @property
    def tally(self) -> Tally:
        """What became of the records up to the position."""
        released, acknowledged, parked, dead, unmatched, skipped = self._counts
        return Tally(acknowledged, parked, dead, released, unmatched, skipped)

    def take(self, seq: int, *, pending: int, time_ms: int) -> None:
        """Remember the next record; with no gateway pending it is settled already."""
        if pending:
            entry = self._by_seq[seq] = _Entry(seq, pending, time_ms)
            self._order.append(entry)
        elif self._order:
            entry = self._order[-1]
            entry.end_seq = seq
            entry.unmatched += 1
        else:
            self.position = seq
            self._counts[_UNMATCHED] += 1

    def pass_unmatched(self, through_seq: int) -> None:
        """All records after the last one taken, up to `through_seq`, concern no gateway. Like
        taking them one by one with none pending, for the time of one."""
        if self._order:
            entry = self._order[-1]
            entry.unmatched += through_seq - entry.end_seq
            entry.end_seq = through_seq
        else:
            self._counts[_UNMATCHED] += through_seq - self.position
            self.position = through_seq

    def skip(self, through_seq: int, count: int) -> None:
        """The next `count` records, up to `through_seq`, are lost or passed over on purpose."""
        if self._order:
            entry = self._order[-1]
            entry.end_seq = through_seq
            entry.skipped += count
        else:
            self.position = through_seq
            self._counts[_SKIPPED] += count

    def lose(self, through_seq: int, count: int, *, pending: int, time_ms: int) -> None:
        """The next `count` records are lost, and as many as `pending` must hear of it first."""
        self.take(through_seq, pending=pending, time_ms=time_ms)
        entry = self._by_seq[through_seq]
        entry.worst, entry.skipped = _LOST, count

    def split(self, seq: int, parts: int) -> None:
        """One of those pending for `seq` answers in so many parts."""
        self._by_seq[seq].pending += parts - 1

    def awaits(self, seq: int) -> bool:
        """Must a gateway still answer for `seq`?"""
        return seq in self._by_seq

    def settle(self, seq: int, outcome: Outcome) -> None:
        """One of those pending for `seq` has answered, or is released from answering."""
        entry = self._by_seq[seq]
        if entry.worst != _LOST:
            entry.worst = max(entry.worst, _RANK[outcome])
        entry.pending -= 1
        if entry.pending:
            return
        del self._by_seq[seq]
        order, counts = self._order, self._counts
        while order and not order[0].pending:
            entry = order.popleft()
            self.position = entry.end_seq
            if entry.worst != _LOST:
                counts[entry.worst] += 1
            counts[_UNMATCHED] += entry.unmatched
            counts[_SKIPPED] += entry.skipped
