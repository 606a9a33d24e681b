"""The embedded log's reader, for any process that sees the data folder.

Readers of a file in WAL mode neither block its writer nor wait for it, so a read is a function call
of well under a millisecond and runs on the event loop. Invariants: only committed records are seen;
a connection never crosses a fork; no read stays open between calls, so the writer can always move
its write-ahead log into the file; what is read is in the files that are at their paths, and nothing
of a file that couldn't be read is remembered; no record is handed out that isn't what was appended;
files that nobody reads any more don't stay open. Never writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apsw

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.doorbell import SAFETY_S, Follower
from headgate.adapters.embedded.log.open_files import OpenFiles
from headgate.adapters.embedded.log.schema import (
    BEFORE,
    EXTENT,
    FIND,
    HAS_INTAKES,
    HAS_TIMES,
    HEAD,
    INTAKES,
    MARK_BEFORE,
    NEXT_SEQS,
    READ,
    SINCE,
)
from headgate.adapters.embedded.sqlite import connect_read_only, storage_errors
from headgate.adapters.log.appending import stored_positions
from headgate.adapters.log.checksum import CHECKSUM, corrupt_record, intact, out_of_order, verified
from headgate.adapters.log.times import LOOK_AT_ONCE
from headgate.errors import CorruptRecord, StorageFailed
from headgate.model.event import FIRST_SEQ, PartitionRef, Record
from headgate.model.intake import IntakePosition
from headgate.ports.log import READ_BYTES, Extent, Verified

if TYPE_CHECKING:
    import pyarrow as pa

NOTHING_YET = Extent(FIRST_SEQ, 0)
_DOCUMENT, _EARLIER = 6, 7
"""Columns of a record."""
MAX_SEQ = 2**63 - 1
FIND_AT_ONCE = 500
BUSY_TIMEOUT_MS = 500
"""A reader waits for a lock only while a writer's crash is being repaired."""
IDLE_S = 60.0
"""A file that nobody has read for so long is closed when another one is opened: topics come and go,
and what was open of them would stay so. Who follows a partition reads it every second."""

_left_behind: list[apsw.Connection] = []
"""Connections that a fork copied: the parent's, so this process may neither use nor close them."""


@dataclass(slots=True)
class _Opened:
    connection: apsw.Connection
    files: OpenFiles
    used_s: float


class EmbeddedLogReader:
    """Implements ports.log.LogReader."""

    def __init__(
        self, folder: DataFolder, *, safety_s: float = SAFETY_S, idle_s: float = IDLE_S
    ) -> None:
        self._folder = folder
        self._safety_s = safety_s
        self._idle_s = idle_s
        self._opened: dict[PartitionRef, _Opened] = {}
        self._pid = os.getpid()

    async def extent(self, ref: PartitionRef) -> Extent:
        with self._reading(ref):
            connection = self._connection(ref)
            if connection is None:
                return NOTHING_YET
            [(earliest, head)] = connection.execute(EXTENT)
            return Extent(earliest, head)

    async def read(self, ref: PartitionRef, *, after_seq: int, limit: int) -> list[Record]:
        topic, partition = ref.topic, ref.partition
        return [
            Record(topic, partition, *row[:CHECKSUM])
            for row in self._rows(ref, after_seq=after_seq, up_to_seq=MAX_SEQ, limit=limit)
        ]

    async def verify(self, ref: PartitionRef, *, after_seq: int, limit: int) -> Verified | None:
        try:
            with self._reading(ref):
                connection = self._connection(ref)
                if connection is None:
                    return None
                with _given_out(connection, ref, after_seq):
                    rows = _readable(connection, ref, after_seq, limit)
        except CorruptRecord as error:
            return Verified(error.seq, 0, 0, (error.seq,))
        return verified(ref, rows, after_seq=after_seq) if rows else None

    async def first_since(self, ref: PartitionRef, time_ms: int) -> int:
        extent = self._from_mark(ref, time_ms)
        for first in range(extent.earliest, extent.head + 1, LOOK_AT_ONCE):
            with self._reading(ref):
                connection = self._connection(ref)
                if connection is None:
                    break
                for (seq,) in connection.execute(SINCE, (first, first + LOOK_AT_ONCE, time_ms)):
                    return int(seq)
            await asyncio.sleep(0)
        return extent.head + 1

    def _from_mark(self, ref: PartitionRef, time_ms: int) -> Extent:
        """What is there from the newest mark up to `time_ms` on."""
        with self._reading(ref):
            connection = self._connection(ref)
            if connection is None:
                return NOTHING_YET
            [(earliest, head)] = connection.execute(EXTENT)
            if connection.execute(HAS_TIMES).fetchall()[0][0]:
                for (seq,) in connection.execute(MARK_BEFORE, (time_ms,)):
                    earliest = max(earliest, seq)
            return Extent(earliest, head)

    async def find(self, ref: PartitionRef, event_ids: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        with self._reading(ref):
            connection = self._connection(ref)
            if connection is None:
                return found
            for at in range(0, len(event_ids), FIND_AT_ONCE):
                some = event_ids[at : at + FIND_AT_ONCE]
                marks = ", ".join("?" * len(some))
                found |= dict(connection.execute(FIND.format(marks), some))
        return found

    async def taken_in(self, ref: PartitionRef, connector: str) -> list[IntakePosition]:
        with self._reading(ref):
            connection = self._connection(ref)
            if connection is None or not connection.execute(HAS_INTAKES).fetchall()[0][0]:
                return []
            return stored_positions(row[1:] for row in connection.execute(INTAKES, (connector,)))

    def read_arrow(
        self, ref: PartitionRef, *, after_seq: int, up_to_seq: int
    ) -> pa.RecordBatchReader:
        from headgate.adapters.log.arrow import ARROW_BATCH_ROWS, batches_of

        bounds = {"after_seq": after_seq, "up_to_seq": up_to_seq}
        return batches_of(ref, self._pages(ref, **bounds, rows=ARROW_BATCH_ROWS))

    def follow(
        self, refs: Sequence[PartitionRef]
    ) -> AbstractAsyncContextManager[AsyncIterator[frozenset[PartitionRef]]]:
        return Follower(self._folder.root, refs, safety_s=self._safety_s)

    async def close(self) -> None:
        self._let_go_after_fork()
        for ref in list(self._opened):
            self._close(ref)

    def _rows(
        self, ref: PartitionRef, *, after_seq: int, up_to_seq: int, limit: int
    ) -> list[tuple[Any, ...]]:
        with self._reading(ref):
            connection = self._connection(ref)
            if connection is None or min(limit, up_to_seq - after_seq) <= 0:
                return []
            # Nothing is asked of SQLite about the end: a seq that is damaged would be one.
            with _given_out(connection, ref, after_seq):
                rows = _readable(connection, ref, after_seq, min(limit, up_to_seq - after_seq))
                found = intact(ref, rows, after_seq=after_seq, up_to_seq=up_to_seq)
            if found and found[0][0] > after_seq + 1:
                _check_hole(connection, ref, after_seq, found[0][0])
            return found

    @contextlib.contextmanager
    def _reading(self, ref: PartitionRef) -> Iterator[None]:
        try:
            with storage_errors(f"reading {ref}"):
                yield
        except (StorageFailed, CorruptRecord):
            self._close(ref)  # or pages of a damaged file would outlive it
            raise

    def _pages(
        self, ref: PartitionRef, *, after_seq: int, up_to_seq: int, rows: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Each is a read of its own; records never change, so nothing can slip between."""
        while page := self._rows(ref, after_seq=after_seq, up_to_seq=up_to_seq, limit=rows):
            yield [row[:CHECKSUM] for row in page]
            after_seq = page[-1][0]

    def _connection(self, ref: PartitionRef) -> apsw.Connection | None:
        """The connection to the file that is there now; None while there is none."""
        self._let_go_after_fork()
        opened, now_s = self._opened.get(ref), time.monotonic()
        if opened is not None:
            if not opened.files.replaced():
                opened.used_s = now_s
                return opened.connection
            self._close(ref)
        path = self._folder.log_file(ref)
        if not path.exists():
            return None
        self._close_idle(now_s)
        connection = connect_read_only(path, busy_timeout_ms=BUSY_TIMEOUT_MS)
        if connection is not None:
            self._opened[ref] = _Opened(connection, OpenFiles(connection, path), now_s)
        return connection

    def _close_idle(self, now_s: float) -> None:
        for ref in [r for r, one in self._opened.items() if now_s - one.used_s >= self._idle_s]:
            self._close(ref)

    def _close(self, ref: PartitionRef) -> None:
        opened = self._opened.pop(ref, None)
        if opened is not None:
            with contextlib.suppress(apsw.Error):
                opened.connection.close(True)

    def _let_go_after_fork(self) -> None:
        if self._pid != os.getpid():
            _left_behind.extend(opened.connection for opened in self._opened.values())
            self._opened.clear()
            self._pid = os.getpid()


@contextlib.contextmanager
def _given_out(connection: apsw.Connection, ref: PartitionRef, after_seq: int) -> Iterator[None]:
    """A record that is said to be corrupt has a seq that was given out: behind any other there is
    nothing to go on with."""
    try:
        yield
    except CorruptRecord as error:
        [(head,)] = connection.execute(HEAD)
        if error.seq <= head:
            raise
        raise out_of_order(ref, after_seq) from error


def _check_hole(
    connection: apsw.Connection, ref: PartitionRef, after_seq: int, first_seq: int
) -> None:
    """Raises unless it is a hole: the records in front of it are in order, and none of them is in
    it."""
    before = [seq for (seq,) in connection.execute(BEFORE, (first_seq,))]
    if any(seq > after_seq for seq in before[:1]):
        raise out_of_order(ref, after_seq)
    if before != sorted(before, reverse=True):
        raise corrupt_record(ref, after_seq + 1)  # what stands there says another seq


def _readable(
    connection: apsw.Connection, ref: PartitionRef, after_seq: int, limit: int
) -> list[tuple[Any, ...]]:
    """The rows behind a seq, up to a number of them: those before the first that SQLite can't make
    sense of. Raises CorruptRecord where that is the first one, and SQLite's error where the file is
    so damaged that nobody can tell which one that is."""
    wanted = after_seq, limit
    try:
        return list(_bounded(connection.execute(READ, wanted)))
    except (apsw.CorruptError, UnicodeDecodeError) as error:
        rows: list[tuple[Any, ...]] = []
        with contextlib.suppress(apsw.CorruptError, UnicodeDecodeError):
            rows.extend(_bounded(connection.execute(READ, wanted)))
        if rows:
            return rows
        seqs = [seq for (seq,) in connection.execute(NEXT_SEQS, (after_seq,))]
        # The seq in the record may be wrong, too; then it is the next one.
        seq = seqs[0] if after_seq < seqs[0] < min(seqs[1:], default=MAX_SEQ) else after_seq + 1
        raise corrupt_record(ref, seq, f"{error}") from error


def _bounded(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Up to the row with which the documents have READ_BYTES. One that is damaged may be anything:
    it is counted as nothing, and found out later."""
    size_bytes = 0
    for row in rows:
        yield row
        document, earlier = row[_DOCUMENT], row[_EARLIER]
        if type(document) is bytes:
            size_bytes += len(document)
        if type(earlier) is bytes:
            size_bytes += len(earlier)
        if size_bytes >= READ_BYTES:
            return
