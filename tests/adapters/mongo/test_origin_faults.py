"""Faults of a real MongoDB: the primary goes, history is lost, a change is too large."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from typing import Any

import pytest
from bson import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError
from pymongo.write_concern import WriteConcern

from headgate.adapters.mongo.stream import BATCH
from headgate.errors import ChangeTooLarge, OriginHistoryLost, OriginUnavailable
from headgate.model.connector import BEGIN_NOW
from headgate.model.event import Event
from headgate.ports.origin import ChangeStream, Origin, Standing
from tests.adapters.mongo.conftest import Database
from tests.adapters.mongo.reading import a_stream, an_origin, documents, events
from tests.servers.mongodb import MongoReplicaSet, collect_sockets
from tests.waiting import until

IMAGES = {"enabled": True}
LARGE = "x" * 8_600_000
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def three() -> Iterator[MongoReplicaSet]:
    with MongoReplicaSet() as servers:
        yield servers


async def write(url: str, done: list[int], enough: Callable[[], bool]) -> None:
    """One document after the other, and on through elections; in `done` are the numbers of those
    that were acknowledged by a majority."""
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(url, retryWrites=True)
    target = client.load.get_collection("a", write_concern=WriteConcern("majority"))
    numbers = count()
    while not enough():
        with contextlib.suppress(AutoReconnect, OperationFailure):
            number = next(numbers)
            await target.replace_one({"_id": number % 7}, {"n": number}, upsert=True)
            done.append(number)
    await client.close()
    collect_sockets()


async def take_all(stream: ChangeStream, found: list[Event]) -> None:
    """Read on until that fails."""
    while True:
        found += (await stream.next()).events


async def step_down(servers: MongoReplicaSet) -> None:
    await asyncio.to_thread(
        lambda: servers.primary().admin("replSetStepDown", 4, secondaryCatchUpPeriodSecs=3)
    )


async def kill(servers: MongoReplicaSet) -> None:
    node = await asyncio.to_thread(servers.primary)
    await asyncio.to_thread(node.kill)
    await asyncio.to_thread(node.start)


# PyMongo leaves a connection that broke to the garbage collector, which warns of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fault", [step_down, kill])
async def test_nothing_is_lost_when_the_primary_goes(
    three: MongoReplicaSet, fault: Callable[[MongoReplicaSet], Coroutine[Any, Any, None]]
) -> None:
    found: list[Event] = []
    done: list[int] = []
    away = 0
    async with (
        an_origin(three.url, database="load") as origin,
        asyncio.timeout(2 * PATIENCE_S),
        asyncio.TaskGroup() as group,
    ):
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            position = stream.position
        broken: asyncio.Event = asyncio.Event()
        writing = group.create_task(
            write(three.url, done, lambda: broken.is_set() and len(done) > 200)
        )
        await until(lambda: len(done) > 50)
        group.create_task(fault(three)).add_done_callback(lambda _: broken.set())
        while not (writing.done() and found and number(found[-1]) >= done[-1]):
            try:
                async with origin.open(position, begin_at=BEGIN_NOW) as stream:
                    while not (writing.done() and found and number(found[-1]) >= done[-1]):
                        found += (await stream.next()).events
                        position = stream.position
            except OriginUnavailable:
                away += 1
                await asyncio.sleep(0.05)
    numbers = [number(event) for event in found]
    assert away > 0, "the fault was noticed"
    # In order, none twice; and what a client wasn't told of may still be there.
    assert numbers == sorted(set(numbers))
    assert set(done) <= set(numbers)
    positions = [str(event.source) for event in found]
    assert positions == sorted(set(positions))


def number(event: Event) -> int:
    found: int = json.loads(event.document)["n"]
    return found


async def test_lost_history_is_said_at_once() -> None:
    """To who opens a stream behind it, and to who has one open."""
    with MongoReplicaSet(1, oplog_mb=1) as server:
        client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(server.url)
        async with an_origin(server.url, database="d") as origin:
            async with origin.open("", begin_at=BEGIN_NOW) as stream:
                await client.d.a.insert_one({"_id": -1})
                assert len(await events(stream, 1)) == 1
                lost = stream.position
                await roll_over(client, lost)
                with pytest.raises(OriginHistoryLost, match="reset"):
                    await events(stream, BATCH + 1)  # a batch may have been asked for before that
            with pytest.raises(OriginHistoryLost, match="reset"):
                async with origin.open(lost, begin_at=BEGIN_NOW) as stream:
                    await stream.next()
            with pytest.raises(OriginHistoryLost):
                async with origin.open("", begin_at="time:2026-01-01T00:00:00Z") as stream:
                    await stream.next()
            findings = {one.what: one for one in await origin.check()}
            standing = await counted(origin, lost)
        await client.close()
        collect_sockets()
    assert findings["history"].verdict == "warning"
    assert "minRetentionHours" in findings["history"].sentence
    assert standing.history_ms is not None
    assert standing.behind


async def counted(origin: Origin, position: str) -> Standing:
    """The first standing that says how many changes are behind `position`: while the oplog's
    beginning is being removed, or where the count takes too long, nobody can tell."""
    async with asyncio.timeout(PATIENCE_S):
        while (standing := await origin.standing(position)).behind is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return standing


async def roll_over(client: AsyncMongoClient[dict[str, Any]], position: str) -> None:
    """Write until the oplog begins behind `position`."""
    seconds = int(position[2:10], 16)
    number = 0
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await client.d.filler.insert_many(
                [{"_id": number + n, "x": "x" * 500_000} for n in range(10)]
            )
            number += 10
            first = await client.local["oplog.rs"].find_one({}, sort=[("$natural", 1)])
            if first is not None and first["ts"].time > seconds:
                return


async def test_a_change_that_is_too_large_stops_at_itself_and_can_be_passed(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    await database.create_collection("a", changeStreamPreAndPostImages=IMAGES)
    settings = {"database": database.name}
    found: list[Event] = []
    async with an_origin(lone_mongodb.url, **settings) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            await database.a.insert_one({"_id": "big", "x": LARGE})
            await database.a.insert_many([{"_id": n} for n in range(3)])
            await database.a.update_one({"_id": "big"}, {"$set": {"n": 1}})
            await database.a.insert_many([{"_id": n} for n in range(3, 6)])
            await database.a.update_one({"_id": "big"}, {"$set": {"n": 2}})
            await database.a.insert_one({"_id": 6})
            refused: list[ChangeTooLarge] = []
            for _ in range(2):
                with pytest.raises(ChangeTooLarge) as stopped:
                    await take_all(stream, found)
                refused.append(stopped.value)
            behind = stream.position
        assert refused[0].position == refused[1].position > behind == found[-1].source
        assert refused[0].what == f"update of {database.name}.a _id=big"
        assert "skip" in str(refused[0])
        async with origin.open(refused[0].position, begin_at=BEGIN_NOW) as stream:
            with pytest.raises(ChangeTooLarge) as stopped:
                await take_all(stream, found)
        async with origin.open(stopped.value.position, begin_at=BEGIN_NOW) as stream:
            found += await events(stream, 1)
    assert [event.key for event in found] == [
        "big",
        *map(str, range(7)),
    ]
    async with a_stream(lone_mongodb.url, **settings, earlier="off", after=behind) as stream:
        assert len(documents(await events(stream, 6))) == 6


NO_UUID = b"\x05%b\x00\x00\x00\x00\x00\x03"
"""A field. PyMongo reads no UUID of another length than 16, and the server stores one."""


def raw_document(*fields: bytes) -> RawBSONDocument:
    body = b"".join(fields) + b"\x00"
    return RawBSONDocument((len(body) + 4).to_bytes(4, "little") + body)


async def test_a_change_whose_document_cant_be_decoded_stops_at_itself(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    """The update itself can be: it has no document, and the one that is looked up can't be. Those
    before it, which are looked up along with it, come first."""
    raw: Any = database.get_collection("a")
    await raw.insert_one(raw_document(b"\x10_id\x00\x01\x00\x00\x00", NO_UUID % b"u"))
    await database.a.insert_many([{"_id": 0}, {"_id": 2}])
    async with an_origin(lone_mongodb.url, database=database.name) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            for number in range(3):
                await database.a.update_one({"_id": number}, {"$set": {"n": number}})
            found: list[Event] = []
            refused: list[ChangeTooLarge] = []
            for _ in range(2):
                with pytest.raises(ChangeTooLarge, match="decoded") as stopped:
                    await take_all(stream, found)
                refused.append(stopped.value)
        assert refused[0].position == refused[1].position
        assert refused[0].what == f"update of {database.name}.a _id=1"
        async with origin.open(refused[0].position, begin_at=BEGIN_NOW) as stream:
            found += await events(stream, 1)
    assert documents(found) == [{"_id": 0, "n": 0}, {"_id": 2, "n": 2}]


async def test_a_change_whose_key_cant_be_decoded_stops_at_itself(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    raw: Any = database.get_collection("a")
    async with an_origin(lone_mongodb.url, database=database.name) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            await raw.insert_one(raw_document(NO_UUID % b"_id"))
            await database.a.insert_one({"_id": 2})
            with pytest.raises(ChangeTooLarge, match="decoded") as stopped:
                await take_all(stream, [])
        assert stopped.value.what == f"insert of {database.name}.a"
        async with origin.open(stopped.value.position, begin_at=BEGIN_NOW) as stream:
            assert documents(await events(stream, 1)) == [{"_id": 2}]


async def test_a_change_that_cant_be_decoded_stops_at_itself(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    wrong = raw_document(b"\x10_id\x00\x01\x00\x00\x00", NO_UUID % b"u")
    async with an_origin(lone_mongodb.url, database=database.name) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            await database.a.insert_one({"_id": 0})
            raw = database.get_collection("a")
            await raw.insert_one(wrong)
            await database.a.insert_one({"_id": 2})
            found: list[Event] = []
            with pytest.raises(ChangeTooLarge, match="decoded") as stopped:
                await take_all(stream, found)
        async with origin.open(stopped.value.position, begin_at=BEGIN_NOW) as stream:
            found += await events(stream, 1)
    assert documents(found) == [{"_id": 0}, {"_id": 2}]
    assert stopped.value.what.endswith("_id=1")


async def test_a_position_that_history_doesnt_hold_is_lost_history(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    """As after a restore: the oplog has its time, and another change there."""
    async with an_origin(lone_mongodb.url, database=database.name) as origin:
        async with origin.open("", begin_at=BEGIN_NOW) as stream:
            await database.a.insert_one({"_id": 1})
            (event,) = await events(stream, 1)
        elsewhere = str(event.source).replace("2B020004", "2B040004")
        assert elsewhere != event.source
        await database.a.insert_one({"_id": 2})
        with pytest.raises(OriginHistoryLost):
            async with origin.open(elsewhere, begin_at=BEGIN_NOW) as stream:
                await stream.next()


async def test_a_quiet_stream_does_not_move_past_a_position_that_history_doesnt_hold(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    """The server says so with the first change behind it, and lets the stream move on before
    that: whoever opens it again there would never hear of it. The change is another database's."""
    elsewhere = database.client[f"{database.name}_elsewhere"]
    async with a_stream(lone_mongodb.url, database=elsewhere.name) as stream:
        await elsewhere.a.insert_one({"_id": 1})
        (event,) = await events(stream, 1)
    await elsewhere.a.insert_one({"_id": 2})
    with pytest.raises(OriginHistoryLost, match="reset"):
        async with a_stream(
            lone_mongodb.url, database=database.name, after=str(event.source)
        ) as stream:
            await events(stream, 1)
    assert stream.position == event.source


@pytest.mark.parametrize("last", ["insert", "transaction", "invalidate"])
async def test_a_quiet_stream_moves_on_behind_what_history_holds(
    lone_mongodb: MongoReplicaSet, database: Database, last: str
) -> None:
    settings = {"database": database.name, "collection": "a"}
    elsewhere = database.client[f"{database.name}_elsewhere"]
    await database.create_collection("a")
    async with a_stream(lone_mongodb.url, **settings) as stream:
        if last == "transaction":
            three = [{"_id": number} for number in range(3)]
            async with database.client.start_session() as session:
                await session.with_transaction(
                    lambda within: database.a.insert_many(three, session=within)
                )
        else:
            await database.a.insert_one({"_id": 1})
        if last == "invalidate":
            await database.a.drop()
        found = await events(stream, {"insert": 1, "invalidate": 2, "transaction": 3}[last])
        while stream.position == found[-1].source and last == "invalidate":
            await stream.next()
        position = stream.position if last == "invalidate" else str(found[-1].source)
    await elsewhere.a.insert_one({"_id": 2})
    async with a_stream(lone_mongodb.url, **settings, after=position) as stream:
        async with asyncio.timeout(PATIENCE_S):
            while stream.position == position:
                assert not (await stream.next()).events


async def test_a_cursor_that_the_server_forgot_is_an_outage(
    lone_mongodb: MongoReplicaSet, database: Database
) -> None:
    async with a_stream(lone_mongodb.url, database=database.name) as stream:
        await stream.next()
        command = {"killCursors": "$cmd.aggregate", "cursors": [Int64(stream._cursor)]}
        with contextlib.suppress(PyMongoError):
            await database.command(command)
        await database.a.insert_one({"_id": 1})
        with pytest.raises(OriginUnavailable):
            await stream.next()
