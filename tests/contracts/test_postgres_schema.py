"""A schema in PostgreSQL that others made than whoever appends: the log needs more of it."""

from __future__ import annotations

from uuid import uuid4

import psycopg
import pytest

from headgate.adapters.postgres.letters import PostgresLetterStore
from headgate.adapters.postgres.log_reader import PostgresLogReader
from headgate.adapters.postgres.log_writer import PostgresLogWriter
from headgate.model.event import Event, PartitionRef
from headgate.ports.log import Appended
from tests.servers.postgres import Postgres

OLD, NEW = PartitionRef("flights", 0), PartitionRef("orders", 0)


async def append(dsn: str, schema: str, ref: PartitionRef) -> list[Appended]:
    writer = PostgresLogWriter(dsn, schema=schema)
    try:
        await writer.open(ref, epoch=1, version=1)
        return await writer.append(ref, [Event("a", b"{}")], version=1, now_ms=1)
    finally:
        await writer.close()


async def read(dsn: str, schema: str, ref: PartitionRef) -> list[str]:
    reader = PostgresLogReader(dsn, schema=schema)
    try:
        return [one.event_id for one in await reader.read(ref, after_seq=0, limit=10)]
    finally:
        await reader.close()


@pytest.fixture
def schema() -> str:
    return f"schema_{uuid4().hex[:12]}"


async def test_a_log_beside_letters_that_were_there_first(postgres: Postgres, schema: str) -> None:
    """As in every start of a whole system: the coordinator looks for letters before anything is
    appended."""
    letters = PostgresLetterStore(postgres.dsn, schema=schema)
    await letters.claim({})
    await letters.close()
    assert await append(postgres.dsn, schema, NEW) == [Appended(1)]
    assert await read(postgres.dsn, schema, NEW) == ["a"]


async def test_a_new_topic_in_a_schema_from_before_there_were_times(
    postgres: Postgres, schema: str
) -> None:
    await append(postgres.dsn, schema, OLD)
    with psycopg.connect(postgres.dsn, autocommit=True) as session:
        session.execute(f'DROP TABLE "{schema}".times')
        session.execute(f'UPDATE "{schema}".format SET version = 1')
    assert await append(postgres.dsn, schema, NEW) == [Appended(1)]
    assert await read(postgres.dsn, schema, NEW) == ["a"]
