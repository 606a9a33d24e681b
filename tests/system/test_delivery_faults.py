"""A gateway in trouble, stores away, a router that stops: all is accounted for, nobody else waits.

One cluster: a coordinator, an ingest node and a Spark router as processes, a gateway that is well
and one that misbehaves on request. Each test leaves the cluster whole.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import apsw
import pytest

from headgate.adapters.embedded.folder import DataFolder
from tests.servers.nats import Nats
from tests.system.cluster import Cluster
from tests.system.harness import environment, until
from tests.system.traffic import Traffic
from tests.system.wicked import Trouble, WickedGateway

TROUBLE_S = 3.0
TROUBLES: list[Trouble] = [
    "hangs",
    "answers 500",
    "answers garbage",
    "accepts half a batch",
    "is 100 times slower",
    "loses its answers",
    "is cut off",
]
SETTINGS = {
    "HEADGATE_ROUTING__DELIVERY__TIMEOUT": "500ms",
    "HEADGATE_RELIABILITY__CIRCUIT_BREAKER__TIMEOUT": "1s",
    "HEADGATE_ROUTER__FLUSH_EVERY": "500ms",
    "HEADGATE_ROUTING__BACKPRESSURE__QUEUE_SIZE": "200",
    "HEADGATE_RELIABILITY__CHECKPOINT__INTERVAL": "1s",
    "HEADGATE_COORDINATOR__TIMEOUT": "10s",
    "HEADGATE_COORDINATOR__CHECK_IN": "2s",
}


@pytest.fixture(scope="module")
def nats() -> Iterator[Nats]:
    with Nats() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, nats: Nats) -> Iterator[Cluster]:
    settings = {**SETTINGS, "HEADGATE_TRANSPORT__NATS": nats.url}
    data = tmp_path_factory.mktemp("delivery") / "data"
    with Cluster(data, routers=1, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def wicked(cluster: Cluster) -> Iterator[WickedGateway]:
    settings = environment({**cluster.settings, "HEADGATE_CLIENT_ID": "gateway-2"})
    gateway = WickedGateway(settings, cluster.data.parent)
    gateway.start()
    yield gateway
    gateway.stop()


def wait_s(seconds: float) -> None:
    """Let time pass for other processes: what is tested is what they do meanwhile."""
    threading.Event().wait(seconds)


def topic_of(cluster: Cluster, name: str) -> dict[str, Any]:
    [found] = [topic for topic in cluster.status()["topics"] if topic["name"] == name]
    return dict(found)


def is_settled(cluster: Cluster, traffic: Traffic) -> bool:
    totals: dict[str, int] = topic_of(cluster, traffic.topic)["totals"]
    return totals["settled"] == len(traffic.acknowledged)


def accounted_for(cluster: Cluster, traffic: Traffic) -> dict[str, int]:
    """The sums of `headgate status`, once everything is settled: each record in one place."""
    until(lambda: is_settled(cluster, traffic), "everything is settled", 60.0)
    totals: dict[str, int] = topic_of(cluster, traffic.topic)["totals"]
    assert totals["waiting"] == 0
    ends = ("acknowledged", "parked", "dead", "released", "unmatched", "skipped")
    assert sum(totals[end] for end in ends) == totals["settled"] == totals["appended"]
    return totals


def letters(cluster: Cluster, state: str) -> list[dict[str, Any]]:
    with urlopen(f"{cluster.url}/v1/dead-letters?state={state}", timeout=10) as response:
        found: list[dict[str, Any]] = json.load(response)["letters"]
        return found


def p99_s(latencies_s: list[float]) -> float:
    return latencies_s[min(len(latencies_s) - 1, len(latencies_s) * 99 // 100)]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_gateway_in_trouble_gets_everything_later_and_slows_nobody(
    cluster: Cluster, wicked: WickedGateway, trouble: Trouble
) -> None:
    with Traffic(cluster) as traffic:
        other = traffic.also_at(wicked.url)
        first = len(traffic.acknowledged)
        begun_s = time.monotonic()
        wait_s(1.5)
        troubled_s = time.monotonic()
        with wicked.in_trouble(trouble):
            wait_s(TROUBLE_S)
            over_s = time.monotonic()
        traffic.end()
        before = traffic.latencies_s(begun_s, troubled_s)
        during = traffic.latencies_s(troubled_s, over_s - 0.5)
        assert during, "the other gateway got nothing"
        # Twice as long as before, and some for a machine that others use too.
        assert p99_s(during) <= 2 * p99_s(before) + 0.2
        until(lambda: len(other.out.lines) >= len(traffic.acknowledged) - first, "all came", 60.0)
        numbers: dict[str, list[int]] = {}
        for line in other.out.lines:
            event = json.loads(line)
            numbers.setdefault(event["key"], []).append(event["document"]["n"])
        for key, got in numbers.items():
            assert got == sorted(set(got)), f"{key}: out of order, or twice"
        totals = accounted_for(cluster, traffic)
        assert totals["dead"] == 0
        until(lambda: not letters(cluster, "parked"), "nothing is left parked", 60.0)


@pytest.mark.timeout(180)
def test_what_a_gateway_refuses_is_dead_until_an_operator_retries_it(
    cluster: Cluster, wicked: WickedGateway
) -> None:
    with Traffic(cluster) as traffic:
        other = traffic.also_at(wicked.url)
        with wicked.in_trouble("answers 400"):
            until(lambda: bool(letters(cluster, "dead")), "something is refused")
            traffic.end()
            totals = accounted_for(cluster, traffic)
        dead = letters(cluster, "dead")
        assert totals["dead"] == len(dead) > 0
        assert {letter["reason"] for letter in dead} == {"rejected"}
        missing = {letter["event_id"] for letter in dead}
        assert missing.isdisjoint(json.loads(line)["event_id"] for line in other.out.lines)
        assert cluster.command("dlq", "retry", "--topic", traffic.topic).wait() == 0

        def redelivered() -> set[str]:
            events = [json.loads(line) for line in other.out.lines]
            return {event["event_id"] for event in events if event.get("redelivery")}

        until(lambda: redelivered() == missing, "all that was dead came, and is marked", 60.0)
        until(lambda: not letters(cluster, "dead"), "no letter is left")


@pytest.mark.timeout(180)
def test_nats_restarted_in_the_middle_loses_nothing(cluster: Cluster, nats: Nats) -> None:
    settings = {"HEADGATE_ROUTING__DELIVERY__PROTOCOL": "nats"}
    url = cluster.start("gateway", "gateway-3", settings)
    try:
        with Traffic(cluster) as traffic:
            other = traffic.also_at(url)
            first = len(traffic.acknowledged)
            wait_s(1.0)
            nats.kill()
            wait_s(2.0)
            nats.start()
            traffic.end()
            until(lambda: len(other.out.lines) >= len(traffic.acknowledged) - first, "all", 60.0)
            accounted_for(cluster, traffic)
    finally:
        cluster.stop("gateway-3")


@pytest.mark.timeout(180)
def test_a_gateway_killed_in_the_middle_of_a_batch_loses_nothing(cluster: Cluster) -> None:
    url = cluster.start("gateway", "gateway-3")
    port = {"HEADGATE_PUBLIC__PORT": url.rpartition(":")[2]}
    with Traffic(cluster) as traffic:
        other = traffic.also_at(url)
        first = len(traffic.acknowledged)
        wait_s(0.5)
        cluster.kill("gateway-3")
        wait_s(1.0)
        assert cluster.start("gateway", "gateway-3", port) == url
        traffic.end()
        until(lambda: len(other.out.lines) >= len(traffic.acknowledged) - first, "all came", 60.0)
        accounted_for(cluster, traffic)
    cluster.stop("gateway-3")


@pytest.mark.timeout(180)
def test_letters_that_cannot_be_written_stop_the_source_and_nothing_is_lost(
    cluster: Cluster, wicked: WickedGateway
) -> None:
    with Traffic(cluster) as traffic:
        other = traffic.also_at(wicked.url)
        first = len(traffic.acknowledged)
        with wicked.in_trouble("answers 500"), locked(DataFolder(cluster.data).letters_file):
            until(lambda: says_letters_are_away(cluster), "status says it", 60.0)
            wait_s(1.0)
        traffic.end()
        until(lambda: len(other.out.lines) >= len(traffic.acknowledged) - first, "all came", 60.0)
        accounted_for(cluster, traffic)
        until(lambda: not says_letters_are_away(cluster), "status is content")


@pytest.mark.timeout(180)
def test_positions_that_cannot_be_saved_for_half_a_minute_stop_nothing(cluster: Cluster) -> None:
    with Traffic(cluster) as traffic:
        with locked(DataFolder(cluster.data).checkpoints_file):
            until_s = time.monotonic() + 30.0
            while time.monotonic() < until_s:
                assert traffic.flows() < 5.0
        traffic.end()
        accounted_for(cluster, traffic)


@pytest.mark.timeout(240)
def test_a_router_told_to_stop_under_load_settles_what_it_has_and_leaves(cluster: Cluster) -> None:
    with Traffic(cluster) as traffic:
        begun_s = time.monotonic()
        assert cluster.stop("router-1") == 0
        assert time.monotonic() - begun_s < 30.0
        until(lambda: "router-1" not in cluster.nodes(), "its lease is given back", 5.0)
        cluster.start("router", "router-1")
        traffic.flows()
        traffic.end()
        accounted_for(cluster, traffic)


def says_letters_are_away(cluster: Cluster) -> bool:
    return any(lane["letters"] for lane in cluster.status()["lanes"])


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of an embedded store, so that nobody else can write."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()
