"""A log in memory: what is stored of each partition, and every change to it.

Writers and readers share a `MemoryLog` as processes share a disk. Invariants are those of every log
store, by the same rules (adapters.log): `seq` is dense from 1 and never restarts; an idempotency
key is given one seq only; only the highest epoch that ever opened a partition changes it. A change
is made at once or not at all. One event loop only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice

from msgspec.structs import astuple, replace

from headgate.adapters.log.appending import (
    AppendRequest,
    PartitionState,
    Row,
    check_fence,
    check_owner,
    place,
    take_in,
    unwritable,
)
from headgate.adapters.log.checksum import CHECKSUM, intact, verified
from headgate.adapters.log.retention import expired_prefix
from headgate.adapters.log.times import Mark, new_marks
from headgate.adapters.log.wake_ups import WakeUps
from headgate.errors import HeadgateError
from headgate.model.event import Event, PartitionRef, Record
from headgate.model.intake import IntakeMark, IntakePosition
from headgate.ports.log import Appended, Extent, Retention, Taken, Verified

DROP_ROWS = 2_000
"""What is dropped in one turn: appends get theirs in between."""

PLACE_COLUMNS = 2
"""Of a record, before the columns of a row: topic and partition."""

NEW = PartitionState(epoch=0, version=1, head=0, sealed=False, size_bytes=0)


class MemoryLog:
    """Every partition, and who follows them."""

    def __init__(self) -> None:
        self.partitions: dict[PartitionRef, MemoryPartition] = {}
        self.followers: dict[PartitionRef, dict[WakeUps, None]] = {}
        """In the order in which they came, which is the order they are rung in."""

    def partition(self, ref: PartitionRef) -> MemoryPartition:
        """The partition that is there, or a new one, which isn't open yet."""
        return self.partitions.setdefault(ref, MemoryPartition(ref))

    def grown(self, ref: PartitionRef) -> None:
        """Wake up those that follow it."""
        for follower in self.followers.get(ref, ()):
            follower.ring([ref])


class MemoryPartition:
    """`mine` is the epoch under which the caller has opened it, None if it hasn't."""

    def __init__(self, ref: PartitionRef) -> None:
        self.ref = ref
        self.state = NEW
        self.records: list[Record] = []
        self.checksums: dict[int, bytes | None] = {}
        """By seq; None as of a record from before there were any."""
        self._marks: list[Mark] = []
        self._ids: dict[str, tuple[int, int]] = {}
        """Per idempotency key its seq and when it came."""
        self.intakes: dict[str, dict[int, IntakePosition]] = {}
        """Per connector, by version, how far it has come."""

    @property
    def extent(self) -> Extent:
        head = self.state.head
        return Extent(self.records[0].seq if self.records else head + 1, head)

    def open(self, epoch: int, version: int, *, sealed: bool) -> Extent:
        check_fence(self.ref, self.state, mine=epoch)
        version = max(self.state.version, version)
        self.state = replace(self.state, epoch=epoch, version=version, sealed=sealed)
        return self.extent

    def append(self, request: AppendRequest, *, mine: int | None) -> list[Appended]:
        self._check(mine)
        check_storable(request.events)
        known = {event_id: seq for event_id, (seq, _) in self._known(request.events)}
        placed = place(self.ref, self.state, [request], known)
        [outcome] = placed.outcomes
        if isinstance(outcome, HeadgateError):
            raise outcome
        for record in self._add(placed.rows):
            self._ids[record.event_id] = (record.seq, record.time_ms)
        self.state = replace(self.state, head=placed.head, size_bytes=placed.size_bytes)
        return outcome

    def take_in(self, mark: IntakeMark, request: AppendRequest, *, mine: int | None) -> Taken:
        self._check(mine)
        check_storable(request.events)
        stored = self.taken_in(mark.connector)
        taken = take_in(self.ref, self.state, stored, mark, request)
        self._add(taken.rows)
        kept = {one.version: one for one in stored if one.version >= mark.forgets_below}
        self.intakes[mark.connector] = kept | {taken.position.version: taken.position}
        self.state = replace(self.state, head=taken.head, size_bytes=taken.size_bytes)
        return taken.answer

    def taken_in(self, connector: str) -> list[IntakePosition]:
        known = self.intakes.get(connector, {})
        return [known[version] for version in sorted(known)]

    def _add(self, rows: Sequence[Row]) -> list[Record]:
        topic, partition = self.ref.topic, self.ref.partition
        added = [Record(topic, partition, *row[:CHECKSUM]) for row in rows]
        self.records += added
        self.checksums.update((row[0], row[CHECKSUM]) for row in rows)
        newest_ms = self._marks[-1][0] if self._marks else None
        self._marks += new_marks(newest_ms, [(one.time_ms, one.seq) for one in added])
        return added

    def _known(self, events: Sequence[Event]) -> list[tuple[str, tuple[int, int]]]:
        ids = self._ids
        return [(one.event_id, ids[one.event_id]) for one in events if one.event_id in ids]

    def find(self, event_ids: Sequence[str]) -> dict[str, int]:
        return {one: self._ids[one][0] for one in event_ids if one in self._ids}

    def read(self, *, after_seq: int, up_to_seq: int, limit: int) -> list[Record]:
        """Those that are what was appended; raises CorruptRecord where the first one isn't."""
        found = self._stored(after_seq=after_seq, up_to_seq=up_to_seq, limit=limit)
        rows = self._rows(found)
        return found[: len(intact(self.ref, rows, after_seq=after_seq, up_to_seq=up_to_seq))]

    def verify(self, *, after_seq: int, limit: int) -> Verified | None:
        found = self._stored(after_seq=after_seq, up_to_seq=self.state.head, limit=limit)
        rows = self._rows(found)
        return verified(self.ref, rows, after_seq=after_seq) if found else None

    def _rows(self, records: Sequence[Record]) -> list[Row]:
        return [(*astuple(one)[PLACE_COLUMNS:], self.checksums.get(one.seq)) for one in records]

    def first_since(self, time_ms: int) -> int:
        marked = [seq for marked_ms, seq in self._marks if marked_ms <= time_ms]
        first = bisect_left(self.records, marked[-1] if marked else 0, key=_seq)
        since = (one.seq for one in islice(self.records, first, None) if one.time_ms >= time_ms)
        return next(since, self.state.head + 1)

    def _stored(self, *, after_seq: int, up_to_seq: int, limit: int) -> list[Record]:
        first = bisect_right(self.records, after_seq, key=_seq)
        end = bisect_right(self.records, up_to_seq, key=_seq)
        return self.records[first : min(end, first + max(limit, 0))]

    def move_on(self, from_head: int, to_head: int, *, mine: int | None) -> Extent:
        self._check(mine)
        if self.state.head == from_head:
            self.state = replace(self.state, head=max(from_head, to_head))
        return self.extent

    def drop_expired(
        self, retention: Retention, *, up_to_seq: int, ids_ms: int, now_ms: int, mine: int | None
    ) -> bool:
        """Drop a bounded number of records and keys; True when there may be more to drop."""
        self._check(mine)
        front = self._stored(after_seq=0, up_to_seq=up_to_seq, limit=DROP_ROWS)
        sizes = (
            (
                one.seq,
                one.time_ms,
                len(one.document),
                len(one.earlier or b"") + len(one.headers or b""),
            )
            for one in front
        )
        count, freed_bytes = expired_prefix(
            sizes, retention, size_bytes=self.state.size_bytes, now_ms=now_ms
        )
        for dropped in self.records[:count]:
            self.checksums.pop(dropped.seq, None)
        if count:
            last = self.records[count - 1].seq
            self._marks = [one for one in self._marks if one[1] > last or one is self._marks[-1]]
        del self.records[:count]
        self.state = replace(self.state, size_bytes=self.state.size_bytes - freed_bytes)
        oldest_ms = now_ms - ids_ms
        old = (name for name, (_, time_ms) in self._ids.items() if time_ms < oldest_ms)
        forgotten = list(islice(old, DROP_ROWS))
        for name in forgotten:
            del self._ids[name]
        return DROP_ROWS in (count, len(forgotten))

    def drop_records(self, epoch: int) -> None:
        check_fence(self.ref, self.state, mine=epoch)
        self.records.clear()
        self.checksums.clear()
        self._marks.clear()
        self._ids.clear()
        self.intakes.clear()
        self.state = replace(NEW, epoch=epoch, head=self.state.head)

    def _check(self, mine: int | None) -> None:
        check_owner(self.ref, self.state, mine=mine)


def check_storable(events: Sequence[Event]) -> None:
    """Raises InvalidRequest for text that no store can keep."""
    try:
        for event in events:
            for text in (event.event_id, event.key, event.collection, event.op, event.source):
                if text is not None:
                    text.encode()
    except UnicodeEncodeError as error:
        raise unwritable(error) from error


def _seq(record: Record) -> int:
    return record.seq
