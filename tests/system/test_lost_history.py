"""The log of a partition is lost while positions and subscribers live on, with real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.decide.history import next_head
from tests.system.cluster import Cluster
from tests.system.harness import Command, until
from tests.system.test_reset import TOPIC, heard, produce, run, totals

SETTINGS = {"HEADGATE_RELIABILITY__CHECKPOINT__INTERVAL": "500ms"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("lost-history") / "data"
    with Cluster(data, routers=1, settings=SETTINGS) as running:
        run(running, "topic", "create", TOPIC)
        yield running


@pytest.mark.timeout(300)
def test_a_lost_log_goes_on_behind_what_was_delivered_and_subscribers_are_told(
    cluster: Cluster,
) -> None:
    subscriber = cluster.subscribe(TOPIC)
    try:
        _lost_and_gone_on(cluster, subscriber)
    finally:
        subscriber.stop()


def _lost_and_gone_on(cluster: Cluster, subscriber: Command) -> None:
    produce(cluster, 1, 10)
    heard(subscriber, 10)
    until(lambda: totals(cluster)["settled"] == 10, "everything is settled")
    cluster.stop("ingest-1")
    for file in (cluster.data / "log" / TOPIC).iterdir():
        file.unlink()
    until(lambda: _state(cluster)[0] == "stale", "the loss is noticed")
    assert "the log of flights:0 ends at 0, but it was delivered up to 10" in _state(cluster)[1]

    cluster.start("ingest", "ingest-1")
    head = next_head(10)
    said = f"records 11 to {head} of partition 0 of flights were lost or skipped"
    until(lambda: any(said in line for line in subscriber.err.lines), "the subscriber is told")
    until(lambda: _state(cluster) == ("healthy", ""), "everybody knows")
    produce(cluster, 11, 15)
    new = heard(subscriber, 15)[10:]
    assert [one["seq"] for one in new] == list(range(head + 1, head + 6))
    assert [one["document"]["n"] for one in new] == list(range(11, 16))
    until(lambda: totals(cluster)["acknowledged"] == 15, "what arrived is counted")
    found = totals(cluster)
    assert (found["skipped"], found["waiting"]) == (head - 10, 0)
    assert found["appended"] == head + 5


def _state(cluster: Cluster) -> tuple[str, str]:
    [partition] = cluster.partitions(TOPIC)
    return partition["state"], partition["reason"]
