"""A node that an operator restarts begins anew in place and keeps what it had; and every position
is lost at once: the roles as processes, with lanes in the router's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.cluster import PLAIN_ROUTER, Cluster, own_port
from tests.system.harness import HEADGATE, Command, create_topic, until
from tests.system.traffic import Traffic

SETTINGS = {
    "HEADGATE_RELIABILITY__CHECKPOINT__INTERVAL": "500ms",
    "HEADGATE_COORDINATOR__GRACE": "500ms",
    **own_port(),
}
"""A node that comes back later than the grace keeps what it has only if it has said that it
returns."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("restarts") / "data"
    with Cluster(
        data, ingest_nodes=2, routers=2, settings=SETTINGS, router_program=PLAIN_ROUTER
    ) as running:
        yield running


def started_as_by_a_user(cluster: Cluster, node_id: str) -> None:
    """Begins anew with its own command line, which a fork of the tests' doesn't have."""
    role = node_id.partition("-")[0]
    cluster.stop(node_id)
    cluster.begin(role, node_id, program=PLAIN_ROUTER if role == "router" else HEADGATE)
    cluster.await_ready(node_id)


def owned(cluster: Cluster, topic: str) -> list[tuple[str, str]]:
    """Who writes and who reads each partition."""
    return [(one["owner"], one["router"]) for one in cluster.partitions(topic)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("node_id", ["ingest-1", "router-1", "gateway-1"])
def test_a_node_that_is_restarted_keeps_what_it_had(cluster: Cluster, node_id: str) -> None:
    started_as_by_a_user(cluster, node_id)
    with Traffic(cluster, partitions=4) as traffic:
        until(lambda: is_spread(cluster, traffic.topic), "everybody has a share", 60.0)
        before, pid = owned(cluster, traffic.topic), cluster.pid(node_id)
        incarnation = cluster.nodes()[node_id]["incarnation"]
        command = cluster.command("node", "restart", node_id, "--wait", "--timeout", "60s")
        assert command.wait(90.0) == 0, command.err.lines
        assert f"{node_id} is back" in command.err.lines[-1]
        assert cluster.nodes()[node_id]["incarnation"] != incarnation
        assert cluster.pid(node_id) == pid, "the same process, for whoever watches it"
        traffic.flows()
        assert owned(cluster, traffic.topic) == before


def is_spread(cluster: Cluster, topic: str) -> bool:
    found = owned(cluster, topic)
    return (
        {one[0] for one in found} == {*cluster.ingest_ids}
        and {one[1] for one in found} == {*cluster.router_ids}
        and not cluster.status()["moves"]
    )


@pytest.mark.timeout(240)
def test_with_every_position_lost_all_that_is_kept_is_read_again(cluster: Cluster) -> None:
    """The worst case of a recovery: nothing is missed, and who has had it already isn't told again,
    as long as its gateway remembers."""
    topic = "no-positions"
    create_topic(cluster.url, topic, 2)
    subscriber = cluster.subscribe(topic)
    try:
        produce(cluster, topic, 1, 20)
        until(lambda: numbers(subscriber) == list(range(1, 21)), "all arrive", 60.0)
        until(lambda: settled(cluster, topic) == 20, "all are settled", 60.0)
        for router in cluster.router_ids:
            cluster.stop(router)
        produce(cluster, topic, 21, 25)
        lost = list(cluster.data.glob("checkpoints.db*"))
        assert lost
        for file in lost:
            file.unlink()
        for router in cluster.router_ids:
            cluster.start("router", router)
        until(lambda: {*numbers(subscriber)} == {*range(1, 26)}, "what is new arrives", 60.0)
        until(lambda: settled(cluster, topic) == 25, "all is settled again", 60.0)
        produce(cluster, topic, 26, 30)
        until(lambda: {*numbers(subscriber)} == {*range(1, 31)}, "it goes on", 60.0)
        until(
            lambda: {one["state"] for one in cluster.partitions(topic)} == {"healthy"},
            "all is well again",
            60.0,
        )
        assert sorted(numbers(subscriber)) == list(range(1, 31)), "nothing twice"
    finally:
        subscriber.stop()


def produce(cluster: Cluster, topic: str, first: int, last: int) -> None:
    command = cluster.command("produce", topic)
    assert command.process.stdin is not None
    lines = "".join(json.dumps({"n": number}) + "\n" for number in range(first, last + 1))
    command.process.stdin.write(lines)
    command.process.stdin.close()
    assert command.wait() == 0, command.err.lines


def numbers(subscriber: Command) -> list[int]:
    """In the order of their arrival, which keys don't have here."""
    found: list[dict[str, Any]] = [json.loads(line) for line in subscriber.out.lines]
    return sorted(one["document"]["n"] for one in found)


def settled(cluster: Cluster, topic: str) -> int:
    return sum(int(one["settled"]) for one in cluster.partitions(topic))
