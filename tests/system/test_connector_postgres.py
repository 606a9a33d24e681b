"""PostgreSQL's changes through a connector, with real processes and a real server, while its
reader, the server and the coordinator are killed and the topic is repartitioned.

Judged by the database's own ledger, which a trigger writes within each transaction.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import psycopg
import pytest

from tests.adapters.pgoutput.workload import TABLE, committed, judge, set_up, shop
from tests.servers.postgres import Postgres
from tests.system.cluster import PLAIN_ROUTER, Cluster
from tests.system.harness import create_topic, repartition_topic, until
from tests.system.test_connector import SETTINGS, records_of, runs
from tests.system.test_repartition import is_final


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("connector-postgres") / "data"
    with Cluster(
        data, ingest_nodes=2, routers=1, settings=SETTINGS, router_program=PLAIN_ROUTER
    ) as running:
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as running:
        asyncio.run(set_up(running.dsn))
        yield running


def count(dsn: str) -> int:
    return sum(map(len, asyncio.run(committed(dsn)).values()))


def goes_on(dsn: str, changes: int) -> None:
    wanted = count(dsn) + changes
    until(lambda: count(dsn) >= wanted, f"the shop has made {changes} more changes")


def slots(dsn: str) -> list[str]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall()
    return [name for (name,) in rows]


def test_every_change_is_in_the_log_once_and_in_order_whoever_dies(
    cluster: Cluster, server: Postgres
) -> None:
    create_topic(cluster.url, "orders", 4)
    created = cluster.command(
        *("connector", "create", "shop", "--type", "postgresql", "--dsn", server.dsn),
        *("--table", TABLE, "--topic", "orders"),
    )
    assert created.wait() == 0, created.err.lines
    runs(cluster, "shop")
    over = threading.Event()
    buying = threading.Thread(target=lambda: asyncio.run(shop(server.dsn, over.is_set)))
    buying.start()
    try:
        goes_on(server.dsn, 100)
        node = runs(cluster, "shop")
        cluster.kill(node)
        goes_on(server.dsn, 100)
        cluster.start("ingest", node)
        repartition_topic(cluster.url, "orders", 6)
        goes_on(server.dsn, 100)
        server.kill()
        server.restart()
        goes_on(server.dsn, 100)
        cluster.kill("coordinator-1")
        cluster.start("coordinator", "coordinator-1")
        runs(cluster, "shop")
        until(lambda: is_final(cluster, "orders", 6), "it has 6 partitions", 90.0)
        repartition_topic(cluster.url, "orders", 3)
        goes_on(server.dsn, 100)
    finally:
        over.set()
        buying.join(60)
    wanted = count(server.dsn)
    until(lambda: len(records_of(cluster, "orders")) >= wanted, "everything is in the log", 60.0)
    counts = {1: 4, 2: 6, 3: 3}
    asyncio.run(judge(server.dsn, records_of(cluster, "orders"), counts))
    assert slots(server.dsn) == ["headgate_shop"]
    deleted = cluster.command("connector", "delete", "shop", "--yes")
    assert deleted.wait() == 0, deleted.err.lines
    assert slots(server.dsn) == [], deleted.err.lines
