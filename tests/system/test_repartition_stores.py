"""A topic is repartitioned while the store that a phase needs is away: the phase waits for it, and
then goes on; nothing is lost, and every key stays in order.

The log is in PostgreSQL, positions and the coordinator's state in etcd. A coordinator, two ingest
nodes, a router with plain lanes and a gateway, each a process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from tests.servers.etcd import Etcd
from tests.servers.postgres import Postgres
from tests.servers.process import Server
from tests.system.cluster import PLAIN_ROUTER, Cluster
from tests.system.harness import repartition_topic, until
from tests.system.traffic import Traffic

PHASE_S = 90.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with Etcd() as server:
        yield server


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, etcd: Etcd
) -> Iterator[Cluster]:
    settings = {
        "HEADGATE_LOG__BACKEND": "postgresql",
        "HEADGATE_LOG__DSN": postgres.dsn,
        "HEADGATE_COORDINATOR__STORE": "etcd",
        "HEADGATE_RELIABILITY__CHECKPOINT__BACKEND": "etcd",
        "HEADGATE_ETCD__ENDPOINTS": etcd.endpoint,
        "HEADGATE_COORDINATOR__TIMEOUT": "6s",
        "HEADGATE_COORDINATOR__CHECK_IN": "2s",
        "HEADGATE_COORDINATOR__REBALANCE": "2s",
        "HEADGATE_COORDINATOR__ADOPTION_TIMEOUT": "5s",
    }
    data = tmp_path_factory.mktemp("stores") / "data"
    with Cluster(
        data, ingest_nodes=2, routers=1, settings=settings, router_program=PLAIN_ROUTER
    ) as running:
        yield running


@contextlib.contextmanager
def away(server: Server) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


def phase(cluster: Cluster, topic: str) -> str:
    """Empty where nobody can tell, "none" where it isn't repartitioned."""
    with contextlib.suppress(URLError, OSError):
        for one in cluster.status()["topics"]:
            if one["name"] == topic:
                running: dict[str, Any] | None = one["repartition"]
                return "none" if running is None else running["phase"]
    return ""


def count(cluster: Cluster, topic: str) -> int:
    with contextlib.suppress(URLError, OSError):
        topics = cluster.status()["topics"]
        return next(int(one["partitions"]) for one in topics if one["name"] == topic)
    return 0


def is_in(cluster: Cluster, topic: str, *phases: str) -> bool:
    return phase(cluster, topic) in phases


def is_final(cluster: Cluster, topic: str, partitions: int) -> bool:
    return count(cluster, topic) == partitions and phase(cluster, topic) == "none"


def has_begun(cluster: Cluster, topic: str, partitions: int) -> bool:
    """Asks for it, until it is under way or done; the first word of it may have got lost."""
    if count(cluster, topic) == partitions or phase(cluster, topic) not in ("", "none"):
        return True
    with contextlib.suppress(HTTPError, URLError, OSError):
        repartition_topic(cluster.url, topic, partitions)
    return False


def test_a_phase_waits_for_its_store_and_no_event_is_lost(
    cluster: Cluster, postgres: Postgres, etcd: Etcd
) -> None:
    with Traffic(cluster, partitions=4) as traffic:
        topic = traffic.topic
        finished = partial(is_final, cluster, topic)

        with away(postgres):  # no owner can seal
            repartition_topic(cluster.url, topic, 6)
            until(
                partial(is_in, cluster, topic, "announced", "sealing"),
                "it is asked of them",
                PHASE_S,
            )
        until(partial(finished, 6), "it has 6", PHASE_S)
        traffic.flows()

        for server, to in ((etcd, 3), (postgres, 5)):
            with cluster.paused("router-1"):  # nobody drains
                repartition_topic(cluster.url, topic, to)
                until(partial(is_in, cluster, topic, "draining"), "it drains", PHASE_S)
                with away(server):
                    pass
            until(partial(finished, to), f"it has {to}", PHASE_S)
            traffic.flows()

        with away(etcd):  # nobody can keep that it was announced
            assert not has_begun(cluster, topic, 8)
            traffic.flows()
        until(partial(has_begun, cluster, topic, 8), "it has begun after all", PHASE_S)
        until(partial(finished, 8), "it has 8", PHASE_S)
        traffic.flows()
