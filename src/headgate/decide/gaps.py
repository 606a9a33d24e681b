"""Records that can't be read any more: what a gap is, who must hear of it, and when it is over.

`seq` is dense, so a hole in it is a gap; a quiet log isn't. A lane asks `found` with every first
record of a read, and `skipped` when it claims a position. For each gap it puts `notice` into the
pipeline of every gateway, in its place, and they answer it like a delivery. The lost records count
as skipped, and are settled, when all have answered, so that a lane which takes over before that
finds the same gap and says it again; a gateway that knows already drops it.

A small gap is one that spans little time: it is said and passed. A larger one makes the partition
stale until everybody who must know does.

Invariant: reading never goes on behind a gap without it being said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef, Record
from headgate.model.position import Position

UNKNOWN_MS = 0
NOTHING = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Gap:
    """The records from `first_seq` to `last_seq` won't be read; `is_small` by their time."""

    first_seq: int
    last_seq: int
    is_small: bool = False
    on_purpose: bool = False
    """An operator wants them skipped."""

    @property
    def count(self) -> int:
        return self.last_seq - self.first_seq + 1

    def __str__(self) -> str:
        why = "were skipped by an operator" if self.on_purpose else "are no longer in the log"
        return f"records {self.first_seq} to {self.last_seq} {why}"


def found(
    *, read_seq: int, read_ms: int, next_seq: int, next_ms: int, max_gap_ms: int
) -> Gap | None:
    """The gap between the last record that was read and the next one there is.

    `read_ms` is the time of the former, 0 where nobody knows it any more: then the gap may span any
    time, and isn't small.
    """
    if next_seq <= read_seq + 1:
        return None
    is_small = read_ms != UNKNOWN_MS and next_ms - read_ms <= max_gap_ms
    return Gap(read_seq + 1, next_seq - 1, is_small=is_small)


def skipped(position: Position) -> Gap | None:
    """What an operator wants skipped of a partition that is claimed at `position`."""
    if position.skip_to <= position.settled:
        return None
    return Gap(position.settled + 1, position.skip_to, on_purpose=True)


def dense(records: Sequence[Record]) -> Sequence[Record]:
    """The records up to the first hole between them."""
    if not records or records[-1].seq - records[0].seq == len(records) - 1:
        return records
    first = records[0].seq
    end = next(at for at, record in enumerate(records) if record.seq != first + at)
    return records[:end]


def notice(gap: Gap, ref: PartitionRef, *, epoch: int, time_ms: int) -> Delivery:
    """What a gateway is told: nothing of `gap` will come; its seq is that of the last lost one."""
    return Delivery(
        topic=ref.topic,
        partition=ref.partition,
        seq=gap.last_seq,
        event_id="",
        key=None,
        collection="",
        op="insert",
        document=NOTHING,
        subscriptions=(),
        epoch=epoch,
        time_ms=time_ms,
        lost_from=gap.first_seq,
    )
