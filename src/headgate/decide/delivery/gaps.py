"""Records that can't be read any more: what a gap is, which gateways must hear of it, and when it
is over.

`seq` is dense, so a hole in it is a gap; a quiet log isn't. A lane asks `found` with every first
record of a read, and `skipped` when it claims a position. For each gap it puts `notice` into the
pipeline of every gateway, in its place, and they answer it like a delivery. The lost records count
as skipped, and are settled, when all have answered, so that a lane which takes over before that
finds the same gap and says it again; a gateway that knows already drops it.

A small gap is one that spans little time: it is said and passed. A larger one makes the partition
stale until everybody who must know does.

A **marker** (op `lost`) is a record that a connector writes where its origin has lost changes, or
one was left out: nobody knows what they were. It is a gap that consists of itself, is said in its
place like any other, and is never small.

Invariant: reading never goes on behind a gap without it being said; no marker is ever delivered as
a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    at_origin: bool = False
    """It is a marker: changes are missing that never came into the log."""

    @property
    def count(self) -> int:
        return self.last_seq - self.first_seq + 1

    def __str__(self) -> str:
        if self.at_origin:
            return f"record {self.first_seq} says that its origin has lost changes before it"
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


def is_marker(one: Record | Delivery) -> bool:
    """Is it, or does it tell of, a record that stands for changes which its origin has lost?"""
    return one.op == "lost"


def marked(record: Record) -> Gap:
    """The gap that a marker is."""
    return Gap(record.seq, record.seq, at_origin=True)


def runs(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """The same, in order, each marker by itself."""
    begin = 0
    for at, record in enumerate(records):
        if is_marker(record):
            if begin < at:
                yield records[begin:at]
            yield records[at : at + 1]
            begin = at + 1
    if begin < len(records):
        yield records[begin:] if begin else records


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
        op="lost" if gap.at_origin else "insert",
        document=NOTHING,
        subscriptions=(),
        epoch=epoch,
        time_ms=time_ms,
        lost_from=gap.first_seq,
    )
