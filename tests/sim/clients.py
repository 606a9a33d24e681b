"""Clients of a simulated cluster, each in a process of its own: the classes that users import."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headgate.client.consumer import Consumer
from headgate.client.outgoing import OutgoingEvent
from headgate.client.pending import ProducerOptions
from headgate.client.subscriber import Subscriber
from headgate.errors import HeadgateError, OutcomeUnknown
from tests.sim.oracle import Wanted
from tests.sim.world import World

KEYS_PER_PRODUCER = 8


@dataclass(frozen=True)
class Filter:
    """The same question twice: in the product's language and in Python."""

    where: str | None
    wanted: Wanted


FILTERS = (
    Filter(None, lambda _: True),
    Filter("number % 2 == 0", lambda document: document["number"] % 2 == 0),
    Filter("kind == 'b'", lambda document: document["kind"] == "b"),
    Filter(
        "kind in ['a', 'c'] && number > 20",
        lambda document: document["kind"] in ("a", "c") and document["number"] > 20,
    ),
)


class Producing:
    """Sends until it is told to stop; each key is one producer's alone."""

    def __init__(self, world: World, name: str, topic: str, pause_s: float) -> None:
        self.is_done = False
        self._is_stopping = False
        self._world = world
        self.name = name
        self._topic = topic
        self._pause_s = pause_s
        self._chance = random.Random(f"{name} {world.seed}")
        self._numbers = 0
        world.client(name, self._live)

    def stop(self) -> None:
        self._is_stopping = True

    async def _live(self) -> None:
        cluster, chance = self._world.cluster, self._chance
        options = ProducerOptions(deadline_s=20.0)
        async with cluster.producer(self._world.urls[0], options=options) as producer:
            while not self._is_stopping:
                events = [self._event() for _ in range(chance.choice((1, 1, 2, 5, 20)))]
                try:
                    outcomes = await producer.send_many(self._topic, events)
                except HeadgateError as error:
                    outcomes = [error] * len(events)
                for event, outcome in zip(events, outcomes, strict=True):
                    self._told(event, outcome)
                await asyncio.sleep(chance.expovariate(1 / self._pause_s))
        self.is_done = True

    def _event(self) -> OutgoingEvent:
        self._numbers += 1
        key = f"{self.name}-{self._chance.randrange(KEYS_PER_PRODUCER)}"
        event_id = f"{self.name}#{self._numbers}"
        self._world.oracle.sends(event_id)
        document = {"number": self._numbers, "kind": self._chance.choice("abc")}
        return OutgoingEvent(document, key=key, event_id=event_id)

    def _told(self, event: OutgoingEvent, outcome: Any) -> None:
        oracle, event_id = self._world.oracle, event.event_id or ""
        if isinstance(outcome, OutcomeUnknown):
            oracle.was_told(event_id, "unknown")
        elif isinstance(outcome, Exception):
            self._world.say(f"{event_id} failed: {outcome}")
            oracle.was_told(event_id, "failed")
        else:
            oracle.was_told(event_id, "acknowledged", (self._topic, outcome.partition, outcome.seq))


class Subscribing:
    """One subscriber; `pause_s` is what it takes for each item, which may be changed."""

    def __init__(self, world: World, name: str, topic: str, asked: Filter, **options: Any) -> None:
        self.pause_s = 0.0
        self.is_subscribed = False
        self._world = world
        self.name = name
        self._topic = topic
        self._asked = asked
        self._options = options
        self.process = world.client(name, self._live)

    async def _live(self) -> None:
        world = self._world

        def new() -> Subscriber:
            asked = self._asked.where
            return world.cluster.subscriber(world.urls, self._topic, where=asked, **self._options)

        async with _Entering(world, self.name, new) as inside:
            watch = world.oracle.subscribed(
                self.name,
                self._topic,
                self._asked.wanted,
                earliest=self._options.get("start") == "earliest",
            )
            self.is_subscribed = True
            world.say(f"{self.name} is subscribed behind {watch.heads}")
            async for item in inside:
                world.oracle.received(watch, item)
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)

    def leave(self) -> None:
        """Without a word."""
        if self.name in self._world.oracle.watches:
            self._world.oracle.watches[self.name].is_over = True
        self._world.end(self.process)


class _Entering:
    """Whoever can't be subscribed for now asks again, as a new one."""

    def __init__(self, world: World, name: str, new: Callable[[], Any]) -> None:
        self._world = world
        self._name = name
        self._new = new

    async def __aenter__(self) -> Any:
        while True:
            self._inside = self._new()
            try:
                return await self._inside.__aenter__()
            except HeadgateError as error:
                self._world.say(f"{self._name} isn't let in: {error}")
                await asyncio.sleep(1.0)

    async def __aexit__(self, *error: object) -> None:
        await self._inside.__aexit__(*error)


class Consuming:
    """A consumer of a group."""

    def __init__(self, world: World, name: str, topic: str, group: str) -> None:
        self.pause_s = 0.01
        self._world = world
        self.name = name
        self._topic = topic
        self._group = group
        self.process = world.client(name, self._live)

    async def _live(self) -> None:
        world, oracle = self._world, self._world.oracle

        def new() -> Consumer:
            return world.cluster.consumer(world.urls, self._topic, self._group, keys_expected=32)

        async with _Entering(world, self.name, new) as inside:
            group = oracle.group(self._group, self._topic)
            world.say(f"{self.name} has joined")
            async for item in inside:
                oracle.begins(group, self.name, item)
                await asyncio.sleep(self.pause_s)
                oracle.ends(group, item)

    def die(self) -> None:
        self._world.end(self.process)
