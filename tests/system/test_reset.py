"""An operator skips records and has others delivered again, with real processes and real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.cluster import Cluster
from tests.system.harness import Command, until

TOPIC = "flights"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("reset") / "data") as running:
        run(running, "topic", "create", TOPIC)
        yield running


def run(cluster: Cluster, *arguments: str, stdin: str = "") -> None:
    command = cluster.command(*arguments)
    assert command.process.stdin is not None
    command.process.stdin.write(stdin)
    command.process.stdin.close()
    assert command.wait() == 0, command.err.lines


def produce(cluster: Cluster, first: int, last: int) -> None:
    lines = "".join(json.dumps({"n": number}) + "\n" for number in range(first, last + 1))
    run(cluster, "produce", TOPIC, stdin=lines)


def heard(subscriber: Command, count: int) -> list[dict[str, Any]]:
    """What it has printed, once that is `count` events; nothing more may be on its way then."""
    until(lambda: len(subscriber.out.lines) >= count, f"{count} events arrive", 60.0)
    assert len(subscriber.out.lines) == count
    return [json.loads(line) for line in subscriber.out.lines]


def totals(cluster: Cluster) -> dict[str, int]:
    found: dict[str, int] = cluster.status()["totals"]
    assert found["appended"] == found["settled"] + found["waiting"]
    kinds = ("acknowledged", "parked", "dead", "released", "unmatched", "skipped", "uncounted")
    assert found["settled"] + found["repeated"] == sum(found[kind] for kind in kinds)
    return found


@pytest.mark.timeout(400)
def test_records_are_skipped_with_and_without_a_word_and_come_again(cluster: Cluster) -> None:
    subscriber = cluster.subscribe(TOPIC)
    try:
        _skipped_then_again(cluster, subscriber)
    finally:
        subscriber.stop()


def _skipped_then_again(cluster: Cluster, subscriber: Command) -> None:
    # Nobody reads the topic yet, so all of it waits.
    produce(cluster, 1, 10)
    until(lambda: totals(cluster)["waiting"] == 10, "ten records wait")
    run(cluster, "partition", "reset", f"{TOPIC}:0", "--to", "5", "--yes")
    assert (totals(cluster)["skipped"], totals(cluster)["waiting"]) == (4, 6)
    run(cluster, "partition", "reset", f"{TOPIC}:0", "--to", "latest", "--resync", "--yes")
    assert totals(cluster)["skipped"] == 4, "subscribers are told first"

    cluster.start("router", "router-1")
    until(lambda: totals(cluster)["waiting"] == 0, "the others are skipped", 120.0)
    assert totals(cluster)["skipped"] == 10
    until(lambda: _knows(subscriber), "the subscriber knows of what is skipped", 60.0)
    before = len(subscriber.out.lines)
    produce(cluster, 11, 15)
    assert [one["seq"] for one in heard(subscriber, before + 5)[before:]] == [11, 12, 13, 14, 15]
    until(lambda: totals(cluster)["acknowledged"] == 5, "what arrived is counted")

    run(cluster, "partition", "reset", f"{TOPIC}:0", "--to", "earliest", "--yes")
    until(lambda: totals(cluster)["acknowledged"] == 20, "everything is settled again", 120.0)
    assert totals(cluster)["repeated"] == 15
    again = heard(subscriber, before + 20)[before + 5 :]
    assert [one["seq"] for one in again] == list(range(1, 16))
    assert all(one["redelivery"] is True for one in again)
    produce(cluster, 16, 16)
    last = heard(subscriber, before + 21)[-1]
    assert (last["seq"], "redelivery" in last) == (16, False)
    until(lambda: totals(cluster)["acknowledged"] == 21, "every delivery is counted")
    assert totals(cluster)["skipped"] == 10
    assert {one["state"] for one in cluster.partitions(TOPIC)} == {"healthy"}


def _knows(subscriber: Command) -> bool:
    """It is told; or, where a busy machine cut it off meanwhile, it has read the log instead."""
    said = "records 5 to 10 of partition 0 of flights were lost or skipped"
    return any(said in line for line in subscriber.err.lines) or len(subscriber.out.lines) == 10
