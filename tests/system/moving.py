"""Partitions that change hands between two routers while events flow."""

from __future__ import annotations

from collections import Counter

from tests.system.cluster import Cluster
from tests.system.harness import until
from tests.system.traffic import Traffic


def shared(cluster: Cluster, topic: str, *routers: str) -> None:
    """Wait until every partition has come to rest, spread over exactly these routers."""

    def is_so() -> bool:
        status, owners = cluster.status(), cluster.routers(topic)
        return set(owners.values()) == set(routers) and not status["moves"]

    until(is_so, f"{topic} is with {routers}", 60.0)


def drained_and_back(cluster: Cluster, traffic: Traffic, drained: str, other: str) -> None:
    """What `drained` has goes to the `other` router, and half of it all comes back."""
    assert cluster.command("node", "drain", drained).wait() == 0
    shared(cluster, traffic.topic, other)
    traffic.flows()
    assert cluster.command("node", "drain", drained, "--cancel").wait() == 0
    shared(cluster, traffic.topic, drained, other)
    counts = Counter(cluster.routers(traffic.topic).values())
    assert set(counts.values()) == {2}
    traffic.flows()
