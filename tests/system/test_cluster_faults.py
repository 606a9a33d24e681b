"""Every role is killed, or frozen for longer than its lease, on a cluster with a real etcd.

Three etcd members, two coordinators, two ingest nodes, a Spark router, and a gateway that records.
Each test leaves the cluster whole.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.servers.etcd import EtcdCluster
from tests.system.cluster import PLAIN_ROUTER, Cluster
from tests.system.harness import until
from tests.system.traffic import Traffic

LEASE_S = 6.0
CHECK_IN_S = 2.0
COORDINATORS = ("coordinator-1", "coordinator-2")
AN_HOUR_AHEAD = (
    "import runpy, time\n"
    "now, now_ns = time.time, time.time_ns\n"
    "time.time = lambda: now() + 3_600\n"
    "time.time_ns = lambda: now_ns() + 3_600 * 10**9\n"
    "runpy.run_module('headgate', run_name='__main__', alter_sys=True)\n"
)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdCluster) -> Iterator[Cluster]:
    settings = {
        "HEADGATE_COORDINATOR__STORE": "etcd",
        "HEADGATE_RELIABILITY__CHECKPOINT__BACKEND": "etcd",
        "HEADGATE_ETCD__ENDPOINTS": etcd.endpoints,
        "HEADGATE_COORDINATOR__TIMEOUT": f"{LEASE_S:g}s",
        "HEADGATE_COORDINATOR__CHECK_IN": f"{CHECK_IN_S:g}s",
        "HEADGATE_COORDINATOR__REBALANCE": "2s",
    }
    data = tmp_path_factory.mktemp("faults") / "data"
    with Cluster(
        data,
        coordinators=2,
        ingest_nodes=2,
        routers=1,
        recording=True,
        settings=settings,
        router_program=PLAIN_ROUTER,
    ) as running:
        yield running
        assert running.gateway is not None
        running.gateway.check_fences()


def leader(cluster: Cluster) -> str:
    found: str = cluster.status()["leader"]
    return found


def leads_another(cluster: Cluster, former: str) -> bool:
    try:
        return leader(cluster) != former
    except (URLError, OSError):
        return False


def produces_to(cluster: Cluster, topic: str, *nodes: str) -> bool:
    try:
        return set(cluster.owners(topic).values()) == set(nodes)
    except (URLError, OSError):
        return False


def wait_s(seconds: float) -> None:
    """Let time pass for other processes: what is tested is what they do without being asked."""
    threading.Event().wait(seconds)


def test_another_coordinator_leads_when_the_leader_is_killed(cluster: Cluster) -> None:
    with Traffic(cluster) as traffic:
        former = leader(cluster)
        other = next(one for one in COORDINATORS if one != former)
        with cluster.paused(other):
            cluster.kill(former)
            traffic.flows()  # events don't wait for a coordinator
        until(lambda: leads_another(cluster, former), "another one leads")
        traffic.flows()
        cluster.start("coordinator", former)
        assert leader(cluster) != former, "a coordinator that comes back doesn't interfere"
        everybody = {"router-1", "ingest-1", "ingest-2"}
        until(lambda: everybody <= set(cluster.nodes()), "everybody has found the new leader")


def test_a_leader_frozen_past_its_leadership_decides_nothing_afterwards(cluster: Cluster) -> None:
    with Traffic(cluster) as traffic:
        former = leader(cluster)
        with cluster.paused(former):
            until(lambda: leads_another(cluster, former), "another one leads", 60.0)
            generation = cluster.status()["generation"]
            traffic.flows()
        wait_s(2 * CHECK_IN_S)
        assert leader(cluster) != former
        assert cluster.status()["generation"] >= generation
        traffic.flows()


def test_events_flow_without_one_member_of_etcd_and_without_all_of_them(
    cluster: Cluster, etcd: EtcdCluster
) -> None:
    with Traffic(cluster) as traffic:
        etcd.members[0].kill()
        traffic.flows()
        assert cluster.command("topic", "create", "meanwhile").wait() == 0
        for member in etcd.members[1:]:
            member.kill()
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < 2 * LEASE_S:
            traffic.flows()  # events don't wait for etcd
            wait_s(1.0)
        etcd.start()
        until(lambda: leads_another(cluster, ""), "somebody leads again", 60.0)
        traffic.flows()
    delete = ("topic", "delete", "--yes", "meanwhile")
    until(lambda: cluster.command(*delete).wait() == 0, "it decides again")


@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_the_log_partitions_of_a_lost_ingest_node_go_to_the_other(
    cluster: Cluster, fault: str
) -> None:
    with Traffic(cluster) as traffic:
        until(lambda: produces_to(cluster, traffic.topic, "ingest-1", "ingest-2"), "both produce")
        if fault == "killed":
            cluster.kill("ingest-2")
            until(lambda: produces_to(cluster, traffic.topic, "ingest-1"), "one produces")
            traffic.flows()
            cluster.start("ingest", "ingest-2")
        else:
            with cluster.paused("ingest-2"):
                until(lambda: produces_to(cluster, traffic.topic, "ingest-1"), "one produces")
                traffic.flows()
        until(lambda: produces_to(cluster, traffic.topic, "ingest-1", "ingest-2"), "both again")
        traffic.flows()


@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_router_that_was_away_for_longer_than_its_lease_goes_on(
    cluster: Cluster, fault: str
) -> None:
    with Traffic(cluster) as traffic:
        if fault == "killed":
            cluster.kill("router-1")
            until(lambda: "router-1" not in cluster.nodes(), "its lease has ended")
            cluster.start("router", "router-1")
        else:
            with cluster.paused("router-1"):
                until(lambda: "router-1" not in cluster.nodes(), "its lease has ended")
        traffic.flows(90.0)


def test_a_gateway_frozen_for_longer_than_its_lease_delivers_all_the_same(
    cluster: Cluster,
) -> None:
    url = cluster.start("gateway", "gateway-2")
    try:
        with Traffic(cluster, url=url) as slow, Traffic(cluster) as other:
            with cluster.paused("gateway-2"):
                until(lambda: "gateway-2" not in cluster.nodes(), "its lease has ended")
                other.flows()
            slow.flows()
    finally:
        cluster.stop("gateway-2")


def test_a_second_node_of_the_same_name_is_refused_and_harms_nobody(cluster: Cluster) -> None:
    with Traffic(cluster) as traffic:
        before = cluster.nodes()["ingest-1"]["pid"]
        first = cluster.replaced("ingest-1")
        cluster.start("ingest", "ingest-1")
        wait_s(3 * CHECK_IN_S)
        assert cluster.nodes()["ingest-1"]["pid"] == before
        traffic.flows()
        cluster.stop("ingest-1")
        cluster.put_back("ingest-1", first)
        traffic.flows()


def test_a_node_whose_clock_is_an_hour_off_is_a_node_like_any_other(cluster: Cluster) -> None:
    program = (sys.executable, "-c", AN_HOUR_AHEAD)
    cluster.stop("ingest-2")
    cluster.begin("ingest", "ingest-2", program=program)
    cluster.await_ready("ingest-2")
    with Traffic(cluster) as traffic:
        until(lambda: produces_to(cluster, traffic.topic, "ingest-1", "ingest-2"), "both produce")
        wait_s(LEASE_S)
        traffic.flows()
        assert cluster.nodes()["ingest-2"]["state"] == "ready"
        ahead = [json.loads(line) for line in traffic.delivered]
        assert {event["partition"] for event in ahead} == {0, 1, 2, 3}
    cluster.stop("ingest-2")
    cluster.start("ingest", "ingest-2")


def test_a_coordinator_that_does_not_lead_says_who_does(cluster: Cluster) -> None:
    leads = leader(cluster)
    other = next(one for one in COORDINATORS if one != leads)
    with pytest.raises(URLError) as refused:
        urlopen(f"{cluster.coordinator_url(other)}/v1/status", timeout=10)
    body = json.load(refused.value)  # type: ignore[arg-type]  # an HTTPError can be read
    assert refused.value.code == 503  # type: ignore[attr-defined]
    assert body["error"]["details"]["leader"] == cluster.coordinator_url(leads)
