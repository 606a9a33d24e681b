"""A producer and a subscriber that run while a test breaks something, and what must hold then."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import defaultdict
from typing import Any, Self

from headgate.client import SyncProducer
from headgate.client.pending import ProducerOptions
from tests.system.cluster import Cluster
from tests.system.harness import Command, until

KEYS = 24
PAUSE_S = 0.01
topic_numbers = itertools.count(1)


class Traffic:
    """About 100 events a second to a topic of its own, and one subscriber to all of them.

    Ended without an error, it has checked: everything that was acknowledged was delivered, every
    key in order, no position twice.
    """

    def __init__(self, cluster: Cluster, *, partitions: int = 4, url: str = "") -> None:
        self.topic = f"traffic-{next(topic_numbers)}"
        self._cluster = cluster
        self._partitions = partitions
        self._url = url or cluster.url
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._error: BaseException | None = None
        self._subscriber: Command | None = None
        self._others: list[Command] = []
        self.acknowledged: list[int] = []
        self.sent_at_s: list[float] = []

    def __enter__(self) -> Self:
        cluster = self._cluster
        arguments = ("topic", "create", self.topic, "--partitions", str(self._partitions))
        assert cluster.command(*arguments).wait() == 0
        self._subscriber = cluster.subscribe(self.topic, url=self._url)
        self._thread.start()
        self.flows()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stopping.set()
        try:
            if kind is None:
                self._check()
        finally:
            assert self._subscriber is not None
            for subscriber in (self._subscriber, *self._others):
                subscriber.stop()
            self._cluster.command("topic", "delete", "--yes", self.topic).wait()

    def also_at(self, url: str) -> Command:
        """Another subscriber to all of it, at the gateway there."""
        self._others.append(self._cluster.subscribe(self.topic, url=url))
        return self._others[-1]

    def _produce(self) -> None:
        options = ProducerOptions(deadline_s=90.0)
        try:
            with SyncProducer(self._cluster.url, options) as producer:
                for number in itertools.count():
                    if self._stopping.wait(PAUSE_S):
                        return
                    self.sent_at_s.append(time.monotonic())
                    producer.send(self.topic, {"n": number}, key=f"k{number % KEYS}")
                    self.acknowledged.append(number)
        except Exception as error:  # noqa: BLE001  # raised again where the traffic ends
            self._error = error

    @property
    def delivered(self) -> list[str]:
        assert self._subscriber is not None
        return self._subscriber.out.lines

    def flows(self, timeout_s: float = 60.0) -> float:
        """Wait until an event that is sent from now on arrives; returns how long that took."""
        begun_s, sent = time.monotonic(), len(self.acknowledged)
        until(lambda: len(self.delivered) > sent + 5, f"{self.topic} flows", timeout_s)
        return time.monotonic() - begun_s

    def end(self) -> None:
        """No more is produced; what was, is complete."""
        self._stopping.set()
        self._thread.join(90)
        if self._error is not None:
            raise self._error
        assert not self._thread.is_alive(), "the producer hangs"

    def latencies_s(self, begun_s: float, ended_s: float) -> list[float]:
        """How long each event that was sent between the two took to its subscriber."""
        assert self._subscriber is not None
        out = self._subscriber.out
        arrived = ((json.loads(line)["document"]["n"], at_s) for line, at_s in out.timed())
        return sorted(
            at_s - self.sent_at_s[number]
            for number, at_s in arrived
            if begun_s <= self.sent_at_s[number] < ended_s
        )

    def _check(self) -> None:
        self.end()
        self.check(self.delivered)

    def check(self, delivered: list[str]) -> None:
        """Everything that was acknowledged came, every key in order, no position twice."""
        until(lambda: len(delivered) >= len(self.acknowledged), "all is delivered", 60.0)
        events: list[dict[str, Any]] = [json.loads(line) for line in delivered]
        positions = [(event["partition"], event["seq"]) for event in events]
        assert len(set(positions)) == len(positions), "a position was delivered twice"
        by_key: dict[str, list[int]] = defaultdict(list)
        for event in events:
            by_key[event["key"]].append(event["document"]["n"])
        for key, numbers in by_key.items():
            assert numbers == sorted(numbers), f"{key} out of order"
        assert {n for numbers in by_key.values() for n in numbers} >= set(self.acknowledged)
