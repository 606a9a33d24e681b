"""One partition's log file and the transactions on it. Blocking: its writer thread calls it.

Invariants: `seq` is dense from 1 and never restarts; an idempotency key is given one seq only;
only the highest epoch that ever opened the file appends. Each of these is checked in the
transaction that writes, so that it holds between processes too. A file that was deleted, replaced
or put back to an earlier state is refused until it is opened again, and moved on where it ends
before what was given out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, repeat
from operator import add

import apsw
from msgspec.structs import astuple

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.file import LogFile
from headgate.adapters.embedded.log.schema import (
    ADVANCE,
    EXTENT,
    FORGET_IDS,
    FORGET_MARKS,
    FRONT,
    IDS_OF_RECORDS,
    INTAKES,
    MARK,
    NEWEST_MARK,
    RECORD_COLUMNS,
    RECORDS,
    STATE,
    NewRecords,
    last_new_records,
    new_records,
    rows,
)
from headgate.adapters.embedded.sqlite import detailed_code, storage_errors
from headgate.adapters.log.appending import (
    TIME_MS,
    AppendRequest,
    Outcome,
    PartitionState,
    Placed,
    Row,
    added_bytes,
    check_fence,
    check_history,
    check_owner,
    place,
    stored_positions,
    take_in,
)
from headgate.adapters.log.checksum import made
from headgate.adapters.log.retention import DROP_BYTES, at_once, expired_prefix
from headgate.adapters.log.times import Mark, new_marks
from headgate.decide.portions import Portion
from headgate.errors import OutcomeUnknown, StorageFailed
from headgate.model.event import PartitionRef
from headgate.model.intake import IntakeMark
from headgate.ports.log import Appended, Extent, Retention, Taken

ROWS_MAX = 512
"""SQLite runs without the interpreter lock, and asks for it back after every statement, which a
busy event loop makes it wait for. So all rows there are go with one statement, up to this."""
ROUND_ROWS = 64
"""Statements take a multiple of so many rows, or a power of two below it; some may stay empty."""

DROP_ROWS = 2_000
"""What is dropped in one turn at most, however small."""


class PartitionFile(LogFile):
    def __init__(self, folder: DataFolder, ref: PartitionRef) -> None:
        super().__init__(folder, ref)
        self._epoch: int | None = None
        self._head: int | None = None
        """After the last commit here. Whether it still is the head, the next one checks."""
        self._given_out = 0
        """The highest head that was found here; what was committed here since is in `_head`."""
        self._newest_mark_ms: int | None = None
        """Of the index by time, after the last commit here; goes with `_head`."""

    def _connect_again(self) -> bool:
        if not super()._connect_again():
            return False
        self._given_out, self._head = self._reach, None
        return True

    @property
    def _reach(self) -> int:
        """The last seq that was given out, as far as is known here."""
        return max(self._given_out, self._head or 0)

    def _saw(self, head: int) -> None:
        """It ends at `head`, and callers that were told so may rely on it."""
        if head != self._head:
            self._given_out, self._head = max(self._reach, head), None

    def open(self, epoch: int, version: int, *, sealed: bool = False) -> Extent:
        """Become the writer under `epoch`; from now on every lower one is refused."""
        self._connect_again()
        with self._transactions.begin():
            state = self._state()
            check_fence(self._ref, state, mine=epoch)
            if state.epoch < epoch or state.version < version or state.sealed != sealed:
                self._execute(
                    "UPDATE partition SET epoch = ?, version = max(version, ?), sealed = ?",
                    epoch,
                    version,
                    sealed,
                )
            [(self._newest_mark_ms,)] = self._connection.execute(NEWEST_MARK)
        self._given_out = max(self._reach, state.head)
        self._epoch, self._head = epoch, state.head if state.head == self._given_out else None
        return self.extent()

    def extent(self) -> Extent:
        with storage_errors(self._what):
            [(earliest, head)] = self._connection.execute(EXTENT)
        self._transactions.check()
        return Extent(earliest, head)

    def append(self, requests: Sequence[AppendRequest]) -> list[Outcome]:
        """Write all of `requests` in one transaction; an outcome for each, in order.

        Raises anything but a HeadgateError when values of one request can't be stored.
        Nearly always nothing has changed since the last commit here and every key is new, so they
        are written on that assumption; where it turns out to be wrong, the transaction starts over
        with what is known of the partition and of the keys.
        """
        head, version = self._head, requests[0].version
        if head is not None and all(request.version == version for request in requests):
            try:
                self._write_new(head, version, requests)
            except _OutOfDate:
                pass
            except apsw.ConstraintError as error:
                if detailed_code(error) != apsw.SQLITE_CONSTRAINT_PRIMARYKEY:
                    raise
            else:
                return self._advanced(head, requests)
        with self._transactions.begin():
            state = self._owned()
            known = self._known([one.event_id for each in requests for one in each.events])
            placed = place(self._ref, state, requests, known)
            try:
                self._write(state, placed)
            except apsw.ConstraintError as error:
                if detailed_code(error) != apsw.SQLITE_CONSTRAINT_PRIMARYKEY:
                    raise
                # It was looked up in this transaction, and isn't there.
                raise StorageFailed(
                    f"{self._what} failed: the file is damaged ({error}); restore it from a copy"
                ) from error
            newest_ms = self._mark_rows(placed.rows)
        self._head, self._newest_mark_ms = placed.head, newest_ms
        return placed.outcomes

    def _write_new(self, head: int, version: int, requests: Sequence[AppendRequest]) -> None:
        """Write all events of `requests` behind `head`, as if they were new.

        Each call into SQLite costs, and more so on a processor that has just waited for the disk:
        three of them do, for most commits.
        """
        contents: list[tuple[object, ...]] = []
        for request in requests:
            contents += map(add, map(astuple, request.events), repeat((request.now_ms,)))
        checksums = made(self._ref, contents, version=version, first_seq=head + 1)
        new = NewRecords.of(contents, checksums)
        advance = (len(contents), added_bytes(requests), self._epoch, version, head)
        marks = new_marks(self._newest_mark_ms, _begins(head, requests))
        with self._transactions.begin(ADVANCE, advance):
            if self._connection.changes() == 0:
                raise _OutOfDate
            self._insert_new(head, version, new)
            for mark in marks:
                self._execute(MARK, *mark)
        if marks:
            self._newest_mark_ms = marks[-1][0]

    def _insert_new(self, head: int, version: int, new: NewRecords) -> None:
        """The records, in as many statements as it takes, and their keys with the last of them."""
        values, columns = new.values, new.columns
        at, left = 0, len(values) // columns
        while left > ROWS_MAX:
            chunk = values[at * columns : (at + ROWS_MAX) * columns]
            statement = new_records(ROWS_MAX, plain=new.plain)
            self._connection.execute(statement, [head + 1 + at, version, *new.shared, *chunk])
            at, left = at + ROWS_MAX, left - ROWS_MAX
        count = _rounded_up(left)
        last = values[at * columns :] if at else values
        missing = [None] * ((count - left) * columns)
        self._connection.execute(
            last_new_records(count, plain=new.plain),
            [head + 1 + at, version, *new.shared, *last, *missing, head],
        )

    def _advanced(self, head: int, requests: Sequence[AppendRequest]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for request in requests:
            end = head + len(request.events)
            outcomes.append(list(map(Appended, range(head + 1, end + 1))))
            head = end
        self._head = head
        return outcomes

    def _write(self, state: PartitionState, placed: Placed) -> None:
        if placed.rows:
            self._run(RECORDS, RECORD_COLUMNS, list(chain.from_iterable(placed.rows)))
            self._execute(IDS_OF_RECORDS, state.head)
            self._execute(
                "UPDATE partition SET head = ?, size_bytes = ?", placed.head, placed.size_bytes
            )

    def _mark_rows(self, rows: Sequence[Row]) -> int | None:
        """Mark where times begin in what is being written; the newest mark after that."""
        newest_ms: int | None
        [(newest_ms,)] = self._connection.execute(NEWEST_MARK)
        for mark in new_marks(newest_ms, [(row[TIME_MS], row[0]) for row in rows]):
            self._execute(MARK, *mark)
            newest_ms = mark[0]
        return newest_ms

    def take_in(self, mark: IntakeMark, request: AppendRequest) -> Taken:
        """Write what is new of a connector's batch, and how far it is, in one transaction."""
        with self._transactions.begin():
            state = self._owned()
            known = self._connection.execute(INTAKES, (mark.connector,))
            stored = stored_positions(row[1:] for row in known)
            taken = take_in(self._ref, state, stored, mark, request)
            if taken.rows:
                self._run(RECORDS, RECORD_COLUMNS, list(chain.from_iterable(taken.rows)))
                self._execute(
                    "UPDATE partition SET head = ?, size_bytes = ?", taken.head, taken.size_bytes
                )
            if taken.position not in stored:
                self._execute(
                    "INSERT OR REPLACE INTO intakes VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    mark.connector,
                    *astuple(taken.position),
                )
            if any(one.version < mark.forgets_below for one in stored):
                self._execute(
                    "DELETE FROM intakes WHERE connector = ? AND version < ?",
                    mark.connector,
                    mark.forgets_below,
                )
            newest_ms = self._mark_rows(taken.rows)
        self._head, self._newest_mark_ms = taken.head, newest_ms
        return taken.answer

    def find(self, event_ids: Sequence[str]) -> dict[str, int]:
        """The seqs of those that are stored, for good: see `Transactions.in_doubt`."""
        self._transactions.check()
        if self._transactions.in_doubt:
            try:
                with self._transactions.begin():
                    # Something has to change: SQLite writes no page that stays the same.
                    self._execute("UPDATE partition SET doubts = doubts + 1")
            except OutcomeUnknown as error:
                raise StorageFailed(
                    f"{self._what} can't be looked up: {error}", **error.details
                ) from error
        with storage_errors(self._what):
            known = self._known(list(event_ids))
            state = self._state()
        self._transactions.check()
        check_history(self._ref, state, given_out=self._reach)
        self._saw(state.head)
        return known

    def move_on(self, from_head: int, to_head: int) -> Extent:
        with self._transactions.begin():
            check_owner(self._ref, self._state(), mine=self._epoch)
            self._execute(
                "UPDATE partition SET head = max(head, ?) WHERE head = ?", to_head, from_head
            )
        extent = self.extent()
        self._saw(extent.head)
        return extent

    def _known(self, ids: list[str]) -> dict[str, int]:
        lookup = "SELECT event_id, seq FROM ids WHERE event_id IN (VALUES "
        return dict(self._run(lookup, 1, ids, end=")"))

    def _run(
        self, start: str, columns: int, values: Sequence[object], *, end: str = ""
    ) -> list[tuple[str, int]]:
        """Run one statement over many rows of `values` at a time; what it returned for all."""
        found: list[tuple[str, int]] = []
        at, left, count = 0, len(values) // columns, ROWS_MAX
        while left:
            while count > left:
                count //= 2
            statement = _statement(start, columns, count, end)
            found += self._connection.execute(statement, values[at : at + count * columns])
            at += count * columns
            left -= count
        return found

    def drop_records(self, epoch: int) -> None:
        """Forget records, keys, what connectors have reached, seal and version of a topic that was
        deleted under `epoch`, which is the file's from now on; the head stays.

        What the file has lost already needs no dropping, but stays given out.
        """
        self._connect_again()
        with self._transactions.begin():
            check_fence(self._ref, self._state(), mine=epoch)
            self._execute("DELETE FROM records")
            self._execute("DELETE FROM ids")
            self._execute("DELETE FROM intakes")
            self._execute("DELETE FROM times")
            self._execute(
                "UPDATE partition SET epoch = ?, sealed = 0, version = 1, size_bytes = 0,"
                " head = max(head, ?)",
                epoch,
                self._reach,
            )

    def drop_expired(
        self, retention: Retention, *, up_to_seq: int, ids_ms: int, now_ms: int
    ) -> bool:
        """Drop a bounded number of records and keys; True when there may be more to drop."""
        with self._transactions.begin():
            state = self._owned()
            found = list(self._connection.execute(FRONT, (up_to_seq, DROP_ROWS)))
            front = at_once(found, Portion(DROP_BYTES))
            count, freed_bytes = expired_prefix(
                front, retention, size_bytes=state.size_bytes, now_ms=now_ms
            )
            if count:
                self._execute("DELETE FROM records WHERE seq <= ?", front[count - 1][0])
                self._execute(FORGET_MARKS, front[count - 1][0])
                self._execute("UPDATE partition SET size_bytes = size_bytes - ?", freed_bytes)
            self._execute(FORGET_IDS, now_ms - ids_ms, DROP_ROWS)
            forgotten = self._connection.changes()
        is_bounded = len(front) < len(found) or len(found) == DROP_ROWS
        return (is_bounded and count == len(front)) or forgotten == DROP_ROWS

    def _execute(self, statement: str, *values: object) -> None:
        self._connection.execute(statement, values)

    def _state(self) -> PartitionState:
        [(epoch, version, head, sealed, size_bytes)] = self._connection.execute(STATE)
        return PartitionState(epoch, version, head, bool(sealed), size_bytes)

    def _owned(self) -> PartitionState:
        state = self._state()
        check_owner(self._ref, state, mine=self._epoch)
        check_history(self._ref, state, given_out=self._reach)
        return state


class _OutOfDate(Exception):
    """The partition is not as it was after the last commit here, or not as the requests want it."""


def _begins(head: int, requests: Sequence[AppendRequest]) -> Iterator[Mark]:
    """When each of `requests` came, and the first seq that it gets behind `head`."""
    seq = head + 1
    for request in requests:
        if request.events:
            yield request.now_ms, seq
        seq += len(request.events)


def _rounded_up(count: int) -> int:
    """How many rows the statement for `count` of them takes: one of a few sizes."""
    if count <= ROUND_ROWS:
        return 1 << (count - 1).bit_length()
    return min(ROWS_MAX, -(-count // ROUND_ROWS) * ROUND_ROWS)


@cache
def _statement(start: str, columns: int, count: int, end: str) -> str:
    """One of some thirty: their texts are also the keys of SQLite's prepared statements."""
    return start + rows(columns, count) + end
