"""Snapshots with real processes and real servers, racing with writes, while the reader is killed
half-way and the topic is repartitioned: every change that the database committed is in the log
once, in order per key, and the log's last state of every key is the table's.

Then what the database lost without a word is found by comparing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psycopg
import pytest
from pymongo import MongoClient

from headgate.model.event import Record
from tests.adapters.pgoutput.workload import TABLE, by_key, committed, set_up, shop, table
from tests.servers.mongodb import MongoReplicaSet
from tests.servers.postgres import Postgres
from tests.system.cluster import PLAIN_ROUTER, Cluster
from tests.system.harness import create_topic, repartition_topic, until
from tests.system.test_connector import SETTINGS, Shop, records_of, runs

ROWS = 15_000
SLOW = ("--set", "snapshot_rows_per_s=3000")
"""So that there is a half-way."""
QUIET = "public.quiet"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("connector-snapshots") / "data"
    with Cluster(
        data, ingest_nodes=2, routers=1, settings=SETTINGS, router_program=PLAIN_ROUTER
    ) as running:
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as running:
        asyncio.run(set_up(running.dsn))
        with psycopg.connect(running.dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE quiet (id int PRIMARY KEY, n int)")
            connection.execute(
                "INSERT INTO quiet SELECT i, 0 FROM generate_series(1, %s) i", (ROWS,)
            )
        yield running


def command(cluster: Cluster, *words: str) -> None:
    run = cluster.command("connector", *words)
    assert run.wait() == 0, run.err.lines


def snapshots_of(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    found = [one for one in cluster.status()["connectors"] if one["name"] == name]
    return list(found[0]["snapshots"]) if found else []


def is_half_way(cluster: Cluster, name: str) -> Callable[[], bool]:
    def look() -> bool:
        found = snapshots_of(cluster, name)
        return bool(found) and 0 < found[0]["rows"] < ROWS

    return look


def has_gone_on(cluster: Cluster, name: str) -> Callable[[], bool]:
    """The rows that the killed node had left may be few: then they are there before one looks."""
    is_under_way = is_half_way(cluster, name)
    return lambda: is_under_way() or not snapshots_of(cluster, name)


def states(records: list[Record], collection: str) -> dict[str, Any]:
    """What somebody has who has read all of the log."""
    found: dict[str, Any] = {}
    for record in sorted(records, key=lambda one: (one.version, one.seq)):
        if record.collection != collection or record.key is None:
            continue
        if record.op == "delete":
            found.pop(record.key, None)
        else:
            found[record.key] = msgspec.json.decode(record.document)
    return found


def test_rows_of_postgresql_join_the_stream_without_a_gap(
    cluster: Cluster, server: Postgres
) -> None:
    over = threading.Event()
    buying = threading.Thread(target=lambda: asyncio.run(shop(server.dsn, over.is_set)))
    create_topic(cluster.url, "rows", 4)
    buying.start()
    try:
        until(lambda: _count(server.dsn) > 50, "there is something to be read")
        command(
            cluster,
            *("create", "pg", "--type", "postgresql", "--dsn", server.dsn, "--snapshot"),
            *("--table", TABLE, "--table", QUIET, "--topic", "rows", *SLOW),
        )
        until(is_half_way(cluster, "pg"), "the snapshot is half-way", 60.0)
        node = runs(cluster, "pg")
        cluster.kill(node)
        cluster.start("ingest", node)
        until(has_gone_on(cluster, "pg"), "the snapshot goes on", 60.0)
        repartition_topic(cluster.url, "rows", 6)
        until(lambda: not snapshots_of(cluster, "pg"), "the snapshot is done", 90.0)
    finally:
        over.set()
        buying.join(60)
    wanted = {str(number): {"id": number, "n": 0} for number in range(1, ROWS + 1)}
    there = asyncio.run(table(server.dsn))
    until(
        lambda: states(records_of(cluster, "rows"), TABLE) == there, "the last change is there", 60
    )
    records = records_of(cluster, "rows")
    assert states(records, QUIET) == wanted
    _judge_changes(server.dsn, [one for one in records if one.collection == TABLE])
    _repair(cluster, server, wanted)


def _repair(cluster: Cluster, server: Postgres, wanted: dict[str, Any]) -> None:
    """The slot is gone, and with it what was deleted meanwhile."""
    command(cluster, "pause", "pg")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        until(lambda: not _is_read(connection), "nobody reads the slot")
        connection.execute("SELECT pg_drop_replication_slot('headgate_pg')")
        connection.execute("DELETE FROM quiet WHERE id % 100 = 7")
        connection.execute("UPDATE quiet SET n = 1 WHERE id % 100 = 8")
    command(cluster, "resume", "pg")

    def state() -> str:
        return str(
            next(one["state"] for one in cluster.status()["connectors"] if one["name"] == "pg")
        )

    until(lambda: state() == "history-lost", "the loss is said", 60.0)
    command(cluster, "reset", "pg", "--to", "snapshot", "--yes")
    until(lambda: not snapshots_of(cluster, "pg"), "the snapshot is done", 90.0)
    left = {key: row for key, row in wanted.items() if int(key) % 100 != 7}
    left |= {key: row | {"n": 1} for key, row in left.items() if int(key) % 100 == 8}
    records = records_of(cluster, "rows")
    assert states(records, QUIET) == left
    deleted = [one.key for one in records if one.collection == QUIET and one.op == "delete"]
    assert len(deleted) == len(set(deleted)) == ROWS // 100
    command(cluster, "delete", "pg", "--yes")


def _is_read(connection: psycopg.Connection[Any]) -> bool:
    query = "SELECT active FROM pg_replication_slots WHERE slot_name = 'headgate_pg'"
    return bool(connection.execute(query).fetchall()[0][0])


def _count(dsn: str) -> int:
    return sum(map(len, asyncio.run(committed(dsn)).values()))


def _judge_changes(dsn: str, records: list[Record]) -> None:
    """Of each key, the changes since the connector began are there, once each, in order."""
    ledger = asyncio.run(committed(dsn))
    records.sort(key=lambda one: (one.version, one.seq))
    told = by_key(one for one in records if one.op != "read")
    for key, entries in told.items():
        assert entries == ledger[key][len(ledger[key]) - len(entries) :], key
    positions = [one.source for one in records]
    assert len(positions) == len(set(positions))


def test_documents_of_mongodb_join_the_stream_without_a_gap(
    cluster: Cluster, mongodb: MongoReplicaSet
) -> None:
    client: MongoClient[dict[str, Any]] = MongoClient(mongodb.url, w="majority")
    create_topic(cluster.url, "documents", 4)
    with Shop(mongodb.url) as buying:
        buying.orders.delete_many({})
        name = buying.orders.database.name
        quiet = client[name]["quiet"]
        quiet.drop()
        quiet.insert_many([{"_id": number, "n": 0} for number in range(ROWS)])
        buying.goes_on(50)
        command(
            cluster,
            *("create", "mg", "--uri", mongodb.url, "--database", name, "--snapshot"),
            *("--topic", "documents", *SLOW),
        )
        until(is_half_way(cluster, "mg"), "the snapshot is half-way", 60.0)
        node = runs(cluster, "mg")
        cluster.kill(node)
        cluster.start("ingest", node)
        until(has_gone_on(cluster, "mg"), "the snapshot goes on", 60.0)
        repartition_topic(cluster.url, "documents", 6)
        until(lambda: not snapshots_of(cluster, "mg"), "the snapshot is done", 90.0)
        buying.close()
        there = {one["_id"]: one for one in buying.orders.find()}
        until(
            lambda: states(records_of(cluster, "documents"), "orders") == there,
            "the last change is there",
            60.0,
        )
        records = records_of(cluster, "documents")
        assert states(records, "quiet") == {
            str(number): {"_id": number, "n": 0} for number in range(ROWS)
        }
        told = {
            one.source or "" for one in records if one.op != "read" and one.collection == "orders"
        }
        positions = [position for position, _ in buying.committed]
        since = [one for one in positions if one >= min(told)]
        assert told == set(since)
        by = sorted(records, key=lambda one: (one.version, one.seq))
        for key in there:
            mine = [one.source for one in by if (one.collection, one.key) == ("orders", key)]
            assert mine == sorted(mine, key=str), key
    command(cluster, "delete", "mg", "--yes")
    client.close()
