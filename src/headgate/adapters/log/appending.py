"""What an append does to a partition: who is refused, and which seq each event gets.

Every store runs this inside the transaction that writes, so that all of them answer alike.
Invariants: `seq` stays dense, and an idempotency key is given one seq only; a store that has
forgotten what it once told, because it failed over or was restored, is written to by nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import add
from typing import Any

import msgspec
from msgspec.structs import astuple

from headgate.adapters.log.checksum import made, with_checksum
from headgate.decide.connectors import intake
from headgate.errors import (
    Fenced,
    HeadgateError,
    InvalidRequest,
    NotNow,
    Overloaded,
    Sealed,
    StaleVersion,
    StoreChanged,
)
from headgate.model.event import Event, PartitionRef
from headgate.model.intake import IntakeMark, IntakePosition
from headgate.ports.log import Appended, Taken

RECORD_OVERHEAD_BYTES = 100
"""What a record takes besides its document: names, times, its row and its idempotency key."""

Outcome = list[Appended] | HeadgateError
Row = tuple[Any, ...]
"""A record in the order of the columns: seq, version, event_id, key, collection, op, document,
earlier, source, time_ms, headers, checksum."""
TIME_MS = 9
"""Where a row has it."""


class AppendRequest:
    """What one `append` call asked for. `weight` is roughly its memory, in bytes."""

    __slots__ = ("document_bytes", "events", "now_ms", "version", "weight")

    EVENT_WEIGHT = 512

    def __init__(self, events: Sequence[Event], *, version: int, now_ms: int) -> None:
        self.events = events
        self.version = version
        self.now_ms = now_ms
        documents = sum([len(event.document) for event in events])
        beside = sum([_beside(event) for event in events if event.earlier or event.headers])
        self.document_bytes = documents + beside
        self.weight = self.document_bytes + self.EVENT_WEIGHT * (len(events) + 1)


class PartitionState(msgspec.Struct, frozen=True):
    """The stored row of a partition. `size_bytes` counts its records as `record_bytes` does."""

    epoch: int
    version: int
    head: int
    sealed: bool
    size_bytes: int


class Placed(msgspec.Struct):
    """An outcome per request, in order, and what has to be written for them."""

    outcomes: list[Outcome]
    rows: list[Row]
    head: int
    size_bytes: int


def place(
    ref: PartitionRef,
    state: PartitionState,
    requests: Sequence[AppendRequest],
    known: dict[str, int],
) -> Placed:
    """Give every new event of `requests` its seq. `known` has the seqs of ids that are stored,
    and learns those of the new ones.
    """
    placed = Placed([], [], state.head, state.size_bytes)
    for request in requests:
        refusal = _refusal(ref, state, request)
        placed.outcomes.append(refusal or _placed(ref, placed, request, known))
    return placed


class TakenIn(msgspec.Struct):
    """What has to be written for a connector's batch, and what to answer."""

    rows: list[Row]
    head: int
    size_bytes: int
    position: IntakePosition

    @property
    def answer(self) -> Taken:
        return Taken(len(self.rows), self.head, self.position.position)


def take_in(
    ref: PartitionRef,
    state: PartitionState,
    stored: Sequence[IntakePosition],
    mark: IntakeMark,
    request: AppendRequest,
) -> TakenIn:
    """Give what is new of a connector's batch its seqs; raises why none of it may be written.

    `stored` is what the partition has of that connector, of every version."""
    refusal = _refusal(ref, state, request)
    if refusal is not None:
        raise refusal
    version, head = request.version, state.head
    admitted = intake.admit(ref, stored, mark, request.events, version=version)
    rows = _rows(ref, admitted.events, version=version, first_seq=head + 1, now_ms=request.now_ms)
    added = sum([record_bytes(len(one.document), _beside(one)) for one in admitted.events])
    return TakenIn(rows, head + len(rows), state.size_bytes + added, admitted.position)


def stored_positions(rows: Iterable[Sequence[Any]]) -> list[IntakePosition]:
    """What a store has of a connector: the fields of IntakePosition, as far as the store knew them
    when it was made; free text may be stored as bytes."""
    return [
        IntakePosition(
            version, partitions, epoch, beginning, _text(position), bool(ended), *map(_text, later)
        )
        for version, partitions, epoch, beginning, position, ended, *later in rows
    ]


def _text(stored: str | bytes) -> str:
    return stored.decode() if isinstance(stored, bytes) else stored


def _refusal(
    ref: PartitionRef, state: PartitionState, request: AppendRequest
) -> HeadgateError | None:
    if state.sealed:
        return _sealed(ref)
    if request.version != state.version:
        return _stale(ref, stored=state.version, came=request.version)
    return None


def _placed(
    ref: PartitionRef, placed: Placed, request: AppendRequest, known: dict[str, int]
) -> list[Appended]:
    version, now_ms = request.version, request.now_ms
    answer: list[Appended] = []
    for event in request.events:
        seq = known.get(event.event_id)
        if seq is not None:
            answer.append(Appended(seq, True))
            continue
        placed.head += 1
        known[event.event_id] = placed.head
        placed.size_bytes += record_bytes(len(event.document), _beside(event))
        placed.rows.append(_row(ref, placed.head, version, event, now_ms))
        answer.append(Appended(placed.head))
    return answer


def _row(ref: PartitionRef, seq: int, version: int, event: Event, now_ms: int) -> Row:
    row = (
        seq,
        version,
        event.event_id,
        event.key,
        event.collection,
        event.op,
        event.document,
        event.earlier,
        event.source,
        now_ms,
        event.headers,
    )
    return with_checksum(ref, row)


def _rows(
    ref: PartitionRef, events: Sequence[Event], *, version: int, first_seq: int, now_ms: int
) -> list[Row]:
    """As `_row` makes them, with seqs that follow each other."""
    contents = map(add, map(astuple, events), repeat((now_ms,)))
    checksums = made(ref, contents, version=version, first_seq=first_seq)
    return [
        (
            seq,
            version,
            one.event_id,
            one.key,
            one.collection,
            one.op,
            one.document,
            one.earlier,
            one.source,
            now_ms,
            one.headers,
            checksum,
        )
        for seq, (one, checksum) in enumerate(zip(events, checksums, strict=False), first_seq)
    ]


def added_bytes(requests: Sequence[AppendRequest]) -> int:
    """How much the records of `requests` count against a partition's size."""
    return sum([one.document_bytes + len(one.events) * RECORD_OVERHEAD_BYTES for one in requests])


def record_bytes(document_bytes: int, beside_bytes: int) -> int:
    """How much a record counts against a partition's size; beside its document it has the state
    before it, and headers."""
    return RECORD_OVERHEAD_BYTES + document_bytes + beside_bytes


def _beside(event: Event) -> int:
    return len(event.earlier or b"") + len(event.headers or b"")


def check_owner(ref: PartitionRef, state: PartitionState, *, mine: int | None) -> None:
    """Only the epoch that is stored may write; `mine` is None where nobody opened it."""
    check_fence(ref, state, mine=mine)
    if state.epoch != mine:
        raise store_changed(
            ref, f"it belongs to epoch {state.epoch}, and epoch {mine} had opened it"
        )


def check_fence(ref: PartitionRef, state: PartitionState, *, mine: int | None) -> None:
    """Nobody newer may have come, as far as the store remembers."""
    if mine is None or state.epoch > mine:
        raise fenced(ref, stored=state.epoch, mine=mine)


def check_history(ref: PartitionRef, state: PartitionState, *, given_out: int) -> None:
    """A store has every seq that it ever gave out: `given_out` is the last one."""
    if state.head < given_out:
        raise store_changed(
            ref, f"it ends at {state.head}, and {given_out} was given out", given_out=given_out
        )


def store_changed(ref: PartitionRef, why: str, **details: object) -> StoreChanged:
    return StoreChanged(
        f"the store of partition {ref.partition} of {ref.topic} isn't what it was when it was "
        f"opened: {why}; nothing was written, try again",
        topic=ref.topic,
        partition=ref.partition,
        **details,
    )


def fenced(ref: PartitionRef, *, stored: int, mine: int | None) -> Fenced:
    here = "it isn't open here" if mine is None else f"epoch {mine} came here"
    return Fenced(
        f"partition {ref.partition} of {ref.topic} belongs to epoch {stored}, "
        f"and {here}; stop writing to it",
        partition=ref.partition,
        topic=ref.topic,
        epoch=stored,
    )


def not_open(ref: PartitionRef) -> Fenced:
    return Fenced(f"partition {ref.partition} of {ref.topic} isn't open here; open it first")


def stopping() -> NotNow:
    return NotNow("the node is stopping; nothing was written, try again")


def overloaded(ref: PartitionRef) -> Overloaded:
    return Overloaded(
        f"too much waits to be written to partition {ref.partition} of {ref.topic}; "
        "nothing was written, try again later",
        topic=ref.topic,
        partition=ref.partition,
    )


def unwritable(error: Exception) -> InvalidRequest:
    return InvalidRequest(f"the events can't be stored: {error}; nothing was written")


def _sealed(ref: PartitionRef) -> Sealed:
    return Sealed(
        f"partition {ref.partition} of {ref.topic} is sealed while its topic is repartitioned; "
        "nothing was written, try again",
        topic=ref.topic,
        partition=ref.partition,
    )


def _stale(ref: PartitionRef, *, stored: int, came: int) -> StaleVersion:
    return StaleVersion(
        f"partition {ref.partition} of {ref.topic} takes appends of partitioning version {stored}, "
        f"and version {came} came; place the events anew",
        topic=ref.topic,
        partition=ref.partition,
        version=stored,
    )
