"""One partition's log file and the transactions on it. Blocking: its writer thread calls it.

Invariants: `seq` is dense from 1 and never restarts; an idempotency key is given one seq only;
only the highest epoch that ever opened the file appends. Each of these is checked in the
transaction that writes, so that it holds between processes too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import apsw

from headgate.adapters.embedded.folder import make_directory
from headgate.adapters.embedded.schema import EXTENT, ID_COLUMNS, LOG_SCHEMA, RECORD_COLUMNS, rows
from headgate.adapters.embedded.sqlite import connect, detailed_code, storage_errors, transaction
from headgate.errors import Fenced, StorageFailed
from headgate.model.event import Event, PartitionRef
from headgate.ports.log import Appended, Extent

CHECKPOINT_PAGES = 1_000
"""4 MB of write-ahead log are moved into the file at a time. More at once was not faster, and the
appends that come meanwhile wait longer."""

ROWS_PER_STATEMENT = (64, 8, 1)
"""SQLite runs without the interpreter lock, and asks for it back after every statement. With one
statement per row a busy event loop made the rate swing between 2,000 and 80,000 rows/s; this way it
stayed between 14,000 and 70,000."""


class AppendRequest:
    """What one `append` call asked for. `weight` is roughly its memory, in bytes."""

    __slots__ = ("events", "now_ms", "version", "weight")

    EVENT_WEIGHT = 512

    def __init__(self, events: Sequence[Event], *, version: int, now_ms: int) -> None:
        self.events = events
        self.version = version
        self.now_ms = now_ms
        documents = sum([len(event.document) for event in events])
        self.weight = documents + self.EVENT_WEIGHT * (len(events) + 1)


class PartitionFile:
    def __init__(self, path: Path, ref: PartitionRef) -> None:
        self._ref = ref
        self._path = path
        self._what = f"the write to partition {ref.partition} of {ref.topic}"
        self._connection = self._connect()
        self._connection.set_wal_hook(self._on_commit)
        self._connection.pragma("cache_size", -16 * 1024)
        self._wal_pages = 0
        self._moved_pages = 0
        self._epoch: int | None = None

    def _connect(self) -> apsw.Connection:
        try:
            make_directory(self._path.parent)
            with storage_errors(f"opening partition {self._ref.partition} of {self._ref.topic}"):
                return connect(self._path, LOG_SCHEMA)
        except OSError as error:
            raise StorageFailed(
                f"{self._path.parent} can't be made ({error.strerror}); check its permissions"
            ) from error

    def open(self, epoch: int) -> Extent:
        """Become the writer under `epoch`; from now on every lower one is refused."""
        with transaction(self._connection, self._what):
            stored, _ = self._state()
            if stored > epoch:
                raise self._fenced(stored, epoch)
            if stored < epoch:
                self._connection.execute("UPDATE partition SET epoch = ?", (epoch,))
        self._epoch = epoch
        with storage_errors(self._what):
            [(earliest, head)] = self._connection.execute(EXTENT)
        return Extent(earliest, head)

    def append(self, requests: Sequence[AppendRequest]) -> list[list[Appended]]:
        """Write all of `requests` in one transaction; an answer for each, in order.

        Raises anything but a HeadgateError when values of one request can't be stored.
        Nearly every key is new, so they are written without asking; only when one turns out to be
        there already, the transaction starts over with what is known of them.
        """
        try:
            with transaction(self._connection, self._what):
                return self._append(requests, {})
        except apsw.ConstraintError as error:
            if detailed_code(error) != apsw.SQLITE_CONSTRAINT_PRIMARYKEY:
                raise
        with transaction(self._connection, self._what):
            ids = [event.event_id for request in requests for event in request.events]
            return self._append(requests, self._known(ids))

    def _append(
        self, requests: Sequence[AppendRequest], known: dict[str, int]
    ) -> list[list[Appended]]:
        head = first = self._writable_head()
        answers: list[list[Appended]] = []
        records: list[object] = []
        ids: list[object] = []
        for request in requests:
            version, now_ms = request.version, request.now_ms
            answer: list[Appended] = []
            for event in request.events:
                event_id = event.event_id
                seq = known.get(event_id)
                if seq is not None:
                    answer.append(Appended(seq, True))
                    continue
                head += 1
                known[event_id] = head
                ids += (event_id, head, now_ms)
                records += (
                    head,
                    version,
                    event_id,
                    event.key,
                    event.collection,
                    event.op,
                    event.document,
                    event.earlier,
                    event.source,
                    now_ms,
                )
                answer.append(Appended(head))
            answers.append(answer)
        if head > first:
            self._run("INSERT INTO ids VALUES ", ID_COLUMNS, ids)
            self._run("INSERT INTO records VALUES ", RECORD_COLUMNS, records)
            self._connection.execute("UPDATE partition SET head = ?", (head,))
        return answers

    def _known(self, ids: list[str]) -> dict[str, int]:
        lookup = "SELECT event_id, seq FROM ids WHERE event_id IN (VALUES "
        return dict(self._run(lookup, 1, ids, end=")"))

    def _run(
        self, start: str, columns: int, values: Sequence[object], *, end: str = ""
    ) -> list[tuple[str, int]]:
        """Run one statement over many rows of `values` at a time; what it returned for all."""
        found: list[tuple[str, int]] = []
        at = 0
        for count in ROWS_PER_STATEMENT:
            size = count * columns
            statement = start + rows(columns, count) + end
            while len(values) - at >= size:
                found += self._connection.execute(statement, values[at : at + size])
                at += size
        return found

    def drop_records(self) -> None:
        """Forget records and idempotency keys; head and epoch stay."""
        with transaction(self._connection, self._what):
            if self._epoch is not None:
                self._writable_head()
            self._connection.execute("DELETE FROM records; DELETE FROM ids")
        with storage_errors(self._what):
            self._connection.execute("PRAGMA incremental_vacuum").fetchall()

    def tidy(self) -> None:
        """Move the write-ahead log into the file when it has grown; no answer waits for it.

        When it can't be moved now, everything is still in the log: the next commit tries again.
        """
        # The log starts over once all of it was moved and no reader needs it.
        self._moved_pages = min(self._moved_pages, self._wal_pages)
        if self._wal_pages - self._moved_pages < CHECKPOINT_PAGES:
            return
        with contextlib.suppress(apsw.Error):
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._moved_pages = self._wal_pages

    def close(self) -> None:
        with contextlib.suppress(apsw.Error):
            self._connection.close(True)

    def _state(self) -> tuple[int, int]:
        [(epoch, head)] = self._connection.execute("SELECT epoch, head FROM partition")
        return epoch, head

    def _writable_head(self) -> int:
        stored, head = self._state()
        if self._epoch is None or stored != self._epoch:
            raise self._fenced(stored, self._epoch)
        return head

    def _fenced(self, stored: int, epoch: int | None) -> Fenced:
        mine = "it isn't open here" if epoch is None else f"epoch {epoch} came here"
        return Fenced(
            f"partition {self._ref.partition} of {self._ref.topic} belongs to epoch {stored}, "
            f"and {mine}; stop writing to it",
            partition=self._ref.partition,
            topic=self._ref.topic,
            epoch=stored,
        )

    def _on_commit(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK
