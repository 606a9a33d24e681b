"""A database that was restored under those who use it: what was number 1 may be number 2 now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import psycopg
import pytest

from headgate.adapters.postgres.log_reader import PostgresLogReader
from headgate.adapters.postgres.log_writer import PostgresLogWriter
from headgate.errors import StorageFailed, StoreChanged
from headgate.model.event import Event, PartitionRef
from headgate.ports.log import Appended, Extent, Retention
from tests.servers.postgres import Postgres

ORDERS = PartitionRef("orders", 0)
PAYMENTS = PartitionRef("payments", 0)


class Database:
    """One in which o1 is in orders and p1 in payments, with those who use it."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.schema = f"restores_{uuid4().hex[:12]}"
        self.writer = PostgresLogWriter(dsn, schema=self.schema)
        self.reader = PostgresLogReader(dsn, schema=self.schema)

    async def start(self) -> None:
        for ref, event_id in [(ORDERS, "o1"), (PAYMENTS, "p1")]:
            await self.writer.open(ref, epoch=1)
            assert await self.append(ref, event_id) == [Appended(1)]
        assert await self.all() == [["o1"], ["p1"]]

    async def close(self) -> None:
        await self.writer.close()
        await self.reader.close()

    async def append(self, ref: PartitionRef, *ids: str) -> list[Appended]:
        return await self.writer.append(ref, [Event(i, b"{}") for i in ids], version=1, now_ms=1)

    async def all(self) -> list[list[str]]:
        found = [await self.reader.read(ref, after_seq=0, limit=9) for ref in (ORDERS, PAYMENTS)]
        return [[record.event_id for record in records] for records in found]

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn) as session:
            session.execute(f'SET search_path TO "{self.schema}"')
            for statement in statements:
                session.execute(statement)

    def swap_numbers(self) -> None:
        """As if payments had been made before orders, in what was restored."""
        self.run(
            *(f"ALTER TABLE {kind}_1 RENAME TO {kind}_was_1" for kind in ("records", "ids")),
            *(f"ALTER TABLE {kind}_2 RENAME TO {kind}_1" for kind in ("records", "ids")),
            *(f"ALTER TABLE {kind}_was_1 RENAME TO {kind}_2" for kind in ("records", "ids")),
            "CREATE TEMP TABLE before ON COMMIT DROP AS SELECT * FROM partitions",
            "UPDATE before SET number = 3 - number",
            "DELETE FROM partitions",
            "INSERT INTO partitions OVERRIDING SYSTEM VALUE SELECT * FROM before",
        )


@pytest.fixture
async def database(postgres: Postgres) -> AsyncIterator[Database]:
    opened = Database(postgres.dsn)
    await opened.start()
    yield opened
    await opened.close()


async def test_nothing_is_appended_to_the_partition_that_has_the_number_now(
    database: Database,
) -> None:
    database.swap_numbers()
    for ref in (ORDERS, PAYMENTS):
        with pytest.raises(StoreChanged, match="its number is another's"):
            await database.append(ref, "new")
        assert await database.append(ref, "new") == [Appended(2)], "looked up anew"
    assert await database.all() == [["o1", "new"], ["p1", "new"]]


async def test_the_partition_that_has_the_number_now_is_not_read(database: Database) -> None:
    database.swap_numbers()
    assert await database.all() == [["o1"], ["p1"]]
    assert await database.reader.extent(ORDERS) == Extent(1, 1)


async def test_no_other_call_touches_the_partition_that_has_the_number_now(
    database: Database,
) -> None:
    writer, drop_all = database.writer, Retention(max_bytes=1)

    async def restored() -> None:
        await writer.find(ORDERS, [])  # It knows the number that is the other's then.
        database.swap_numbers()

    await restored()
    with pytest.raises(StoreChanged):
        await writer.find(ORDERS, ["p1"])
    assert await writer.find(ORDERS, ["o1", "p1"]) == {"o1": 1}
    await restored()
    with pytest.raises(StoreChanged):
        await writer.retain(ORDERS, drop_all, settled=9, ids_ms=9, now_ms=1)
    await restored()
    with pytest.raises(StoreChanged):
        await writer.move_on(ORDERS, from_head=1, to_head=9)
    assert await database.all() == [["o1"], ["p1"]]
    await restored()
    await writer.drop_records(ORDERS, epoch=2)
    assert await database.all() == [[], ["p1"]]
    await writer.open(PAYMENTS, epoch=1)
    assert await database.append(PAYMENTS, "p2") == [Appended(2)], "neither sealed nor moved"


async def test_a_partition_that_was_made_after_the_backup_is_gone_and_not_a_mistake_of_the_producer(
    database: Database,
) -> None:
    database.run("DELETE FROM partitions WHERE topic = 'orders'", "DROP TABLE records_1, ids_1")
    for _ in range(2):
        with pytest.raises(StoreChanged) as refused:
            await database.append(ORDERS, "new")
        assert refused.value.status == 503
    assert await database.all() == [[], ["p1"]]
    assert await database.append(PAYMENTS, "p2") == [Appended(2)]
    await database.writer.open(ORDERS, epoch=1)
    await database.writer.move_on(ORDERS, from_head=0, to_head=50)
    assert await database.append(ORDERS, "new") == [Appended(51)]
    assert await database.all() == [["new"], ["p1", "p2"]]


async def test_tables_that_a_restore_left_over_belong_to_nobody(database: Database) -> None:
    """Their rows are gone with it, and their numbers are given out again."""
    left = PartitionRef("made later", 0)
    await database.writer.open(left, epoch=1)
    await database.append(left, "left over")
    database.run(
        "DELETE FROM partitions WHERE number = 3",
        "ALTER TABLE partitions ALTER COLUMN number RESTART WITH 3",
    )
    new = PartitionRef("new", 0)
    assert await database.writer.open(new, epoch=1) == Extent(1, 0)
    assert await database.append(new, "n1") == [Appended(1)]
    records = await database.reader.read(new, after_seq=0, limit=9)
    assert [record.event_id for record in records] == ["n1"]


async def test_a_scan_ends_where_the_partition_is_replaced_under_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.adapters.log.arrow.ARROW_BATCH_ROWS", 1)
    await database.append(ORDERS, "o2")
    scan = database.reader.read_arrow(ORDERS, after_seq=0, up_to_seq=9)
    assert scan.read_next_batch()["event_id"].to_pylist() == ["o1"]
    database.swap_numbers()
    with pytest.raises((StorageFailed, OSError), match="it was replaced; read it again"):
        scan.read_next_batch()
