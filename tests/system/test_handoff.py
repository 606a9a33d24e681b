"""Partitions change hands between routers while events flow, and everything arrives.

These routers' lanes are plain; one on Spark hands over, too (test_executors.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.accounting import takes_its_leave
from tests.system.cluster import PLAIN_ROUTER, Cluster
from tests.system.harness import until
from tests.system.moving import drained_and_back, shared
from tests.system.traffic import Traffic

LEASE_S = 6.0
CHECK_IN_S = 2.0
SETTINGS = {
    "HEADGATE_COORDINATOR__TIMEOUT": f"{LEASE_S:g}s",
    "HEADGATE_COORDINATOR__CHECK_IN": f"{CHECK_IN_S:g}s",
    "HEADGATE_COORDINATOR__REBALANCE": "2s",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("handoff") / "data"
    with Cluster(
        data, routers=2, recording=True, settings=SETTINGS, router_program=PLAIN_ROUTER
    ) as running:
        yield running
        assert running.gateway is not None
        running.gateway.check_fences()


def restarted(cluster: Cluster, node_id: str) -> None:
    cluster.start(node_id.rpartition("-")[0], node_id)


def test_a_drained_router_hands_everything_over_and_takes_it_back(cluster: Cluster) -> None:
    with Traffic(cluster) as traffic:
        shared(cluster, traffic.topic, "router-1", "router-2")
        drained_and_back(cluster, traffic, "router-2", "router-1")


def test_a_router_that_leaves_gives_its_lease_back_at_once(cluster: Cluster) -> None:
    with Traffic(cluster) as traffic:
        shared(cluster, traffic.topic, "router-1", "router-2")
        assert cluster.stop("router-2") == 0
        takes_its_leave(cluster, "router-2")
        shared(cluster, traffic.topic, "router-1")
        traffic.flows()
        restarted(cluster, "router-2")
        shared(cluster, traffic.topic, "router-1", "router-2")
        traffic.flows()


def test_a_dead_donors_partitions_are_read_on_from_its_last_checkpoint(cluster: Cluster) -> None:
    with Traffic(cluster) as traffic:
        shared(cluster, traffic.topic, "router-1", "router-2")
        with cluster.paused("router-2"):
            cluster.command("node", "drain", "router-2").wait()
            until(lambda: bool(cluster.status()["moves"]), "the donor is asked to let go")
            cluster.kill("router-2")
        shared(cluster, traffic.topic, "router-1")
        traffic.flows()
        restarted(cluster, "router-2")
        cluster.command("node", "drain", "router-2", "--cancel").wait()
        shared(cluster, traffic.topic, "router-1", "router-2")


def test_a_dead_recipient_leaves_the_partition_with_its_donor(cluster: Cluster) -> None:
    with Traffic(cluster) as traffic:
        cluster.command("node", "drain", "router-2").wait()
        shared(cluster, traffic.topic, "router-1")
        with cluster.paused("router-2"):
            cluster.command("node", "drain", "router-2", "--cancel").wait()
            until(lambda: "router-2" in cluster.routers(traffic.topic).values(), "it is given some")
            cluster.kill("router-2")
        shared(cluster, traffic.topic, "router-1")
        traffic.flows()
        restarted(cluster, "router-2")
        shared(cluster, traffic.topic, "router-1", "router-2")
        traffic.flows()


@pytest.mark.parametrize("held", ["donor", "recipient"])
def test_a_coordinator_killed_in_a_handoff_goes_on_with_it(cluster: Cluster, held: str) -> None:
    """Held at a frozen donor it is releasing; held at a frozen recipient it is starting."""
    with Traffic(cluster) as traffic:
        shared(cluster, traffic.topic, "router-1", "router-2")
        if held == "recipient":
            cluster.command("node", "drain", "router-2").wait()
            shared(cluster, traffic.topic, "router-1")
        with cluster.paused("router-2"):
            cancel = ("--cancel",) if held == "recipient" else ()
            cluster.command("node", "drain", "router-2", *cancel).wait()
            until(lambda: bool(cluster.status()["moves"]), "a handoff is under way")
            cluster.kill("coordinator-1")
            restarted(cluster, "coordinator-1")
        wanted = ("router-1", "router-2") if held == "recipient" else ("router-1",)
        shared(cluster, traffic.topic, *wanted)
        traffic.flows()
        cluster.command("node", "drain", "router-2", "--cancel").wait()
        shared(cluster, traffic.topic, "router-1", "router-2")
        traffic.flows()


def test_a_coordinator_without_memory_learns_from_the_nodes_and_moves_nothing(
    cluster: Cluster,
) -> None:
    with Traffic(cluster) as traffic:
        shared(cluster, traffic.topic, "router-1", "router-2")
        before = [without_positions(part) for part in cluster.partitions(traffic.topic)]
        cluster.kill("coordinator-1")
        (cluster.data / "coordinator.json").unlink()
        restarted(cluster, "coordinator-1")
        until(lambda: traffic.topic in topics(cluster), "the topic is known again")
        until(lambda: not cluster.status()["learning"], "it has learnt enough")
        after = [without_positions(part) for part in cluster.partitions(traffic.topic)]
        assert after == before
        traffic.flows()


def topics(cluster: Cluster) -> set[str]:
    try:
        return {topic["name"] for topic in cluster.status()["topics"]}
    except OSError:
        return set()


def without_positions(partition: dict[str, Any]) -> dict[str, Any]:
    return {
        name: partition[name] for name in ("partition", "owner", "router", "epoch", "log_epoch")
    }


def test_a_second_coordinator_on_the_same_data_folder_is_refused(cluster: Cluster) -> None:
    ports = {f"HEADGATE_COORDINATOR__{n}_PORT": "0" for n in ("ROUTER", "CONSUMER", "HTTP")}
    second = cluster.command("coordinator", settings=ports)
    assert second.wait() == 2
    assert "in use by process" in second.err.lines[-1]
