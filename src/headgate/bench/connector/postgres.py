"""What `bench connector` reads of PostgreSQL: a backlog in its log, and a table's rows.

The backlog is behind an LSN that every slot has: one is made before it is written, and copied for
each round, because a connector lets its slot forget what it has read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from headgate.bench.connector.bare_postgres import BareRead
from headgate.demo.aircraft import Fleet
from headgate.demo.by_postgres import TABLE, make_table, upsert_into, write
from headgate.demo.postgresql import connected
from headgate.demo.ways_in import Numbered
from headgate.model.connectors_api import CreateConnector, RouteInfo

SCHEMA = "backlog"
ROWS = f"{SCHEMA}.rows"
NAME = "backlog"
"""Of the publication, and of the slot that the others are copies of."""
AIRCRAFT = 400
SEED = 1
WRITES = 500
"""Transactions in one round trip."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """`changes` behind `lsn`, and as many rows in a table that nobody changes."""

    dsn: str
    lsn: str
    changes: int

    @property
    def bare_changes(self) -> BareRead:
        return BareRead(self.dsn, self.changes, slot=NAME, publication=NAME, lsn=self.lsn)

    @property
    def bare_rows(self) -> BareRead:
        return BareRead(self.dsn, self.changes, table=ROWS)

    async def reading(self, name: str) -> CreateConnector:
        """A connector that reads the changes, into a topic of its name."""
        slot = f"{NAME}_{name.replace('-', '_')}"
        async with await connected(self.dsn) as connection:
            await connection.execute(
                "SELECT pg_copy_logical_replication_slot(%s, %s)", (NAME, slot)
            )
        settings = {"dsn": self.dsn, "publication": NAME, "slot": slot}
        return CreateConnector(
            name, "postgresql", settings, [RouteInfo(name)], f"position:{self.lsn}"
        )

    async def snapshot(self, name: str) -> CreateConnector:
        """A connector that reads the rows."""
        settings = {"dsn": self.dsn, "tables": ROWS}
        return CreateConnector(name, "postgresql", settings, [RouteInfo(name)], snapshot=True)


async def backlog(dsn: str, changes: int) -> Backlog:
    """Write it: reports of aircraft, each a transaction that replaces the one before it."""
    async with await connected(dsn) as connection:
        await make_table(connection, SCHEMA)
        await connection.execute(
            sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(
                sql.Identifier(NAME), sql.Identifier(SCHEMA, TABLE)
            )
        )
        found = await connection.execute(
            "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (NAME,)
        )
        [(lsn,)] = await found.fetchall()
        # What it holds is known to be there when it is read.
        await connection.execute("SET synchronous_commit = off")
        fleet = Fleet(seed=SEED, count=AIRCRAFT)
        upsert = upsert_into(SCHEMA)
        for begin in range(0, changes, WRITES):
            numbers = range(begin, min(begin + WRITES, changes))
            reports = [Numbered(number, fleet.report(number, number / 10)) for number in numbers]
            await write(connection, upsert, reports)
        await _fill(connection, fleet, changes)
        await connection.execute("SET synchronous_commit = on")
        await connection.execute("SELECT pg_current_xact_id()")  # on disk, with all before it
    return Backlog(dsn, lsn, changes)


async def _fill(connection: psycopg.AsyncConnection[Any], fleet: Fleet, rows: int) -> None:
    """A table of reports, each under a key of its own."""
    schema, _, name = ROWS.partition(".")
    table = sql.Identifier(schema, name)
    await connection.execute(
        sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS)").format(
            table, sql.Identifier(SCHEMA, TABLE)
        )
    )
    copying = sql.SQL("COPY {} FROM STDIN").format(table)
    async with connection.cursor() as cursor, cursor.copy(copying) as copy:
        for number in range(rows):
            report = fleet.report(number, number / 10)
            await copy.write_row((*msgspec.structs.astuple(report), number))
    await connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY (number)").format(table))
    await connection.execute(sql.SQL("VACUUM ANALYZE {}").format(table))
