"""Reads the rows of published tables, chunk by chunk, for snapshots.

Each chunk is one transaction of its own, by the index of the key, so nothing is kept open at the
server; a table that changes in between is read as it is then. What a chunk has to say about its
place in the stream: it lacks nothing that the stream told before it was asked for, and everything
in it was committed before `upto`, which is where a message of ours stands in the WAL.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult

from headgate.adapters.pgoutput import catalog
from headgate.adapters.pgoutput.database import ANSWER_TIMEOUT_S, Connection, Database, bounded
from headgate.adapters.pgoutput.decoding import Decoding
from headgate.adapters.pgoutput.identity import Timelines, lsn_from
from headgate.adapters.pgoutput.messages import OWN_PREFIX, Column, Relation
from headgate.adapters.pgoutput.publication import GENERATED_SINCE, Publication
from headgate.adapters.pgoutput.rows import Table
from headgate.adapters.pgoutput.visibility import visible_from
from headgate.decide.connectors.postgres_settings import ALL_OF_SCHEMA
from headgate.errors import ChangeTooLarge, OriginRefused, OriginUnavailable
from headgate.model.chunk import Chunk
from headgate.model.event import Event
from headgate.ports.origin import Listing

ROWS = 4_000
BYTES = 4 * 1024 * 1024
"""A chunk ends with the rows that reach one of these."""
FIRST_FETCH, FETCH = 50, 1_000
"""So many rows come at once, at first and when it is known how large they are."""
CHUNK_TIMEOUT_S = 120.0
LOOK_EVERY_S, WAIT_S = 0.05, 10.0
"""How often, and for how long, what was told is waited for to be seen."""

AWAY = Chunk([], "", None, is_away=True)
"""Of a table that is dropped, has another name, or isn't published: PostgreSQL tells none of it,
nor that it is there again."""
_GONE = frozenset({"42P01", "3F000"})
"""No such table, or schema."""
_LISTING = """
SELECT n.nspname, c.relname, c.reltuples::bigint, EXISTS (
    SELECT FROM pg_publication_tables p
    WHERE p.pubname = %s AND p.schemaname = n.nspname AND p.tablename = c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
"""
_TABLE = """
SELECT c.oid::bigint, c.relkind::text,
  ARRAY(SELECT ARRAY[a.attname, a.atttypid::bigint::text, format_type(a.atttypid, a.atttypmod),
      a.attgenerated::text]
    FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum),
  ARRAY(SELECT a.attname
    FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = c.oid AND k.place <= i.indnkeyatts
      AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false
        ELSE i.indisprimary END
    ORDER BY k.place),
  to_jsonb(p) -> 'attnames', to_jsonb(p) ->> 'rowfilter',
  current_setting('server_version_num')::int
FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = %s AND p.schemaname = %s AND p.tablename = %s
"""


_BEGIN = sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
_SEEN = sql.SQL("SELECT pg_current_snapshot()::text")
_FETCH = sql.SQL("FETCH {} FROM chunk")
_ROLLBACK = sql.SQL("ROLLBACK")
_MARK = sql.SQL("SELECT pg_logical_emit_message(true, {}, '')::text").format(OWN_PREFIX)


class Described(msgspec.Struct, frozen=True):
    """A table as it is now: the columns that are published, each with type and the name of that,
    those of the key in the order of its index, and which rows are published."""

    oid: int
    is_partitioned: bool
    columns: Sequence[tuple[str, int, str]]
    key: Sequence[str]
    only: str | None

    @property
    def mark(self) -> list[Any]:
        """Another one where keys mean something else than before."""
        types = {name: oid for name, oid, _ in self.columns}
        return [self.oid, [[name, types[name]] for name in self.key]]


class Tables:
    """For one open stream. `decoding` knows what that has told."""

    def __init__(
        self,
        database: Database,
        publication: Publication,
        decoding: Decoding,
        timelines: Timelines,
    ) -> None:
        self._database = database
        self._publication = publication
        self._decoding = decoding
        self._timelines = timelines
        self._connection: Connection | None = None
        self._noted_from = 0
        """Transactions below may have been told before anybody took notes."""

    async def listing(self) -> Listing:
        """Raises psycopg's errors."""
        rows = await self._database.rows(_LISTING, (self._publication.name,))
        lacking = {str(one) for one in await self._publication.lacking()}
        sizes: dict[str, int | None] = {}
        unread = set()
        for schema, table, size, is_read in rows:
            name = f"{schema}.{table}"
            # A snapshot of a table that was made anew brings its changes along, too.
            if is_read or name in lacking or f"{schema}.{ALL_OF_SCHEMA}" in lacking:
                sizes[name] = None if size < 0 else size
            else:
                unread.add(name)
        messages = self._database.settings.messages
        if messages and messages not in sizes:
            unread.add(messages)  # no table lacks what it never had
        return Listing(sizes, frozenset(unread))

    async def chunk(self, collection: str, behind: str) -> Chunk:
        """Raises psycopg's errors, and what the port says."""
        try:
            if not behind and (lacking := await self._publication.lacking_for(collection)):
                # Who wrote before that, and is still at it, isn't told: rows are to have that, too.
                self._decoding.told = None
                await self._publication.publish(lacking)
            connection = await self._connected()
            async with bounded(connection, CHUNK_TIMEOUT_S):
                return await self._chunk(connection, collection, behind)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                await self._connection.close()
            self._connection = None

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = await self._database.connect()
            # Policies would leave rows out without a word: with this it is an error. And a message
            # need not be at any standby to have a place.
            await self._connection.execute("SET row_security = off")
            await self._connection.execute("SET synchronous_commit = local")
            # Who gives up waiting must not leave a server process that waits on.
            await self._connection.execute("SET lock_timeout = '10s'")
        if self._decoding.told is None:
            self._decoding.told = set()
            try:
                async with bounded(self._connection, ANSWER_TIMEOUT_S):
                    cursor = await self._connection.execute(
                        "SELECT pg_current_xact_id()::text::bigint"
                    )
                    [(self._noted_from,)] = await cursor.fetchall()
            except BaseException:
                self._decoding.told = None  # nobody knows what was told before
                raise
        return self._connection

    async def _chunk(self, connection: Connection, collection: str, behind: str) -> Chunk:
        schema, _, name = collection.partition(".")
        try:
            return await self._locked_chunk(connection, schema, name, behind)
        except psycopg.Error as error:
            if error.sqlstate in _GONE:
                return AWAY
            raise

    async def _locked_chunk(
        self, connection: Connection, schema: str, name: str, behind: str
    ) -> Chunk:
        collection = f"{schema}.{name}"
        async with self._seeing_all(connection, sql.Identifier(schema, name)):
            found = await (
                await connection.execute(_TABLE, (self._publication.name, schema, name))
            ).fetchall()
            if not found:
                return AWAY
            described = _described(collection, found[0])
            table = await self._table(schema, name, described)
            begins = _key_from(behind, described)
            rows, last, is_whole = await self._read(
                connection, collection, described, table, begins
            )
            lsn = await _one(connection, _ROLLBACK, _MARK)
        upto = str(self._timelines.at(lsn_from(lsn) or 0))
        next_one = None if is_whole else _to_text([described.mark, last])
        return Chunk(rows, upto, next_one)

    @contextlib.asynccontextmanager
    async def _seeing_all(
        self, connection: Connection, table: sql.Identifier
    ) -> AsyncIterator[None]:
        """A transaction in which all is there that the stream had told when this was called. It
        locks the table before it sees any of it: to a transaction that saw it before, a table that
        is rewritten (ALTER TABLE) is empty afterwards."""
        lock = sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(table)
        told = frozenset(self._decoding.told or ())
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while True:
            try:
                seen = visible_from(await _one(connection, _BEGIN, lock, _SEEN))
                before = {xid for xid in seen.open if xid < self._noted_from}
                if not (lacking := seen.lacking(told) | before):
                    # What is seen once is seen for good.
                    if self._decoding.told is not None:
                        self._decoding.told = seen.lacking(self._decoding.told)
                    yield
                    return
            finally:
                if connection.info.transaction_status != TransactionStatus.IDLE:
                    await connection.execute(_ROLLBACK)
            if asyncio.get_running_loop().time() > deadline:
                raise OriginUnavailable(
                    f"rows can't be read before the transaction {min(lacking)} has ended, which "
                    "was open when the snapshot began; end it, or wait"
                )
            await asyncio.sleep(LOOK_EVERY_S)

    async def _table(self, schema: str, name: str, described: Described) -> Table:
        """How its rows become documents, as those of its changes do."""
        converters = self._decoding.converters
        unknown = sorted({oid for _, oid, _ in described.columns if converters.unknown(oid)})
        for oid, info in (await catalog.types(self._database, unknown)).items():
            converters.learn(oid, info)
        columns = tuple(Column(one, oid, one in described.key) for one, oid, _ in described.columns)
        relation = Relation(described.oid, schema, name, "d", columns)
        return Table(relation, [one.name for one in columns if one.is_key], converters)

    async def _read(
        self,
        connection: Connection,
        collection: str,
        described: Described,
        table: Table,
        begins: Sequence[str] | None,
    ) -> tuple[list[Event], Sequence[str], bool]:
        """Rows, the key of the last, and whether they are all that there are."""
        names = [name for name, *_ in described.columns]
        places = [names.index(name) for name in described.key]
        rows: list[Event] = []
        last: Sequence[str] = ()
        size, most = 0, FIRST_FETCH
        before = [_declared(collection, described, begins)]
        while size < BYTES and len(rows) < ROWS:
            result = await _last(connection, *before, _FETCH.format(sql.Literal(most)))
            before = []
            value, there = result.get_value, range(result.ntuples)
            columns = [[value(at, column) for at in there] for column in range(result.nfields)]
            found = _rows(collection, table, columns)
            size += sum([len(one.document) for one in found])
            rows += found
            if found:
                last = [str(columns[place][-1] or b"", "utf-8") for place in places]
            if result.ntuples < most:
                return rows, last, len(rows) < ROWS
            fits = max(1, (BYTES - size) * len(rows) // max(size, 1))
            most = max(1, min(FETCH, ROWS - len(rows), fits))
        return rows, last, False


_to_text_encoder = msgspec.json.Encoder().encode
_from_text = msgspec.json.Decoder(tuple[list[Any], list[str]]).decode


def _to_text(value: object) -> str:
    return _to_text_encoder(value).decode()


async def _last(connection: Connection, *statements: sql.Composable) -> PGresult:
    """What the last of them gave. They go in one trip: to wait for each takes longer than what
    they do."""
    cursor = await connection.execute(sql.SQL("; ").join(statements), prepare=False)
    while cursor.nextset():
        pass
    assert cursor.pgresult is not None, "every statement has a result"
    return cursor.pgresult


async def _one(connection: Connection, *statements: sql.Composable) -> str:
    """The only value that the last of them gave."""
    return str((await _last(connection, *statements)).get_value(0, 0) or b"", "utf-8")


def _described(collection: str, row: Sequence[Any]) -> Described:
    oid, kind, columns, key, published, only, version = row
    found = [
        (name, int(type_oid), type_name)
        for name, type_oid, type_name, generated in columns
        if (published is None or name in published)
        and (not generated or (published is not None and version >= GENERATED_SINCE))
    ]
    names = {name for name, *_ in found}
    if not key or not names.issuperset(key):
        raise OriginRefused(
            f"{collection} has no key by which its rows could be read: give it a primary key, or "
            "REPLICA IDENTITY USING INDEX with a unique index"
        )
    return Described(oid, kind == "p", found, key, only)


def _key_from(behind: str, described: Described) -> Sequence[str] | None:
    """None: from the first row on, also where keys were another before."""
    if not behind:
        return None
    mark, key = _from_text(behind)
    return key if mark == described.mark else None


def _declared(collection: str, described: Described, begins: Sequence[str] | None) -> sql.Composed:
    schema, _, name = collection.partition(".")
    types = {column: type_name for column, _, type_name in described.columns}
    key = sql.SQL(", ").join(map(sql.Identifier, described.key))
    conditions: list[sql.Composable] = [sql.SQL("true")]
    if begins is not None:
        values = sql.SQL(", ").join(
            sql.SQL("{}::{}").format(sql.Literal(value), _as_is(types[column]))
            for column, value in zip(described.key, begins, strict=True)
        )
        conditions.append(sql.SQL("({}) > ({})").format(key, values))
    if described.only is not None:
        conditions.append(_as_is(described.only))
    return sql.SQL(
        "DECLARE chunk NO SCROLL CURSOR FOR SELECT {} FROM {}{} WHERE {} ORDER BY {} LIMIT {}"
    ).format(
        sql.SQL(", ").join(sql.Identifier(column) for column, *_ in described.columns),
        sql.SQL("" if described.is_partitioned else "ONLY "),
        sql.Identifier(schema, name),
        sql.SQL(" AND ").join(conditions),
        key,
        sql.Literal(ROWS),
    )


def _as_is(text: str) -> sql.SQL:
    """What the server itself has written: a type, or a publication's row filter."""
    return sql.SQL(text)


def _rows(collection: str, table: Table, columns: Sequence[Sequence[bytes | None]]) -> list[Event]:
    try:
        return [
            Event("", document, key, "read", collection) for key, document in table.rows(columns)
        ]
    except ValueError as error:
        raise ChangeTooLarge(
            f"a row of {collection} can't become a record ({error}): mend that",
            what=f"a row of {collection}",
            position="",
        ) from error
