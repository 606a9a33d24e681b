"""A topic is repartitioned under load, again and again, while somebody is killed each time: nothing
is lost, and every key stays in order, for who was there all along, who comes back with positions of
an earlier version, and who reads everything from the beginning.

A coordinator, two ingest nodes, a router with plain lanes and a gateway, each a process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.error import URLError

import pytest

from tests.system.cluster import PLAIN_ROUTER, Cluster
from tests.system.harness import repartition_topic, until
from tests.system.traffic import Printed, Traffic

SETTINGS = {
    "HEADGATE_COORDINATOR__TIMEOUT": "6s",
    "HEADGATE_COORDINATOR__CHECK_IN": "2s",
    "HEADGATE_COORDINATOR__REBALANCE": "2s",
    "HEADGATE_COORDINATOR__ADOPTION_TIMEOUT": "5s",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("repartition") / "data"
    with Cluster(
        data, ingest_nodes=2, routers=1, settings=SETTINGS, router_program=PLAIN_ROUTER
    ) as running:
        yield running


def is_final(cluster: Cluster, topic: str, partitions: int) -> bool:
    with contextlib.suppress(URLError, OSError):
        for one in cluster.status()["topics"]:
            if one["name"] == topic:
                return one["partitions"] == partitions and one["repartition"] is None
    return False


def positions_of(events: list[dict[str, Any]]) -> str:
    """Where somebody who got these would go on, as `--from` has it."""
    reached: dict[int, int] = {}
    for event in events:
        reached[event["partition"]] = max(event["seq"], reached.get(event["partition"], 0))
    return ",".join(f"{partition}:{seq + 1}" for partition, seq in sorted(reached.items()))


def test_every_key_stays_in_order_whoever_dies_meanwhile(cluster: Cluster) -> None:
    faults = {6: "coordinator", 3: "ingest", 8: "router"}
    with Traffic(cluster, partitions=4) as traffic:
        traffic.goes_on(100)
        before = list(traffic.own.events)
        for to, role in faults.items():
            repartition_topic(cluster.url, traffic.topic, to)
            cluster.kill(f"{role}-1")
            cluster.start(role, f"{role}-1")
            until(partial(is_final, cluster, traffic.topic, to), f"it has {to}", 90.0)
            traffic.flows()
        resumed = cluster.subscribe(traffic.topic, "--from", positions_of(before))
        replayed = cluster.subscribe(traffic.topic, "--from", "earliest")
        traffic.goes_on(50)
        traffic.end()
        traffic.check(Printed(replayed), 0)
        had = {event["document"]["n"] for event in before}
        missing = set(traffic.acknowledged) - had
        until(
            lambda: missing <= {number for number, _ in Printed(resumed).arrivals},
            "who comes back gets the rest",
        )
        by_key: dict[str, list[int]] = {}
        for event in (*before, *Printed(resumed).events):
            by_key.setdefault(event["key"], []).append(event["document"]["n"])
        assert all(numbers == sorted(set(numbers)) for numbers in by_key.values())
        for one in (resumed, replayed):
            one.stop()
