"""Records that don't come as usual: an operator skips some and has others delivered again, the log
has lost them, or one is corrupt; with real processes and real Spark.

Each test has its own topic, and says itself whether the router runs."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from headgate.decide.delivery.lost_logs import next_head
from tests.system.cluster import PLAIN_ROUTER, Cluster
from tests.system.harness import Command, until

Totals = Callable[[], dict[str, int]]

SETTINGS = {"HEADGATE_RELIABILITY__CHECKPOINT__INTERVAL": "500ms"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("reset") / "data"
    with Cluster(data, settings=SETTINGS, router_program=PLAIN_ROUTER) as running:
        yield running


def run(cluster: Cluster, *arguments: str, stdin: str = "") -> None:
    command = cluster.command(*arguments)
    assert command.process.stdin is not None
    command.process.stdin.write(stdin)
    command.process.stdin.close()
    assert command.wait() == 0, command.err.lines


def produce(cluster: Cluster, topic: str, first: int, last: int) -> None:
    lines = "".join(json.dumps({"n": number}) + "\n" for number in range(first, last + 1))
    run(cluster, "produce", topic, stdin=lines)


def heard(subscriber: Command, count: int) -> list[dict[str, Any]]:
    """What it has printed, once that is `count` events; nothing more may be on its way then."""
    until(lambda: len(subscriber.out.lines) >= count, f"{count} events arrive", 60.0)
    assert len(subscriber.out.lines) == count
    return [json.loads(line) for line in subscriber.out.lines]


class Topic:
    """A new topic and what the sums of the cluster have grown by since."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        run(cluster, "topic", "create", name)
        self._before = self._all()

    def _all(self) -> dict[str, int]:
        found: dict[str, int] = self._cluster.status()["totals"]
        assert found["appended"] == found["settled"] + found["waiting"]
        kinds = ("acknowledged", "parked", "dead", "released", "unmatched", "skipped", "uncounted")
        assert found["settled"] + found["repeated"] == sum(found[kind] for kind in kinds)
        return found

    def totals(self) -> dict[str, int]:
        return {kind: count - self._before[kind] for kind, count in self._all().items()}


@pytest.mark.timeout(400)
def test_records_are_skipped_with_and_without_a_word_and_come_again(cluster: Cluster) -> None:
    if cluster.runs("router-1"):
        cluster.stop("router-1")
    topic = Topic(cluster, "skipped")
    subscriber = cluster.subscribe("skipped")
    try:
        _skipped_then_again(cluster, topic.totals, subscriber)
    finally:
        subscriber.stop()


def _skipped_then_again(cluster: Cluster, totals: Totals, subscriber: Command) -> None:
    # Nobody reads the topic yet, so all of it waits.
    produce(cluster, "skipped", 1, 10)
    until(lambda: totals()["waiting"] == 10, "ten records wait")
    run(cluster, "partition", "reset", "skipped:0", "--to", "5", "--yes")
    assert (totals()["skipped"], totals()["waiting"]) == (4, 6)
    run(cluster, "partition", "reset", "skipped:0", "--to", "latest", "--resync", "--yes")
    assert totals()["skipped"] == 4, "subscribers are told first"

    cluster.start("router", "router-1")
    until(lambda: totals()["waiting"] == 0, "the others are skipped", 120.0)
    assert totals()["skipped"] == 10
    until(lambda: _knows(subscriber), "the subscriber knows of what is skipped", 60.0)
    before = len(subscriber.out.lines)
    produce(cluster, "skipped", 11, 15)
    assert [one["seq"] for one in heard(subscriber, before + 5)[before:]] == [11, 12, 13, 14, 15]
    until(lambda: totals()["acknowledged"] == 5, "what arrived is counted")

    run(cluster, "partition", "reset", "skipped:0", "--to", "earliest", "--yes")
    until(lambda: totals()["acknowledged"] == 20, "everything is settled again", 120.0)
    assert totals()["repeated"] == 15
    again = heard(subscriber, before + 20)[before + 5 :]
    assert [one["seq"] for one in again] == list(range(1, 16))
    assert all(one["redelivery"] is True for one in again)
    produce(cluster, "skipped", 16, 16)
    last = heard(subscriber, before + 21)[-1]
    assert (last["seq"], "redelivery" in last) == (16, False)
    until(lambda: totals()["acknowledged"] == 21, "every delivery is counted")
    assert totals()["skipped"] == 10
    assert {one["state"] for one in cluster.partitions("skipped")} == {"healthy"}


def _knows(subscriber: Command) -> bool:
    """It is told; or, where a busy machine cut it off meanwhile, it has read the log instead."""
    said = "records 5 to 10 of partition 0 of skipped were lost or skipped"
    return any(said in line for line in subscriber.err.lines) or len(subscriber.out.lines) == 10


@pytest.mark.timeout(300)
def test_a_lost_log_goes_on_behind_what_was_delivered_and_subscribers_are_told(
    cluster: Cluster,
) -> None:
    if not cluster.runs("router-1"):
        cluster.start("router", "router-1")
    topic = Topic(cluster, "lost")
    subscriber = cluster.subscribe("lost")
    try:
        _lost_and_gone_on(cluster, topic.totals, subscriber)
    finally:
        subscriber.stop()


def _lost_and_gone_on(cluster: Cluster, totals: Totals, subscriber: Command) -> None:
    produce(cluster, "lost", 1, 10)
    heard(subscriber, 10)
    until(lambda: totals()["settled"] == 10, "everything is settled")
    cluster.stop("ingest-1")
    for file in (cluster.data / "log" / "lost").iterdir():
        file.unlink()
    until(lambda: _state(cluster)[0] == "stale", "the loss is noticed")
    assert "the log of lost:0 ends at 0, but it was delivered up to 10" in _state(cluster)[1]

    cluster.start("ingest", "ingest-1")
    head = next_head(10)
    said = f"records 11 to {head} of partition 0 of lost were lost or skipped"
    until(lambda: any(said in line for line in subscriber.err.lines), "the subscriber is told")
    until(lambda: _state(cluster) == ("healthy", ""), "everybody knows")
    produce(cluster, "lost", 11, 15)
    new = heard(subscriber, 15)[10:]
    assert [one["seq"] for one in new] == list(range(head + 1, head + 6))
    assert [one["document"]["n"] for one in new] == list(range(11, 16))
    until(lambda: totals()["acknowledged"] == 15, "what arrived is counted")
    found = totals()
    assert (found["skipped"], found["waiting"]) == (head - 10, 0)
    assert found["appended"] == head + 5


def _state(cluster: Cluster) -> tuple[str, str]:
    return _state_of(cluster, "lost")


def _state_of(cluster: Cluster, topic: str) -> tuple[str, str]:
    [partition] = cluster.partitions(topic)
    return partition["state"], partition["reason"]


@pytest.mark.timeout(300)
def test_a_corrupt_record_stops_its_partition_until_it_is_skipped_as_the_sentence_says(
    cluster: Cluster,
) -> None:
    if cluster.runs("router-1"):
        cluster.stop("router-1")
    topic = Topic(cluster, "spoilt")
    subscriber = cluster.subscribe("spoilt")
    try:
        _spoilt_and_skipped(cluster, topic.totals, subscriber)
    finally:
        subscriber.stop()


def _spoilt_and_skipped(cluster: Cluster, totals: Totals, subscriber: Command) -> None:
    produce(cluster, "spoilt", 1, 10)
    until(lambda: totals()["waiting"] == 10, "ten records wait")
    with closing(sqlite3.connect(cluster.data / "log" / "spoilt" / "0.db")) as file, file:
        file.execute("UPDATE records SET document = ? WHERE seq = 5", (b'{"n":6}',))
    cluster.start("router", "router-1")
    until(lambda: _state_of(cluster, "spoilt")[0] == "failed", "it is noticed", 120.0)
    assert [one["seq"] for one in heard(subscriber, 4)] == [1, 2, 3, 4]
    reason = _state_of(cluster, "spoilt")[1]
    assert reason.startswith("record 5 of spoilt:0 is corrupt")
    verify = cluster.command("log", "verify", "spoilt")
    assert verify.wait() == 1
    assert "record 5 of spoilt:0 is corrupt" in "\n".join(verify.err.lines)
    produce(cluster, "spoilt", 11, 11)
    assert len(subscriber.out.lines) == 4, "nothing passes it"

    [way_on] = re.findall(r"`headgate (partition reset spoilt:0 [^`]*)`", reason)
    run(cluster, *way_on.split(), "--yes")
    said = "records 5 to 5 of partition 0 of spoilt"
    until(lambda: any(said in line for line in subscriber.err.lines), "the subscriber is told")
    assert [one["seq"] for one in heard(subscriber, 10)[4:]] == [6, 7, 8, 9, 10, 11]
    until(lambda: _state_of(cluster, "spoilt") == ("healthy", ""), "everybody knows")
    until(lambda: totals()["waiting"] == 0, "everything is settled")
    assert (totals()["skipped"], totals()["acknowledged"]) == (1, 10)
    replayed = cluster.command("subscribe", "spoilt", "--from", "earliest", "--json")
    try:
        assert [one["seq"] for one in heard(replayed, 10)] == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
        assert any(f"{said} are corrupt" in line for line in replayed.err.lines)
    finally:
        replayed.stop()
