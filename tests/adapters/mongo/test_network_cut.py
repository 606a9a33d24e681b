"""A connector whose network to MongoDB is cut, in every way: through a socket proxy, with a real
server, a real reader and a log in memory.

Judged by a plain change stream that goes round the proxy: each change is in the log once, every key
in the order of its commits, and the last record of every key is what the database has.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate.adapters.mongo import deployment
from headgate.adapters.mongo import stream as stream_module
from headgate.adapters.mongo.origin import MongoOrigin
from headgate.errors import OriginUnavailable
from headgate.model.connector import BEGIN_NOW, Connector
from headgate.model.event import Event
from headgate.ports.origin import PATIENCE_S
from tests.adapters.mongo.conftest import Database
from tests.adapters.mongo.reading import a_stream, an_origin, no_secrets
from tests.servers.cut import CutNetwork
from tests.servers.mongodb import MongoReplicaSet, collect_sockets
from tests.services.ingest.connectors.intake_stage import NAME, ONE, TWO, Stage

KEYS = 7
SOON_MS = 500
"""How soon the driver notices that nobody answers; it is 5 s, and no less than this."""
PAUSE_S = 0.005


class MongoStage(Stage):
    """Its connector reads a real database."""

    def __init__(self, uri: str, database: str) -> None:
        super().__init__()
        self._settings = {"uri": uri, "database": database}

    def _open_origin(self, _connector: Connector) -> Any:
        self.opened += 1
        return MongoOrigin(self._settings, name=NAME, resolve=no_secrets)


async def shop(database: Database, over: asyncio.Event) -> None:
    """Changes documents all the time, some of them in transactions."""
    number = 0
    while not over.is_set():
        number += 1
        key = f"k{number % KEYS}"
        async with database.client.start_session() as session:
            if number % 5 == 0:
                await session.start_transaction()
                await database.orders.delete_one({"_id": key}, session=session)
            await database.orders.replace_one(
                {"_id": key}, {"n": number}, upsert=True, session=session
            )
            if session.in_transaction:
                await session.commit_transaction()
        await asyncio.sleep(PAUSE_S)
    await database.orders.insert_one({"_id": "last"})


async def ledger(database: Database, watching: asyncio.Event) -> list[Event]:
    """What the database says it committed, up to the last."""
    found: list[Event] = []
    async with await database.watch() as stream:
        watching.set()
        async for change in stream:
            key, position = change["documentKey"]["_id"], change["_id"]["_data"]
            found.append(Event("", b"", key, "update", "orders", None, position))
            if key == "last":
                return found
    raise AssertionError("the stream ends only with the test")


@pytest.fixture
async def network(lone_mongodb: MongoReplicaSet) -> AsyncIterator[CutNetwork]:
    async with CutNetwork(lone_mongodb.nodes[0].port) as network:
        yield network
    # PyMongo leaves a connection that broke to the garbage collector, which warns of it.
    await asyncio.sleep(0)
    collect_sockets()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_nothing_is_lost_or_repeated_when_the_network_is_cut(
    network: CutNetwork, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEARTBEAT_MS", "CONNECT_TIMEOUT_MS", "SELECTION_TIMEOUT_MS"):
        monkeypatch.setattr(deployment, name, SOON_MS)
    watching, over = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(90), asyncio.TaskGroup() as group:
        committed = group.create_task(ledger(database, watching))
        await watching.wait()
        uri = f"mongodb://127.0.0.1:{network.port}/?directConnection=true"
        stage = MongoStage(uri, database.name)
        await stage.start(ONE, TWO)
        await stage.publish()
        await stage.until_state("running")
        buying = group.create_task(shop(database, over))
        for cut in (network.refuse, network.break_off, network.swallow):
            await goes_on(stage, 50)
            cut()
            await stage.until_state("retrying")
            if cut == network.swallow:
                await stage.repartition(6)
                stage.move_connector(TWO)
                await stage.publish()
            network.mend()
            await stage.until_state("running")
        await goes_on(stage, 50)
        over.set()
        await buying
        changes = await committed
        await stage.until(lambda: stage.taken() >= {one.source for one in changes})
        await stage.stop()
        assert network.lost > 1, "answers were lost on their way"
        stage.judge(changes)
        last = {one.key: one for one in sorted(stage.records(), key=lambda one: one.source or "")}
        documents = {key: json.loads(one.document) for key, one in last.items()}
        assert documents == {one["_id"]: one async for one in database.orders.find()}


async def test_a_server_that_searches_for_long_is_waited_for(
    lone_mongodb: MongoReplicaSet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks through all that others changed before it says anything; who gives up before that
    never gets on."""
    async with a_stream(lone_mongodb.url, database=database.name) as stream:
        position = stream.position
    monkeypatch.setattr(deployment, "ANSWER_TIMEOUT_MS", PATIENCE_S * 1_000 // 2)
    async with a_stream(lone_mongodb.url, database=database.name, after=position) as stream:
        assert not (await stream.next()).events, "which takes it PATIENCE_S"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_what_takes_no_search_is_answered_soon_or_given_up(
    network: CutNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody has noticed yet that the server is gone."""
    uri = f"mongodb://127.0.0.1:{network.port}/?directConnection=true"
    async with an_origin(uri) as origin:
        async with origin.open("", begin_at=BEGIN_NOW):
            pass
        monkeypatch.setattr(deployment, "ANSWER_TIMEOUT_MS", SOON_MS // 2)
        network.swallow()
        with pytest.raises(OriginUnavailable, match="no answer"):
            async with asyncio.timeout(4), origin.open("", begin_at=BEGIN_NOW):
                pass
        network.mend()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_reader_ends_soon_whatever_mongodb_says(
    network: CutNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may search for an hour; who pauses, deletes or moves a connector doesn't wait for that,
    nor does a next try wait for the leave that is taken of a server that hangs."""
    monkeypatch.setattr(deployment, "CLOSE_TIMEOUT_S", SOON_MS / 1_000)
    monkeypatch.setattr(stream_module, "FORGET_TIMEOUT_S", SOON_MS / 1_000)
    reading = asyncio.Event()

    async def read() -> None:
        uri = f"mongodb://127.0.0.1:{network.port}/?directConnection=true"
        async with an_origin(uri) as origin, origin.open("", begin_at=BEGIN_NOW) as stream:
            await stream.next()
            network.swallow()
            reading.set()
            await stream.next()

    reader = asyncio.ensure_future(read())
    await reading.wait()
    reader.cancel()
    ended, _ = await asyncio.wait([reader], timeout=4)
    assert ended
    assert reader.cancelled()


async def goes_on(stage: Stage, records: int) -> None:
    wanted = len(stage.records()) + records
    await stage.until(lambda: len(stage.records()) >= wanted, timeout_s=30.0)
