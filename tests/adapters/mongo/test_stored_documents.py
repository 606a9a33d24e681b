"""Documents as snapshots read them, on a real server: each once, with a place in the stream."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import UUID

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.binary import UuidRepresentation

from headgate.adapters.mongo import stored_documents
from headgate.adapters.mongo.stream import MongoChangeStream
from headgate.model.event import Event
from tests.adapters.mongo.conftest import Database
from tests.adapters.mongo.reading import a_stream, documents, events
from tests.servers.mongodb import MongoReplicaSet

IMPATIENT_S = 0.01
FEW = 4


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_documents, "ROWS", FEW)


async def all_rows(stream: MongoChangeStream, collection: str) -> list[Event]:
    found: list[Event] = []
    behind: str | None = ""
    while behind is not None:
        chunk = await stream.chunk(collection, behind)
        async with asyncio.timeout(20):
            while stream.position < chunk.upto:
                await stream.next(IMPATIENT_S)
        found += chunk.rows
        behind = chunk.behind
    return found


async def test_every_kind_of_id_leads_on_to_the_next(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    """A condition on `_id` would see those of one type alone."""
    ids = [
        *range(6),
        Int64(2**40),
        2.5,
        Decimal128("7.5"),
        "text",
        "5",
        ObjectId(),
        {"a": 1},
        {"a": 1, "b": 2},
        Binary(b"\0\1"),
        Binary.from_uuid(UUID(int=5), UuidRepresentation.STANDARD),
        True,
        datetime(2026, 1, 2, tzinfo=UTC),
        Timestamp(3, 4),
        MinKey(),
        MaxKey(),
        None,
    ]
    async with a_stream(lone_mongodb.url, database=database.name) as stream:
        await database["mixed"].insert_many([{"_id": one, "n": 1} for one in ids])
        told = await events(stream, len(ids))
        assert not (await stream.next(IMPATIENT_S)).events
        async with asyncio.timeout(30):  # nothing has to happen for it to go on
            rows = await all_rows(stream, "mixed")
    assert {one.op for one in rows} == {"read"}
    assert sorted((one.key or "", one.document) for one in rows) == sorted(
        (one.key or "", one.document) for one in told
    )


async def test_rows_are_as_the_stream_has_told_and_no_newer(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    orders = database["orders"]
    await orders.insert_many([{"_id": number, "n": 0} for number in range(3)])
    async with a_stream(lone_mongodb.url, database=database.name) as stream:
        before = stream.position
        await orders.update_many({}, {"$set": {"n": 1}})
        chunk = await stream.chunk("orders", "")
        assert documents(list(chunk.rows)) == [{"_id": number, "n": 0} for number in range(3)]
        assert before == stream.position >= chunk.upto
        assert documents(await events(stream, 3)) == [{"_id": n, "n": 1} for n in range(3)]
        again = await stream.chunk("orders", "")
        assert documents(list(again.rows)) == [{"_id": number, "n": 1} for number in range(3)]


async def test_a_stream_that_is_far_behind_gets_what_is_there_now(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    """What the server doesn't remember any more, here because the collection is younger."""
    async with a_stream(lone_mongodb.url, database=database.name) as stream:
        await database["orders"].insert_many([{"_id": number} for number in range(3)])
        chunk = await stream.chunk("orders", "")
        assert len(chunk.rows) in (0, 3)
        if chunk.rows:
            assert stream.position < chunk.upto
        assert len(await events(stream, 3)) == 3


async def test_what_is_gone_or_never_was_has_no_rows(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    orders = database["orders"]
    await orders.insert_many([{"_id": number} for number in range(9)])
    async with a_stream(lone_mongodb.url, database=database.name) as stream:
        first = await stream.chunk("orders", "")
        assert first.behind
        await orders.drop()
        await events(stream, 1)
        gone = await stream.chunk("orders", first.behind)
        assert (gone.rows, gone.behind) == ([], None)
        never = await stream.chunk("never", "")
        assert (never.rows, never.behind) == ([], None)


async def test_collections_are_listed_and_nothing_else(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    await database["orders"].insert_one({"_id": 1})
    await database["items"].insert_many([{"_id": 1}, {"_id": 2}])
    await database.command({"create": "seen", "viewOn": "orders", "pipeline": []})
    async with a_stream(lone_mongodb.url, database=database.name) as stream:
        assert (await stream.listing()).collections == {"orders": 1, "items": 2}
    async with a_stream(lone_mongodb.url, database=database.name, collection="items") as one:
        assert (await one.listing()).collections == {"items": 2}
    async with a_stream(lone_mongodb.url) as every:
        listed = (await every.listing()).collections
        assert f"{database.name}.items" in listed
        assert not any(name.startswith(("admin.", "local.", "config.")) for name in listed)
        assert len(await all_rows(every, f"{database.name}.items")) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"capped": True, "size": 100_000},
        {"clusteredIndex": {"key": {"_id": 1}, "unique": True}},
        {"collation": {"locale": "de", "strength": 1}},
    ],
    ids=["capped", "clustered", "collated"],
)
async def test_special_collections_are_read_too(
    lone_mongodb: MongoReplicaSet, database: Database, options: dict[str, object]
) -> None:
    await database.command({"create": "special", **options})
    texts = ["b", "a", "ä", "C", "d", "e"]
    await database["special"].insert_many([{"_id": one} for one in texts if one != "ä"])
    async with a_stream(lone_mongodb.url, database=database.name) as stream:
        rows = await all_rows(stream, "special")
    assert sorted(one.key or "" for one in rows) == ["C", "a", "b", "d", "e"]
