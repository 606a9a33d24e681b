"""One PostgreSQL, shared by the tests that only use it; each has its own database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from tests.servers.postgres import Postgres

_NUMBERS = count(1)


class Database:
    """A connection of its own beside the connector's, and where both connect to."""

    def __init__(self, server: Postgres, name: str, connection: Any) -> None:
        self.server = server
        self.name = name
        self.connection: psycopg.AsyncConnection[Any] = connection

    @property
    def dsn(self) -> str:
        return self.server.dsn.replace("dbname=postgres", f"dbname={self.name}")

    async def run(self, statement: LiteralString, values: Any = None) -> list[tuple[Any, ...]]:
        cursor = await self.connection.execute(statement, values)
        return await cursor.fetchall() if cursor.description else []

    async def unread(self, slot: str) -> None:
        """Wait for the end of its reader, who is there for a moment after his connection's end."""
        query = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        async with asyncio.timeout(20):
            while await self.run(query, (slot,)) == [(True,)]:  # noqa: ASYNC110 - the server's state
                await asyncio.sleep(0.01)


@pytest.fixture(scope="session")
def lone_postgres() -> Iterator[Postgres]:
    with Postgres(max_prepared_transactions="4") as server:
        yield server


async def _has_slots(admin: psycopg.AsyncConnection[Any], database: str) -> bool:
    """Drops those that nobody reads any more: a reader that was ended is there for a moment."""
    rows = await admin.execute(
        "SELECT slot_name, active FROM pg_replication_slots WHERE database = %s", (database,)
    )
    slots = await rows.fetchall()
    for slot, is_active in slots:
        if not is_active:
            with contextlib.suppress(psycopg.errors.ObjectInUse):
                await admin.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    return bool(slots)


@pytest.fixture
async def database(lone_postgres: Postgres) -> AsyncIterator[Database]:
    """Nobody else's, and new; its slots go with it."""
    name = f"test{next(_NUMBERS)}"
    async with await psycopg.AsyncConnection.connect(lone_postgres.dsn, autocommit=True) as admin:
        await admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        dsn = lone_postgres.dsn.replace("dbname=postgres", f"dbname={name}")
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            yield Database(lone_postgres, name, connection)
        await admin.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            "WHERE database = %s AND active",
            (name,),
        )
        async with asyncio.timeout(20):
            while await _has_slots(admin, name):  # noqa: ASYNC110 - the server's state
                await asyncio.sleep(0.01)
        await admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
