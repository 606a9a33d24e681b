"""A stored position that can't be read: its partition waits, and no other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest
from pymongo import AsyncMongoClient

from headgate.adapters.embedded.folder import DataFolder
from headgate.errors import StorageFailed
from headgate.model.event import Fence, PartitionRef
from headgate.model.position import Position, Tally
from tests.contracts.stores import CHECKPOINTS, Opened, durable, etcd_connection

every_store = pytest.mark.parametrize("positions", durable(CHECKPOINTS), indirect=True)

REF = PartitionRef("flights", 0)
OTHER = PartitionRef("flights", 1)


async def _embedded(location: str) -> None:
    connection = apsw.Connection(str(DataFolder(Path(location)).checkpoints_file))
    connection.execute("UPDATE checkpoints SET tally = '{\"dead' WHERE partition = 0")
    connection.close()


async def _etcd(location: str) -> None:
    connection = etcd_connection(location)
    key = connection.key("checkpoints", REF.topic, REF.partition)
    spoilt = b'{"epoch":1,"window":0,"attempt":0,"settled":7,"stopped":"\xff"}'
    await connection.run(lambda client: client.put(key, spoilt), what="spoiling it")
    await connection.close()


async def _mongodb(location: str) -> None:
    database, _, url = location.partition(" ")
    async with AsyncMongoClient[dict[str, object]](url) as client:
        spoilt = {"$set": {"tally": "lost"}}
        await client[database]["checkpoints"].update_one({"_id": "flights/0"}, spoilt)


SPOIL: dict[str, Callable[[str], Awaitable[None]]] = {
    "embedded": _embedded,
    "etcd": _etcd,
    "mongodb": _mongodb,
}


@every_store
async def test_a_position_that_cannot_be_read_fails_only_those_who_want_it(
    positions: Opened,
) -> None:
    store, held = positions.checkpoints(), Fence(1)
    for ref in (REF, OTHER):
        await store.claim(ref, held)
        await store.save(ref, held, 7, Tally(dead=7))
    await SPOIL[positions.adapter](positions.location)
    failed, had = await asyncio.gather(
        store.claim(REF, Fence(2)), store.claim(OTHER, Fence(2)), return_exceptions=True
    )
    assert had == Position(7, Tally(dead=7))
    assert isinstance(failed, StorageFailed)
    assert re.search("flights[:/]0", failed.message)


@every_store
async def test_one_that_cannot_be_read_is_listed_as_such_beside_the_others(
    positions: Opened,
) -> None:
    store, held = positions.checkpoints(), Fence(1)
    for ref in (REF, OTHER):
        await store.claim(ref, held)
        await store.save(ref, held, 7, Tally(dead=7))
    await SPOIL[positions.adapter](positions.location)
    found = await store.list()
    assert found.pop(OTHER) == Position(7, Tally(dead=7))
    assert set(found) == {REF}
    assert re.search("flights[:/]0", found[REF].unreadable)


@pytest.mark.parametrize("positions", ["embedded"], indirect=True)
@pytest.mark.parametrize(
    "spoilt",
    [
        "settled = 'x'",
        "epoch = 'x'",
        "tally = x'00'",
        "tried = 3",
        "tally = CAST(x'fffe' AS TEXT)",
        "stopped = CAST(x'fffe' AS TEXT)",
        "settled = CAST(x'fffe' AS TEXT)",
    ],
)
async def test_a_column_may_hold_anything(positions: Opened, spoilt: str) -> None:
    """And spoils nothing for those that are listed, or saved, with it."""
    store = positions.checkpoints()
    for ref in (REF, OTHER):
        await store.claim(ref, Fence(1))
    connection = apsw.Connection(str(DataFolder(Path(positions.location)).checkpoints_file))
    connection.execute(f"UPDATE checkpoints SET {spoilt} WHERE partition = {REF.partition}")
    connection.close()
    found = await store.list()
    assert "is no position" in found[REF].unreadable
    assert found[OTHER] == Position(0)
    failed, had = await asyncio.gather(
        store.claim(REF, Fence(2)), store.claim(OTHER, Fence(2)), return_exceptions=True
    )
    assert had == Position(0)
    assert isinstance(failed, StorageFailed)
    assert "is no position" in failed.message
