"""Positions that were stored before there were tallies still load, and can be moved and reset."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import apsw
import pytest
from pymongo import AsyncMongoClient

from headgate.adapters.embedded.folder import DataFolder
from headgate.model.event import Fence, PartitionRef
from headgate.model.position import Position, Tally
from tests.contracts.stores import CHECKPOINTS, Opened, durable, etcd_connection

pytestmark = pytest.mark.parametrize("positions", durable(CHECKPOINTS), indirect=True)

REF = PartitionRef("flights", 0)

EMBEDDED = """
CREATE TABLE checkpoints (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    window INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    settled INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
PRAGMA user_version = 1;
INSERT INTO checkpoints VALUES ('flights', 0, 2, 5, 1, 42);
"""


async def _embedded(location: str) -> None:
    folder = DataFolder.open(location)
    connection = apsw.Connection(str(folder.checkpoints_file))
    connection.execute(EMBEDDED)
    connection.close()


async def _etcd(location: str) -> None:
    connection = etcd_connection(location)
    key = connection.key("checkpoints", REF.topic, REF.partition)
    stored = b'{"epoch":2,"window":5,"attempt":1,"settled":42,"version":1}'
    await connection.run(lambda client: client.put(key, stored), what="storing it")
    await connection.close()


async def _mongodb(location: str) -> None:
    database, _, url = location.partition(" ")
    async with AsyncMongoClient[dict[str, object]](url) as client:
        place: dict[str, object] = {"_id": "flights/0", "topic": "flights", "partition": 0}
        fence: dict[str, object] = {"epoch": 2, "window": 5, "attempt": 1, "version": 1}
        await client[database]["checkpoints"].insert_one(place | fence | {"settled": 42})


STORED: dict[str, Callable[[str], Awaitable[None]]] = {
    "embedded": _embedded,
    "etcd": _etcd,
    "mongodb": _mongodb,
}


@pytest.mark.parametrize("opened_twice", [False, True], ids=["once", "by two at once"])
async def test_a_position_without_a_tally_loads(positions: Opened, opened_twice: bool) -> None:
    await STORED[positions.adapter](positions.location)
    store = positions.checkpoints()
    if opened_twice:
        assert await positions.checkpoints().list() == {REF: Position(42)}
    assert await store.list() == {REF: Position(42)}
    assert await store.claim(REF, Fence(2, 5, 1)) == Position(42)
    await store.save(REF, Fence(2, 5, 1), 44, Tally(acknowledged=2))
    assert await store.list() == {REF: Position(44, Tally(acknowledged=2))}


async def test_a_position_without_a_tally_can_be_reset(positions: Opened) -> None:
    await STORED[positions.adapter](positions.location)
    store = positions.checkpoints()
    await store.reset(REF, Fence(3), 40)
    assert await store.claim(REF, Fence(3, 1)) == Position(40, redeliver_to=42)
