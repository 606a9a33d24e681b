"""A database's changes through a connector, with real processes and a real replica set, while its
reader is killed, the topic repartitioned, the primary replaced and the coordinator killed.

Judged by a plain change stream that the test reads itself: what the database says it committed is
in the log, each change once, every key in the order of its commits, and the last record of every
key is what the database has.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Self

import msgspec
import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.model.event import PartitionRef, Record
from tests.servers.mongodb import MongoReplicaSet
from tests.system.cluster import PLAIN_ROUTER, Cluster
from tests.system.harness import create_topic, repartition_topic, until
from tests.system.test_repartition import is_final

SETTINGS = {
    "HEADGATE_COORDINATOR__TIMEOUT": "4s",
    "HEADGATE_COORDINATOR__CHECK_IN": "1s",
    "HEADGATE_COORDINATOR__REBALANCE": "1s",
}
DATABASE = "shop_under_fire"
KEYS = 30
PAUSE_S = 0.004
MOST_PARTITIONS = 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("connector") / "data"
    with Cluster(
        data, ingest_nodes=2, routers=1, settings=SETTINGS, router_program=PLAIN_ROUTER
    ) as running:
        yield running


class Shop:
    """A program that changes documents all the time, and another one that reads the change stream:
    what that says is what was committed."""

    def __init__(self, url: str) -> None:
        self.committed: list[tuple[str, str]] = []
        """Position and key, in the order of the stream."""
        self._client: MongoClient[dict[str, Any]] = MongoClient(url, w="majority")
        self.orders = self._client[DATABASE]["orders"]
        self._chance = random.Random(18)
        self._over = threading.Event()
        self._last: Any = None
        self._threads = [
            threading.Thread(target=self._buy, name="shop", daemon=True),
            threading.Thread(target=self._watch, name="ledger", daemon=True),
        ]
        self._watching = threading.Event()

    def __enter__(self) -> Self:
        self._threads[1].start()
        assert self._watching.wait(30)
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(30)
        self._client.close()

    def goes_on(self, changes: int) -> None:
        wanted = len(self.committed) + changes
        until(lambda: len(self.committed) >= wanted, f"the shop has made {changes} more changes")

    def close(self) -> None:
        """Commit one last change, and wait until the stream has told it."""
        self._over.set()
        self._threads[0].join(30)
        self._last = "last"
        # Which may have been written although its answer was lost: then nothing changes any more.
        last = {"_id": self._last}
        self._insist(lambda: self.orders.replace_one(last, last, upsert=True))
        self._threads[1].join(30)
        assert not any(thread.is_alive() for thread in self._threads)

    def _buy(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            self._insist(lambda: self._change(number))  # noqa: B023 - called at once
            self._over.wait(PAUSE_S)

    def _change(self, number: int) -> None:
        key = f"order-{self._chance.randrange(KEYS)}"
        match self._chance.randrange(10):
            case 0:
                self.orders.delete_one({"_id": key})
            case 1:
                with self._client.start_session() as session, session.start_transaction():
                    for one in (key, f"order-{self._chance.randrange(KEYS)}"):
                        self._put(one, number, session=session)
            case _:
                self._put(key, number)

    def _put(self, key: str, number: int, **options: Any) -> None:
        self.orders.replace_one({"_id": key}, {"_id": key, "n": number}, upsert=True, **options)

    def _insist(self, work: Any) -> None:
        until_s = time.monotonic() + 30
        while True:
            try:
                work()
            except PyMongoError:
                assert time.monotonic() < until_s, "the database doesn't come back"
                self._over.wait(0.1)
            else:
                return

    def _watch(self) -> None:
        after = None
        while True:
            try:
                with self._client[DATABASE].watch(
                    resume_after=after, max_await_time_ms=100
                ) as news:
                    self._watching.set()
                    while True:
                        change = news.try_next()
                        after = news.resume_token
                        if change is None:
                            continue
                        key = change["documentKey"]["_id"]
                        self.committed.append((change["_id"]["_data"], key))
                        if key == self._last:
                            return
            except PyMongoError:
                time.sleep(0.1)


def records_of(cluster: Cluster, topic: str) -> list[Record]:
    async def read() -> list[Record]:
        reader = EmbeddedLogReader(DataFolder.open(cluster.data))
        try:
            return [
                record
                for number in range(MOST_PARTITIONS)
                for record in await reader.read(
                    PartitionRef(topic, number), after_seq=0, limit=1_000_000
                )
            ]
        finally:
            await reader.close()

    return asyncio.run(read())


def reader_of(cluster: Cluster, name: str) -> str:
    """The ingest node that runs it, once one does."""
    found = [one for one in cluster.status()["connectors"] if one["name"] == name]
    return found[0]["node"] if found and found[0]["state"] == "running" else ""


def runs(cluster: Cluster, name: str) -> str:
    node: list[str] = []

    def found() -> bool:
        node[:] = [reader_of(cluster, name)]
        return bool(node[0])

    until(found, f"{name} is running")
    return node[0]


def test_every_change_is_in_the_log_once_and_in_order_whoever_dies(
    cluster: Cluster, mongodb: MongoReplicaSet
) -> None:
    create_topic(cluster.url, "orders", 4)
    created = cluster.command(
        *("connector", "create", "shop", "--type", "mongodb", "--uri", mongodb.url),
        *("--database", DATABASE, "--topic", "orders"),
    )
    assert created.wait() == 0, created.err.lines
    runs(cluster, "shop")
    with Shop(mongodb.url) as shop:
        shop.goes_on(100)
        node = runs(cluster, "shop")
        cluster.kill(node)
        shop.goes_on(100)
        cluster.start("ingest", node)
        repartition_topic(cluster.url, "orders", 6)
        shop.goes_on(100)
        mongodb.primary().admin("replSetStepDown", 5, force=True)
        shop.goes_on(100)
        cluster.kill("coordinator-1")
        cluster.start("coordinator", "coordinator-1")
        runs(cluster, "shop")
        until(lambda: is_final(cluster, "orders", 6), "it has 6 partitions", 90.0)
        repartition_topic(cluster.url, "orders", 3)
        shop.goes_on(100)
        shop.close()
        wanted = {position for position, _ in shop.committed}

        def all_there() -> bool:
            return {record.source for record in records_of(cluster, "orders")} >= wanted

        until(all_there, "everything is in the log", 60.0)
        judge(shop, records_of(cluster, "orders"))


def judge(shop: Shop, records: list[Record]) -> None:
    positions = [record.source for record in records]
    assert len(positions) == len(set(positions)), "a change is there twice"
    assert set(positions) == {position for position, _ in shop.committed}
    by_key: dict[str | None, list[Record]] = defaultdict(list)
    for record in records:
        by_key[record.key].append(record)
    committed: dict[str | None, list[str]] = defaultdict(list)
    for position, of in shop.committed:
        committed[of].append(position)
    for key, mine in by_key.items():
        mine.sort(key=lambda one: (one.version, one.seq))
        assert [one.source for one in mine] == committed[key], key
    there = {one["_id"]: one for one in shop.orders.find()}
    last = {key: mine[-1] for key, mine in by_key.items()}
    kept = {
        key: msgspec.json.decode(one.document) for key, one in last.items() if one.op != "delete"
    }
    assert kept == there
