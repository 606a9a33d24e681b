"""Steady events into every partition of a topic, and one subscriber that gets them all.

Each partition gets its turn, in an order that is shuffled once, so any stretch of time sees as many
partitions as it can. Producer, subscriber and clock are one process. An event's latency starts when
its producer has the acknowledgement, that is after the fsync, and ends when the subscriber has it.

Invariant: every event that was sent is received, or `finish` fails.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from headgate.bench.result import Failed
from headgate.client import Event, Producer, Subscriber
from headgate.decide.produce.placement import partition_of
from headgate.demo.figures import Pace
from headgate.tasks import Crew

PATIENCE_S = 30.0
SEED = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """One event: when it was durable and when it was received, on the monotonic clock."""

    partition: int
    appended_s: float
    received_s: float

    @property
    def latency_ms(self) -> float:
        return max(self.received_s - self.appended_s, 0.0) * 1_000


class Document(msgspec.Struct):
    number: int


def keys_of(partitions: int) -> list[str]:
    """For each partition a key that leads to it."""
    found: dict[int, str] = {}
    for number in itertools.count():
        key = f"key-{number}"
        found.setdefault(partition_of(key, collection="", count=partitions), key)
        if len(found) == partitions:
            return [found[partition] for partition in range(partitions)]
    raise AssertionError  # counting never ends


@dataclass(slots=True)
class Traffic:
    topic: str
    keys: list[str]
    per_s: float
    samples: list[Sample] = field(default_factory=list)
    _appended_s: dict[int, float] = field(default_factory=dict)
    _received: dict[int, tuple[int, float]] = field(default_factory=dict)
    _sent: int = 0
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _complete: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, producer: Producer) -> None:
        """At its pace until told to stop; returns when everything is acknowledged."""
        order = list(self.keys)
        random.Random(SEED).shuffle(order)
        loop = asyncio.get_running_loop()
        pace = Pace(per_s=self.per_s, start_s=loop.time())
        async with asyncio.TaskGroup() as sending:
            while not self._stopping.is_set():
                for _ in range(pace.take(loop.time())):
                    key = order[self._sent % len(order)]
                    sending.create_task(self._send_one(producer, key, self._sent))
                    self._sent += 1
                await asyncio.sleep(max(0.0, pace.due_s - loop.time()))

    async def _send_one(self, producer: Producer, key: str, number: int) -> None:
        await producer.send(self.topic, msgspec.json.encode(Document(number)), key=key)
        self._appended_s[number] = time.monotonic()
        self._pair(number)

    async def receive(self, subscriber: Subscriber) -> None:
        decode = msgspec.json.Decoder(Document).decode
        async for item in subscriber:
            if isinstance(item, Event):
                received_s = time.monotonic()
                number = decode(item.raw).number
                self._received[number] = (item.partition, received_s)
                self._pair(number)

    def _pair(self, number: int) -> None:
        """Of an event's two ends, whichever comes second makes the sample."""
        if number in self._appended_s and number in self._received:
            partition, received_s = self._received.pop(number)
            self.samples.append(Sample(partition, self._appended_s.pop(number), received_s))
            if self._stopping.is_set() and len(self.samples) == self._sent:
                self._complete.set()

    async def finish(self) -> None:
        """Send no more, and wait until all has arrived."""
        self._stopping.set()
        if len(self.samples) == self._sent:
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._complete.wait()
        except TimeoutError:
            lost = self._sent - len(self.samples)
            raise Failed(f"{lost} of {self._sent} events did not arrive") from None


@asynccontextmanager
async def traffic(url: str, topic: str, partitions: int, per_s: float) -> AsyncIterator[Traffic]:
    """Runs until `finish` is called."""
    flow = Traffic(topic, keys_of(partitions), per_s)
    async with (
        Subscriber(url, topic) as subscriber,
        Producer(url) as producer,
        Crew("bench") as crew,
    ):
        crew.need("receiving", flow.receive(subscriber))
        crew.start("sending", flow.send(producer))
        yield flow
