"""Steady events over many keys, and one subscriber that gets them all, through any cutover.

Every event has its call, its acknowledgement and its reception on the monotonic clock; producer,
subscriber and clock are one process. A call that fails is counted, and its event isn't waited for.

Invariant: every event that was acknowledged is received, and each key in order, or `finish` fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from headgate.bench.result import Failed
from headgate.client import Event, Producer, Subscriber
from headgate.demo.figures import Pace
from headgate.errors import HeadgateError
from headgate.tasks import Crew

KEYS = 1_000
PATIENCE_S = 60.0


class Document(msgspec.Struct):
    number: int


@dataclass(slots=True)
class Sent:
    """One event, with the times of what happened to it (None: it hasn't)."""

    called_s: float
    answered_s: float | None = None
    failed: bool = False
    received_s: float | None = None

    @property
    def produce_ms(self) -> float:
        assert self.answered_s is not None
        return (self.answered_s - self.called_s) * 1_000

    @property
    def deliver_ms(self) -> float:
        """One that is received before its producer has the acknowledgement counts as 0."""
        assert self.answered_s is not None
        assert self.received_s is not None
        return max(self.received_s - self.answered_s, 0.0) * 1_000


@dataclass(slots=True)
class Traffic:
    topic: str
    per_s: float
    events: list[Sent] = field(default_factory=list)
    _latest: dict[int, int] = field(default_factory=dict)
    _disorder: str = ""
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _sent_all: asyncio.Event = field(default_factory=asyncio.Event)
    _received: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, producer: Producer) -> None:
        """At its pace until told to stop; returns when every call has ended."""
        loop = asyncio.get_running_loop()
        pace = Pace(per_s=self.per_s, start_s=loop.time())
        async with asyncio.TaskGroup() as sending:
            while not self._stopping.is_set():
                for _ in range(pace.take(loop.time())):
                    sent = Sent(time.monotonic())
                    sending.create_task(self._send_one(producer, len(self.events), sent))
                    self.events.append(sent)
                await asyncio.sleep(max(0.0, pace.due_s - loop.time()))
        self._sent_all.set()

    async def _send_one(self, producer: Producer, number: int, sent: Sent) -> None:
        document = msgspec.json.encode(Document(number))
        try:
            await producer.send(self.topic, document, key=f"key-{number % KEYS}")
        except HeadgateError:
            sent.failed = True
        sent.answered_s = time.monotonic()

    async def receive(self, subscriber: Subscriber) -> None:
        decode = msgspec.json.Decoder(Document).decode
        async for item in subscriber:
            if isinstance(item, Event):
                self.note(decode(item.raw).number, time.monotonic())
                self._received.set()

    def note(self, number: int, received_s: float) -> None:
        """An event has come; the first time is what counts."""
        sent, key = self.events[number], number % KEYS
        if sent.received_s is not None:
            return
        sent.received_s = received_s
        if number < self._latest.get(key, -1):
            self._disorder = f"event {number} came after {self._latest[key]}, of the same key"
        self._latest[key] = max(number, self._latest.get(key, -1))

    async def finish(self) -> None:
        """Send no more, and wait until all has arrived."""
        self._stopping.set()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._sent_all.wait()
                while self._missing():
                    self._received.clear()
                    await self._received.wait()
        except TimeoutError:
            raise Failed(f"{self._missing()} of {len(self.events)} events did not arrive") from None
        if self._disorder:
            raise Failed(self._disorder)

    def _missing(self) -> int:
        return sum(not sent.failed and sent.received_s is None for sent in self.events)


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of the calls of a stretch of time, in order."""

    produce_ms: list[float]
    deliver_ms: list[float]
    failed: int


def seen_between(events: Iterable[Sent], begun_s: float, ended_s: float) -> Seen:
    """By when calls began. Failed calls took as long as they took, and are no deliveries."""
    called = [sent for sent in events if begun_s <= sent.called_s < ended_s]
    return Seen(
        sorted(sent.produce_ms for sent in called),
        sorted(sent.deliver_ms for sent in called if not sent.failed),
        sum(sent.failed for sent in called),
    )


def longest_hold_ms(events: Iterable[Sent], asked_s: float, fenced_s: float) -> float:
    """The longest call that was under way at any time from the request to the fence."""
    return max(
        (
            sent.produce_ms
            for sent in events
            if sent.answered_s is not None
            and sent.called_s <= fenced_s
            and sent.answered_s >= asked_s
        ),
        default=0.0,
    )


@asynccontextmanager
async def traffic(url: str, topic: str, per_s: float) -> AsyncIterator[Traffic]:
    """Runs until `finish` is called."""
    flow = Traffic(topic, per_s)
    async with (
        Subscriber(url, topic) as subscriber,
        Producer(url) as producer,
        Crew("bench") as crew,
    ):
        crew.need("receiving", flow.receive(subscriber))
        crew.start("sending", flow.send(producer))
        yield flow
