"""Gateways that die where subscribers are placed by a hash, one of them and all of them.

One cluster: a coordinator, an ingest node, a Spark router and two gateways, all processes. Each
test finds the cluster whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.decide.planning.gateway_ring import Places
from headgate.model.topology import GatewayRing
from tests.system.accounting import (
    accounted_for,
    bad,
    complains,
    metric,
    nothing_left_parked,
    takes_its_leave,
    unaffected,
    wait_s,
)
from tests.system.cluster import PLAIN_ROUTER, Cluster, own_port, same_port
from tests.system.harness import until
from tests.system.readers import Readers
from tests.system.traffic import Traffic

GATEWAYS = ("gateway-1", "gateway-2")
EACH = 2
"""Readers per gateway."""
LEASE_S = 6.0
SETTINGS = {
    "HEADGATE_ROUTING__MODE": "consistent_hash",
    "HEADGATE_ROUTING__DELIVERY__TIMEOUT": "500ms",
    "HEADGATE_RELIABILITY__CIRCUIT_BREAKER__TIMEOUT": "1s",
    "HEADGATE_RELIABILITY__CHECKPOINT__INTERVAL": "1s",
    "HEADGATE_ROUTER__FLUSH_EVERY": "500ms",
    "HEADGATE_COORDINATOR__TIMEOUT": f"{LEASE_S:g}s",
    "HEADGATE_COORDINATOR__CHECK_IN": "2s",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("gateways") / "data"
    with Cluster(
        data, routers=1, settings={**SETTINGS, **own_port()}, router_program=PLAIN_ROUTER
    ) as running:
        yield running


@pytest.fixture(scope="module")
def places(cluster: Cluster) -> dict[str, str]:
    """Where each gateway is; it comes back there whenever it is started again."""
    second = cluster.start("gateway", "gateway-2", own_port())
    return {"gateway-1": cluster.url, "gateway-2": second}


@pytest.fixture
def urls(cluster: Cluster, places: dict[str, str]) -> dict[str, str]:
    """The places, with a gateway at each of them."""
    for node_id, url in places.items():
        if not cluster.runs(node_id):
            cluster.start("gateway", node_id, same_port(url))
    until(lambda: all_are_ready(cluster), "both gateways are there")
    return places


def all_are_ready(cluster: Cluster) -> bool:
    nodes = cluster.nodes()
    return all(name in nodes and nodes[name]["state"] == "ready" for name in GATEWAYS)


def belonging_to(gateway_id: str) -> list[str]:
    """Ids of subscribers that the ring places there."""
    places = Places(GatewayRing(GATEWAYS))
    ids = (f"subscriber-{number}" for number in range(100))
    return [name for name in ids if places.of(name) == gateway_id][:EACH]


def subscribers(url: str) -> float:
    return metric(url, "headgate_subscribers")


@pytest.mark.timeout(180)
def test_a_gateway_killed_in_the_middle_of_a_batch_hands_its_subscribers_to_the_next(
    cluster: Cluster, urls: dict[str, str]
) -> None:
    everywhere = list(urls.values())
    with (
        Traffic(cluster, url=",".join(everywhere)) as traffic,
        Readers(everywhere, traffic.topic) as readers,
    ):
        staying = [readers.open(name) for name in belonging_to("gateway-1")]
        moving = [readers.open(name) for name in belonging_to("gateway-2")]
        assert subscribers(urls["gateway-2"]) >= EACH
        first = traffic.next_number
        with unaffected(traffic, *staying):
            with cluster.paused("gateway-2"):
                wait_s(0.2)  # It has got batches that it hasn't answered.
                cluster.kill("gateway-2")
            until(lambda: all(reader.reconnects for reader in moving), "its subscribers moved")
            wait_s(1.5)
        traffic.end()
        for reader in (*staying, *moving):
            traffic.check(reader, first)
        assert not any(reader.reconnects for reader in staying)
        assert subscribers(urls["gateway-1"]) == 2 * EACH + 1
        assert accounted_for(cluster, traffic.topic, len(traffic.acknowledged))["dead"] == 0
        nothing_left_parked(cluster.url)


@pytest.mark.timeout(180)
def test_while_all_gateways_are_gone_everything_waits_for_them_and_all_say_so(
    cluster: Cluster, urls: dict[str, str]
) -> None:
    everywhere = list(urls.values())
    with (
        Traffic(cluster, url=",".join(everywhere)) as traffic,
        Readers(everywhere, traffic.topic) as readers,
    ):
        opened = [readers.open(name) for node_id in GATEWAYS for name in belonging_to(node_id)]
        first = traffic.next_number
        wait_s(0.5)
        for node_id in GATEWAYS:
            cluster.kill(node_id)
        produced = len(traffic.acknowledged)
        says_what_is_wrong(cluster)
        assert len(traffic.acknowledged) > produced + 100, "produce needs no gateway"
        for node_id in GATEWAYS:
            cluster.start("gateway", node_id, same_port(urls[node_id]))
        until(lambda: all(reader.reconnects for reader in opened), "all subscribers are back")
        traffic.end()
        for reader in opened:
            traffic.check(reader, first)
        assert accounted_for(cluster, traffic.topic, len(traffic.acknowledged))["dead"] == 0
        nothing_left_parked(cluster.url)
        until(lambda: not complains(cluster.url, "gateway"), "nobody complains any more")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("node_id", ["gateway-2", "ingest-1"])
def test_a_node_told_to_stop_under_load_takes_its_leave_and_nothing_is_lost(
    cluster: Cluster, urls: dict[str, str], node_id: str
) -> None:
    everywhere = list(urls.values())
    with (
        Traffic(cluster, url=",".join(everywhere)) as traffic,
        Readers(everywhere, traffic.topic) as readers,
    ):
        moving = [readers.open(name) for name in belonging_to("gateway-2")]
        first = traffic.next_number
        assert cluster.stop(node_id) == 0
        takes_its_leave(cluster, node_id)
        port = same_port(urls[node_id]) if node_id in urls else None
        cluster.start(node_id.rpartition("-")[0], node_id, port)
        traffic.flows()
        traffic.end()
        for reader in moving:
            traffic.check(reader, first)
        assert accounted_for(cluster, traffic.topic, len(traffic.acknowledged))["dead"] == 0
        nothing_left_parked(cluster.url)


def says_what_is_wrong(cluster: Cluster) -> None:
    """At once that gateways are cut off, and after their leases that there are none."""
    coordinator = cluster.coordinator_url("coordinator-1")
    until(lambda: complains(coordinator, "gateway", "cut off", *GATEWAYS), "health says it")
    lost = [n["id"] for n in cluster.status_without_gateways()["nodes"] if n["state"] == "lost"]
    assert lost == list(GATEWAYS)
    until(lambda: complains(coordinator, "gateway: none is connected"), "health says it")
    found = bad(cluster.command("doctor", "--json", "--url", coordinator))
    assert found["gateway"] == "none is connected"
