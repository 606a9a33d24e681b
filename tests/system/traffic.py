"""A producer and a subscriber that run while a test breaks something, and what must hold then."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, Self

from headgate.client import SyncProducer
from headgate.client.producing.outgoing import OutgoingEvent
from headgate.client.producing.pending import ProducerOptions
from headgate.errors import HeadgateError
from tests.system.cluster import Cluster
from tests.system.harness import Command, create_topic, delete_topic, knows_topic, until

KEYS = 24
PAUSE_S = 0.04
AT_ONCE = 4
SAID_LAST = 12
topic_numbers = itertools.count(1)


class Receiver(Protocol):
    """Somebody who gets events."""

    @property
    def events(self) -> list[dict[str, Any]]: ...

    @property
    def arrivals(self) -> list[tuple[int, float]]:
        """The number of each event that came, with when it came."""


class Printed:
    """What a `headgate subscribe` got."""

    def __init__(self, subscriber: Command) -> None:
        self._out = subscriber.out

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._out.lines]

    @property
    def arrivals(self) -> list[tuple[int, float]]:
        return [(json.loads(line)["document"]["n"], at_s) for line, at_s in self._out.timed()]


class Traffic:
    """About 100 events a second to a topic of its own, and one subscriber to all of them.

    Ended without an error, it has checked for all its subscribers: everything that was
    acknowledged was delivered, every key in order, no position twice. `at_once` is how many one
    request has.
    """

    def __init__(
        self, cluster: Cluster, *, partitions: int = 4, keys: int = KEYS, url: str = ""
    ) -> None:
        self.topic = f"traffic-{next(topic_numbers)}"
        self._cluster = cluster
        self._partitions = partitions
        self._keys = keys
        self._url = url or cluster.url
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._error: BaseException | None = None
        self._subscriber: Command | None = None
        self._others: list[tuple[Command, int]] = []
        self.at_once = AT_ONCE
        self.acknowledged: list[int] = []
        self.sent_at_s: list[float] = []
        self._requests: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        cluster = self._cluster
        create_topic(cluster.url, self.topic, self._partitions)
        for url in self._url.split(","):
            until(partial(knows_topic, url, self.topic), f"{url} has heard of the topic")
        self._subscriber = cluster.subscribe(self.topic, url=self._url)
        self._thread.start()
        try:
            self.flows()
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stopping.set()
        try:
            if kind is None:
                self._check()
        finally:
            assert self._subscriber is not None
            for subscriber in (self._subscriber, *(other for other, _ in self._others)):
                subscriber.stop()
            with contextlib.suppress(OSError):  # A test that failed has left nobody to answer.
                delete_topic(self._cluster.url, self.topic)

    def also_at(self, url: str) -> Command:
        """Another subscriber to all of it, at the gateway there."""
        other = self._cluster.subscribe(self.topic, url=url)
        self._others.append((other, self.next_number))
        return other

    @property
    def next_number(self) -> int:
        """A subscriber of now gets at least this one and all after it: one may be under way."""
        return len(self.acknowledged) + self.at_once

    def _produce(self) -> None:
        options = ProducerOptions(deadline_s=90.0)
        try:
            with SyncProducer(self._cluster.url, options) as producer:
                while not self._stopping.wait(PAUSE_S):
                    self._send(producer)
        except Exception as error:  # noqa: BLE001  # raised again where the traffic ends
            self._error = error

    def _send(self, producer: SyncProducer) -> None:
        first = len(self.acknowledged)
        numbers = range(first, first + self.at_once)
        sent_at_s = time.monotonic()
        self.sent_at_s += [sent_at_s] * len(numbers)
        events = [OutgoingEvent({"n": number}, key=f"k{number % self._keys}") for number in numbers]
        for outcome in producer.send_many(self.topic, events):
            if isinstance(outcome, HeadgateError):
                raise outcome
        self.acknowledged += numbers
        self._requests.append((sent_at_s, time.monotonic() - sent_at_s))

    @property
    def subscriber(self) -> Command:
        assert self._subscriber is not None
        return self._subscriber

    @property
    def delivered(self) -> list[str]:
        return self.subscriber.out.lines

    def flows(self, timeout_s: float = 60.0) -> None:
        """Wait until an event that is sent from now on arrives."""
        sent = len(self.acknowledged)
        self._await(lambda: len(self.delivered) > sent + 5, "flows", timeout_s)

    def goes_on(self, count: int) -> None:
        """Wait until so many more are sent."""
        sent = len(self.sent_at_s)
        self._await(lambda: len(self.sent_at_s) >= sent + count, f"has {count} more", 60.0)

    def _await(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Raises why nothing is sent any more, if that is so; and where it stands, in vain."""

        def holds() -> bool:
            if self._error is not None:
                raise AssertionError(f"{self.topic}: the producer has ended") from self._error
            return condition()

        try:
            until(holds, f"{self.topic} {what}", timeout_s)
        except AssertionError as error:
            error.add_note(self._standing())
            raise

    def _standing(self) -> str:
        """How far everybody is, and what the nodes have said last."""
        sent, acknowledged = len(self.sent_at_s), len(self.acknowledged)
        lines = [f"{sent} sent, {acknowledged} acknowledged, {len(self.delivered)} delivered"]
        lines += [f"subscriber: {line}" for line in self.subscriber.err.lines[-SAID_LAST:]]
        for ask in (lambda: self._cluster.partitions(self.topic), self._cluster.nodes):
            try:
                lines.append(json.dumps(ask()))
            except (OSError, ValueError) as error:
                lines.append(f"the gateway doesn't say: {error}")
        for node_id, said in self._cluster.said().items():
            lines += [f"{node_id}: {line}" for line in said[-SAID_LAST:]]
        return "\n".join(lines)

    def end(self) -> None:
        """No more is produced; what was, is complete."""
        self._stopping.set()
        self._thread.join(90)
        if self._error is not None:
            raise self._error
        assert not self._thread.is_alive(), "the producer hangs"

    @property
    def own(self) -> Receiver:
        return Printed(self.subscriber)

    def longest_answer_s(self, begun_s: float, ended_s: float) -> float:
        """How long a request that was sent between the two took to be acknowledged, at most."""
        answers_s = [took_s for at_s, took_s in self._requests if begun_s <= at_s < ended_s]
        return max(answers_s, default=0.0)

    def latencies_s(self, receiver: Receiver, begun_s: float, ended_s: float) -> list[float]:
        """How long each event that was sent between the two took to get there."""
        return [
            at_s - self.sent_at_s[number]
            for number, at_s in receiver.arrivals
            if begun_s <= self.sent_at_s[number] < ended_s
        ]

    def _check(self) -> None:
        self.end()
        self.check(self.own, 0)
        for other, first in self._others:
            self.check(Printed(other), first)

    def check(self, receiver: Receiver, first: int) -> None:
        """Everything that was acknowledged came, from number `first` on, every key in order, no
        position twice; only what an operator had sent again may come late, or once more."""
        wanted = set(self.acknowledged[first:])
        until(lambda: wanted <= {number for number, _ in receiver.arrivals}, "all is delivered")
        events = receiver.events
        unmarked = [event for event in events if not event.get("redelivery")]
        positions = [(event["partition"], event["seq"]) for event in unmarked]
        assert len(set(positions)) == len(positions), "a position was delivered twice"
        by_key: dict[str, list[int]] = defaultdict(list)
        for event in unmarked:
            by_key[event["key"]].append(event["document"]["n"])
        for key, numbers in by_key.items():
            assert numbers == sorted(numbers), f"{key} out of order"
