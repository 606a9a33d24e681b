"""Consumers as processes that share a topic, while one is killed and one joins under load."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headgate.client import SyncProducer
from headgate.client.producing.outgoing import OutgoingEvent
from tests.system.cluster import PLAIN_ROUTER, Cluster
from tests.system.harness import Command, create_topic, environment, until

SETTINGS = {"HEADGATE_COORDINATOR__TIMEOUT": "6s", "HEADGATE_COORDINATOR__CHECK_IN": "1s"}
TOPIC = "shared"
KEYS = 60
UNSAID = 32 + 1
"""Most events that a consumer has processed and not acknowledged."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("group") / "data"
    with Cluster(data, routers=1, settings=SETTINGS, router_program=PLAIN_ROUTER) as running:
        create_topic(running.url, TOPIC, 4)
        until(lambda: set(running.routers(TOPIC).values()) == {"router-1"}, "it is routed")
        yield running


class Consumers:
    """Processes by their id in the group, and what each of them printed."""

    def __init__(self, cluster: Cluster) -> None:
        self._url = cluster.url
        self.all: dict[str, Command] = {}

    def start(self, name: str) -> None:
        self.all[name] = command = Command(
            [self._url, TOPIC, name, "0.002"],
            environment(),
            Path(__file__).parents[2],
            program=(sys.executable, "-m", "tests.system.consumer_process"),
        )
        command.until_said("joined", 60.0)

    def processed(self) -> list[tuple[int, str, str, int]]:
        """Time, consumer, key and number of all, in the order of time."""
        return sorted(
            (int(at), name, key, int(number))
            for name, command in self.all.items()
            for at, key, number, *_ in (line.split() for line in tuple(command.out.lines))
        )

    def numbers(self) -> set[int]:
        return {number for _, _, _, number in self.processed()}

    def stop(self) -> None:
        for command in self.all.values():
            command.stop()


class Load:
    """About 400 events a second, each key with growing numbers, until it is stopped."""

    def __init__(self, url: str) -> None:
        self.sent = 0
        self._url = url
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._thread.start()

    def _produce(self) -> None:
        with SyncProducer(self._url) as producer:
            while not self._stopping.wait(0.05):
                events = [_event(self.sent + step) for step in range(20)]
                outcomes = producer.send_many(TOPIC, events)
                assert not any(isinstance(outcome, Exception) for outcome in outcomes)
                self.sent += len(events)

    def stop(self) -> int:
        self._stopping.set()
        self._thread.join(30)
        return self.sent


def _event(number: int) -> OutgoingEvent:
    return OutgoingEvent(b'{"n": %d}' % number, key=f"key-{number % KEYS}")


@pytest.mark.timeout(300)
def test_a_kill_and_a_join_under_load_miss_nothing_and_keep_every_key_in_order(
    cluster: Cluster,
) -> None:
    consumers = Consumers(cluster)
    try:
        for name in ("one", "two", "three"):
            consumers.start(name)
        load = Load(cluster.url)
        until(lambda: len(_counts(consumers)) == 3, "all three get something", 60)
        until(lambda: load.sent > 1_500, "there is load", 60)
        os.kill(consumers.all["two"].process.pid, signal.SIGKILL)
        consumers.start("four")
        until(lambda: "four" in _counts(consumers), "the new one gets something", 60)
        at_most = load.sent
        until(lambda: load.sent > at_most + 3_000, "the load goes on", 60)
        sent = load.stop()
        until(lambda: len(consumers.numbers()) == sent, "everything is processed", 90)
        consumers.all["three"].process.terminate()
        assert consumers.all["three"].wait(30) == 0, "it leaves in good order"
        check(consumers.processed(), sent=sent, killed="two")
    finally:
        consumers.stop()


def _counts(consumers: Consumers) -> Counter[str]:
    return Counter(name for _, name, _, _ in consumers.processed())


def check(processed: Sequence[tuple[int, str, str, int]], *, sent: int, killed: str) -> None:
    first: dict[int, str] = {}
    repeated: list[tuple[str, int]] = []
    by_key: dict[str, list[int]] = defaultdict(list)
    for _, name, key, number in processed:
        if number in first:
            repeated.append((first[number], number))
            continue
        first[number] = name
        by_key[key].append(number)
    assert sorted(first) == list(range(sent)), "something is missed"
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "a key is out of order"
    assert {name for name, _ in repeated} <= {killed}, "only the dead left something undone"
    assert len(repeated) <= UNSAID
