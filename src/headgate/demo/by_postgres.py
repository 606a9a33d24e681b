"""The demo's reports as rows of PostgreSQL, one per aircraft, which a connector reads.

A report replaces its aircraft's row; it is acknowledged when its commit is on disk. An aircraft is
always written over the same one of several connections, which share the waits for the disk. What is
sent while others are written is written with the next: each report is a transaction of its own all
the same.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import msgspec
import psycopg
from psycopg import sql

from headgate import errors
from headgate.client.http import HttpClient
from headgate.client.subscriber import Event
from headgate.decide.produce.placement import partition_of
from headgate.demo.aircraft import Report
from headgate.demo.postgresql import connected
from headgate.demo.ways_in import Numbered, Outcome
from headgate.model.connectors_api import ConnectorInfo, CreateConnector, RouteInfo

CONNECTOR = "aircraft"
TABLE = "flights"
CREATE_TIMEOUT_S = 40.0
CONNECTIONS = 8
_COLUMNS = (*Report.__struct_fields__, "number")
_TYPES = {"icao": "text PRIMARY KEY", "callsign": "text", "squawk": "text", "number": "bigint"}
_FLOATS = frozenset({"lat", "lon", "time_s"})


class _Named(msgspec.Struct):
    """What of a document says which report it is."""

    icao: str
    number: int


_decode = msgspec.json.Decoder(_Named).decode


@dataclass(slots=True)
class _Write:
    """Reports that are written together."""

    reports: list[Numbered] = field(default_factory=list)
    is_done: bool = False
    failure: errors.HeadgateError | None = None


class _Writer:
    """One connection, for the aircraft that are its own."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], upsert: sql.Composed) -> None:
        self.connection = connection
        self._upsert = upsert
        self._next = _Write()
        self._turn = asyncio.Lock()

    async def send(self, reports: Sequence[Numbered]) -> errors.HeadgateError | None:
        shared = self._next
        shared.reports += reports
        async with self._turn:
            if not shared.is_done:  # the first of the tasks that share it does it for all
                self._next = _Write()
                try:
                    await write(self.connection, self._upsert, shared.reports)
                except psycopg.Error as error:
                    shared.failure = errors.NotNow(
                        f"PostgreSQL didn't acknowledge {len(shared.reports)} writes: {error}"
                    )
                shared.is_done = True
        return shared.failure


def _writer_of(one: Numbered) -> int:
    return partition_of(one.report.icao, collection="", count=CONNECTIONS)


class ByPostgres:
    """Implements ways_in.WayIn."""

    def __init__(self, dsn: str, schema: str, topic: str, *, partitions: int) -> None:
        self._dsn = dsn
        self._schema = schema
        self._topic = topic
        self._partitions = partitions
        self._collection = f"{schema}.{TABLE}"
        self._writers: list[_Writer] = []

    async def prepare(self, http: HttpClient) -> None:
        """Raises NotNow until the connector reads: it begins with what is written from then on."""
        async with await connected(self._dsn) as connection:
            await make_table(connection, self._schema)
        try:
            await http.post(
                "/v1/connectors", self._wanted(), ConnectorInfo, timeout_s=CREATE_TIMEOUT_S
            )
        except errors.ConnectorExists:
            pass  # an earlier try made it
        info = await http.get(f"/v1/connectors/{CONNECTOR}", ConnectorInfo)
        if info.state != "running":
            why = f": {info.reason}" if info.reason else ""
            raise errors.NotNow(f"connector {CONNECTOR} is {info.state}{why}")

    def _wanted(self) -> CreateConnector:
        settings = {"dsn": self._dsn, "tables": self._collection}
        return CreateConnector(CONNECTOR, "postgresql", settings, [RouteInfo(self._topic)])

    async def __aenter__(self) -> Self:
        upsert = upsert_into(self._schema)
        for _ in range(CONNECTIONS):
            self._writers.append(_Writer(await connected(self._dsn), upsert))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for writer in self._writers:
            await writer.connection.close()

    async def send(self, reports: Sequence[Numbered]) -> list[Outcome]:
        shares: dict[int, list[Numbered]] = defaultdict(list)
        for one in reports:
            shares[_writer_of(one)].append(one)
        done = await asyncio.gather(
            *(self._writers[number].send(share) for number, share in shares.items())
        )
        failures = dict(zip(shares, done, strict=True))
        return [failures[_writer_of(one)] or self._partition_of(one) for one in reports]

    def _partition_of(self, one: Numbered) -> int:
        return partition_of(one.report.icao, collection=self._collection, count=self._partitions)

    def id_of(self, event: Event) -> str:
        named = _decode(event.raw)
        return f"{named.icao}-{named.number}"


async def make_table(connection: psycopg.AsyncConnection[Any], schema: str) -> None:
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(_type_of(name))) for name in _COLUMNS
    )
    await connection.execute(
        sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))
    )
    await connection.execute(
        sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(sql.Identifier(schema, TABLE), columns)
    )


def _type_of(name: str) -> Any:
    return _TYPES.get(name) or ("double precision" if name in _FLOATS else "integer")


def upsert_into(schema: str) -> sql.Composed:
    names = [sql.Identifier(name) for name in _COLUMNS]
    return sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT (icao) DO UPDATE SET {}").format(
        sql.Identifier(schema, TABLE),
        sql.SQL(", ").join(names),
        sql.SQL(", ").join(sql.Placeholder() for _ in names),
        sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(name) for name in names[1:]),
    )


async def write(
    connection: psycopg.AsyncConnection[Any], upsert: sql.Composed, reports: Sequence[Numbered]
) -> None:
    """Each in a transaction of its own, all in one round trip."""
    async with connection.pipeline(), connection.cursor() as cursor:
        for one in reports:
            await cursor.execute("BEGIN")
            await cursor.execute(upsert, (*msgspec.structs.astuple(one.report), one.number))
            await cursor.execute("COMMIT")
