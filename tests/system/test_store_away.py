"""PostgreSQL stands still for longer than anybody waits for one read: lanes, ingest nodes and the
gateway wait for it, and nothing of theirs ends. A coordinator, two ingest nodes, a router with
plain lanes and a gateway, each a process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import psutil
import pytest

from headgate.adapters.postgres.log_reader import READ_TIMEOUT_S
from headgate.telemetry import LogLine
from tests.servers.postgres import Postgres
from tests.system.cluster import PLAIN_ROUTER, Cluster
from tests.system.traffic import Traffic

AWAY_S = 2.5 * READ_TIMEOUT_S


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Cluster]:
    settings = {"HEADGATE_LOG__BACKEND": "postgresql", "HEADGATE_LOG__DSN": postgres.dsn}
    data = tmp_path_factory.mktemp("away") / "data"
    with Cluster(
        data, ingest_nodes=2, routers=1, settings=settings, router_program=PLAIN_ROUTER
    ) as running:
        yield running


@contextlib.contextmanager
def standing_still(server: Postgres) -> Iterator[None]:
    """Connections stay, and nothing comes back over them."""
    root = psutil.Process(server.pid)
    family = [root, *root.children(recursive=True)]
    for process in family:
        process.suspend()
    try:
        yield
    finally:
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


@pytest.mark.timeout(300)
def test_lanes_outlive_a_log_that_is_away_for_longer_than_a_read(
    cluster: Cluster, postgres: Postgres
) -> None:
    with Traffic(cluster, partitions=4) as traffic:
        with standing_still(postgres):
            threading.Event().wait(AWAY_S)
        traffic.flows()
    said = "\n".join(cluster.said()["router-1"])
    assert LogLine.PARTITION_STOPPED in said, "it was away for long enough"
    assert LogLine.QUERY_FAILED not in said
