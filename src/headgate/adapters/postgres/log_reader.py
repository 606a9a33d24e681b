"""The log's reader on PostgreSQL, for any process that reaches the database.

Invariants: only committed records are seen; no transaction stays open between calls; every call
ends within its bound, also when the server is paused, and a caller that goes away doesn't wait for
that. What is read is the partition's own, also after a restore that numbered its tables anew. A
connection never crosses a fork. Never writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg.errors import UndefinedColumn, UndefinedTable

from headgate.adapters.log.appending import stored_positions
from headgate.adapters.log.checksum import CHECKSUM, corrupt_record, intact, verified
from headgate.adapters.log.times import LOOK_AT_ONCE
from headgate.adapters.postgres.connections import (
    TIMEOUT_S,
    Connections,
    Session,
    address,
    check_dsn,
    cut,
    session_settings,
)
from headgate.adapters.postgres.errors import storage_failed
from headgate.adapters.postgres.notices import SAFETY_S, Follower, Listener
from headgate.adapters.postgres.schema import (
    DEFAULT_SCHEMA,
    INTAKE_KEY_COLUMNS,
    PartitionStatements,
    SchemaStatements,
)
from headgate.errors import CorruptRecord, StorageFailed
from headgate.model.event import FIRST_SEQ, PartitionRef, Record
from headgate.model.intake import IntakePosition
from headgate.ports.log import READ_BYTES, Extent, Verified
from headgate.tasks import Crew

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

NOTHING_YET = Extent(FIRST_SEQ, 0)
MAX_SEQ = 2**63 - 1
MAX_CONNECTIONS = 4
READ_TIMEOUT_S = 10.0
"""A follower may ask for hundreds of documents of a mebibyte each."""
LOOKS = 2
"""What is remembered of a partition may be from before a restore; what was just found isn't."""
SCAN_TIMEOUT_S = 30.0
"""For one batch of a scan, which is larger than what a follower reads at a time."""


class PostgresLogReader:
    """Implements ports.log.LogReader."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        max_connections: int = MAX_CONNECTIONS,
        timeout_s: float = READ_TIMEOUT_S,
        safety_s: float = SAFETY_S,
    ) -> None:
        check_dsn(dsn)
        self._dsn = dsn
        self._schema = SchemaStatements(schema)
        self._connections = Connections(dsn, limit=max_connections, timeout_s=timeout_s)
        self._safety_s = safety_s
        self._statements: dict[PartitionRef, PartitionStatements] = {}
        self._listener: Listener | None = None
        self._crew = Crew("postgres")
        self._running: set[asyncio.Task[Any]] = set()

    async def extent(self, ref: PartitionRef) -> Extent:
        async def work(session: Session) -> Extent:
            if await self._find(session, ref) is None:
                return NOTHING_YET
            rows = await session.query(self._schema.extent, (ref.topic, ref.partition))
            return Extent(*rows[0]) if rows else NOTHING_YET

        return await self._run(work, ref)

    async def read(self, ref: PartitionRef, *, after_seq: int, limit: int) -> list[Record]:
        stored = _texts(ref, await self._stored(ref, after_seq=after_seq, limit=limit))
        rows = intact(ref, stored, after_seq=after_seq)
        topic, partition = ref.topic, ref.partition
        return [Record(topic, partition, *row[:CHECKSUM]) for row in rows]

    async def verify(self, ref: PartitionRef, *, after_seq: int, limit: int) -> Verified | None:
        try:
            rows = _texts(ref, await self._stored(ref, after_seq=after_seq, limit=limit))
        except CorruptRecord as error:
            return Verified(error.seq, 0, 0, (error.seq,))
        return verified(ref, rows, after_seq=after_seq) if rows else None

    async def _stored(
        self, ref: PartitionRef, *, after_seq: int, limit: int
    ) -> list[tuple[Any, ...]]:
        values = _range(ref, after_seq=after_seq, up_to_seq=MAX_SEQ, limit=limit)

        async def work(session: Session) -> list[tuple[Any, ...]]:
            for _ in range(LOOKS if limit > 0 else 0):
                statements = await self._find(session, ref)
                if statements is None:
                    break
                with contextlib.suppress(UndefinedTable, UndefinedColumn):
                    if rows := await session.query(statements.read, values):
                        return _records(rows)
                self._statements.pop(ref, None)
            return []

        return await self._run(work, ref)

    async def first_since(self, ref: PartitionRef, time_ms: int) -> int:
        whose = {"topic": ref.topic, "partition": ref.partition, "time_ms": time_ms}
        extent = await self.extent(ref)

        async def marked(session: Session) -> int:
            [(exists,)] = await session.query(self._schema.has_times)
            if not exists:
                return 0
            [(seq,)] = await session.query(self._schema.mark_before, whose)
            return int(seq)

        begin = max(extent.earliest, await self._run(marked, ref))
        for first in range(begin, extent.head + 1, LOOK_AT_ONCE):
            values = whose | {"first": first, "end": first + LOOK_AT_ONCE}
            found = await self._run(partial(self._since, ref, values), ref)
            if found is not None:
                return found
        return extent.head + 1

    async def _since(
        self, ref: PartitionRef, values: dict[str, Any], session: Session
    ) -> int | None:
        statements = await self._find(session, ref)
        rows = [] if statements is None else await session.query(statements.since, values)
        if not rows:
            self._statements.pop(ref, None)
            raise StorageFailed(f"reading {ref} failed: it was replaced; read it again")
        return None if rows[0][0] is None else int(rows[0][0])

    async def find(self, ref: PartitionRef, event_ids: Sequence[str]) -> dict[str, int]:
        values = {
            "topic": ref.topic,
            "partition": ref.partition,
            "ids": [event_id.encode("utf-8", "surrogatepass") for event_id in event_ids],
        }

        async def work(session: Session) -> list[tuple[Any, ...]]:
            for _ in range(LOOKS):
                statements = await self._find(session, ref)
                if statements is None:
                    break
                with contextlib.suppress(UndefinedTable):
                    if rows := await session.query(statements.find, values):
                        return rows
                self._statements.pop(ref, None)
            return []

        found = await self._run(work, ref)
        return {event_id.decode(): seq for event_id, seq in found if event_id is not None}

    async def taken_in(self, ref: PartitionRef, connector: str) -> list[IntakePosition]:
        whose = {"topic": ref.topic, "partition": ref.partition, "connector": connector.encode()}

        async def work(session: Session) -> list[tuple[Any, ...]]:
            [(exists,)] = await session.query(self._schema.has_intakes)
            return await session.query(self._schema.intakes, whose) if exists else []

        return stored_positions(row[INTAKE_KEY_COLUMNS:] for row in await self._run(work, ref))

    def read_arrow(
        self, ref: PartitionRef, *, after_seq: int, up_to_seq: int
    ) -> pa.RecordBatchReader:
        """Blocks, over a connection of its own: it is for tasks that have no event loop."""
        from headgate.adapters.log.arrow import ARROW_BATCH_ROWS, batches_of

        bounds = {"after_seq": after_seq, "up_to_seq": up_to_seq}
        return batches_of(ref, self._pages(ref, **bounds, rows=ARROW_BATCH_ROWS))

    def follow(
        self, refs: Sequence[PartitionRef]
    ) -> AbstractAsyncContextManager[AsyncIterator[frozenset[PartitionRef]]]:
        return self._follow(refs)

    async def close(self) -> None:
        if self._listener is not None and self._listener.belongs_here:
            await self._listener.close()
        self._listener = None
        if self._running:
            await asyncio.wait(self._running)
        await self._connections.close()

    @asynccontextmanager
    async def _follow(
        self, refs: Sequence[PartitionRef]
    ) -> AsyncIterator[AsyncIterator[frozenset[PartitionRef]]]:
        if self._listener is None or not self._listener.belongs_here:
            self._listener = Listener(self._dsn, self._schema)
        async with Follower(self._listener, refs, safety_s=self._safety_s) as follower:
            yield follower

    async def _run(self, work: Callable[[Session], Awaitable[T]], ref: PartitionRef) -> T:
        # A statement that is cancelled would have to wait for the server's word on it.
        reading = self._connections.run(work, what=f"reading {ref}")
        task = self._crew.start("log reader", reading, awaited=True)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _find(self, session: Session, ref: PartitionRef) -> PartitionStatements | None:
        if ref not in self._statements:
            [(exists,)] = await session.query(self._schema.exists)
            if not exists:
                return None
            rows = await session.query(self._schema.numbered, (ref.topic, ref.partition))
            if not rows:
                return None
            [(number, is_present)] = rows
            if not is_present:
                # The owner that opens it changes that: it is looked at again with every read until
                # then.
                return PartitionStatements(self._schema.schema, number, former=True)
            self._statements[ref] = PartitionStatements(self._schema.schema, number)
        return self._statements[ref]

    # --- without an event loop -------------------------------------------------------------------

    def _pages(
        self, ref: PartitionRef, *, after_seq: int, up_to_seq: int, rows: int
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Each is a read of its own; records never change, so nothing can slip between."""
        with _Scan(self._dsn, ref) as scan:
            if not scan.query(self._schema.exists)[0][0]:
                return
            found = scan.query(self._schema.numbered, (ref.topic, ref.partition))
            if not found:
                return
            [(number, is_present)] = found
            statements = PartitionStatements(self._schema.schema, number, former=not is_present)
            while True:
                values = _range(ref, after_seq=after_seq, up_to_seq=up_to_seq, limit=rows)
                found = scan.query(statements.read, values)
                if not found:
                    raise StorageFailed(f"reading {ref} failed: it was replaced; read it again")
                stored = _texts(ref, _records(found))
                records = intact(ref, stored, after_seq=after_seq, up_to_seq=up_to_seq)
                if not records:
                    return
                yield [row[:CHECKSUM] for row in records]
                after_seq = records[-1][0]


def stored_partitions(dsn: str, *, schema: str = DEFAULT_SCHEMA) -> list[PartitionRef]:
    """Every partition that has tables in the database, also those of deleted topics."""
    statements = SchemaStatements(schema)
    with _Scan(dsn, "the stored partitions") as scan:
        if not scan.query(statements.exists)[0][0]:
            return []
        return [PartitionRef(*row) for row in scan.query(statements.stored)]


class _Scan:
    """A blocking connection for one scan; each of its statements is bounded in time."""

    def __init__(self, dsn: str, what: object) -> None:
        self._what = f"reading {what}"
        try:
            self._connection = psycopg.connect(**address(dsn, TIMEOUT_S), autocommit=True)
            self.query(session_settings(SCAN_TIMEOUT_S))
        except psycopg.Error as error:
            raise storage_failed(error, self._what) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def query(self, query: Any, values: Any = None) -> list[tuple[Any, ...]]:
        timer = threading.Timer(SCAN_TIMEOUT_S, cut, [self._connection])
        timer.daemon = True
        timer.start()
        try:
            cursor = self._connection.cursor(binary=values is not None).execute(query, values)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise storage_failed(error, self._what) from error
        finally:
            timer.cancel()


def _range(ref: PartitionRef, *, after_seq: int, up_to_seq: int, limit: int) -> dict[str, Any]:
    """What `PartitionStatements.read` takes."""
    return {
        "topic": ref.topic,
        "partition": ref.partition,
        "after": after_seq,
        "up_to": up_to_seq,
        "limit": limit,
        "limit_bytes": READ_BYTES,
    }


def _records(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The records of an answer, by seq: an answer without any is one row of nothing."""
    if rows[0][0] is None:
        return []
    rows.sort(key=itemgetter(0))  # A join promises no order, though it keeps the one it finds.
    return rows


def _texts(ref: PartitionRef, rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows with their free text, which is stored as bytes: those before the first of which that
    can't be read. Raises CorruptRecord where that is the first one."""
    read: list[tuple[Any, ...]] = []
    try:
        read.extend(map(_text, rows))
    except UnicodeDecodeError as error:
        if not read:
            raise corrupt_record(ref, rows[0][0], f"{error}") from error
    return read


def _text(row: Sequence[Any]) -> tuple[Any, ...]:
    seq, version, event_id, key, collection, op, document, earlier, source, time_ms, *more = row
    return (
        seq,
        version,
        event_id.decode(),
        None if key is None else key.decode(),
        collection.decode(),
        op,
        document,
        earlier,
        None if source is None else source.decode(),
        time_ms,
        *more,
    )
