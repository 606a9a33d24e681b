"""Clients of a simulated cluster, each in a process of its own: the classes that users import."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from headgate.client.consumer import Consumer
from headgate.client.producing.outgoing import OutgoingEvent
from headgate.client.producing.pending import ProducerOptions
from headgate.client.subscriber import Subscriber
from headgate.decide.conversation.common import Phase
from headgate.errors import (
    HeadgateError,
    InvalidRequest,
    OutcomeUnknown,
    Unauthorized,
    UnknownTopic,
)
from headgate.model.client_messages import Item, Resync
from headgate.model.event import Event
from tests.sim.identities import SIGHTS, Sight
from tests.sim.oracle import Wanted, Watch
from tests.sim.world import World

KEYS_PER_PRODUCER: Final = 8
SIZES: Final = (1, 1, 1, 2, 8)
"""Of what is sent with one call."""
BIG_BYTES: Final = (5_000, 40_000, 150_000)
BIG: Final = 0.02
"""How many documents are, where there are any."""
NACKED: Final = 0.05
"""Of what consumers are handed, where that has an end."""
PROMPT_S: Final = 0.01
"""What a consumer takes for an event, where nothing is wrong with it."""
BUFFERS: Final = (1, 10, 1_000)
"""What waits in a subscriber's process. One that is slow and keeps much is behind nobody."""
ENTER_AGAIN_S: Final = 1.0


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


COSTLY: Final = Filter(
    "kind == 'b' && (number >= 0 || kind.matches('a.{12}a') || kind.matches('a'))",
    lambda document: document["kind"] == "b",
)
"""At worst it takes more than half of what one filter may."""


class Committing:
    """A database that commits changes until it is told to stop; a connector reads them."""

    def __init__(self, world: World, name: str, pause_s: float) -> None:
        self.is_done = False
        self._is_stopping = False
        self._world = world
        self.name = name
        self.pace = 1.0
        """What it makes of its pauses."""
        self._pause_s = pause_s
        self._chance = random.Random(f"{name} {world.seed}")
        self._numbers = 0
        world.client(name, self._live)

    def stop(self) -> None:
        self._is_stopping = True

    async def _live(self) -> None:
        while not self._is_stopping:
            for _ in range(self._chance.choice(SIZES)):
                self._commit()
            await asyncio.sleep(self._chance.expovariate(1 / self._pause_s) * self.pace)
        self.is_done = True

    def _commit(self) -> None:
        self._numbers += 1
        event_id = f"{self.name}#{self._numbers}"
        self._world.oracle.commits(event_id)
        document = {"number": self._numbers, "kind": self._chance.choice("abc")}
        key = f"{self.name}-{self._chance.randrange(KEYS_PER_PRODUCER)}"
        self._world.cluster.history.commit(
            Event(event_id, msgspec.json.encode(document), key, "update", "planes")
        )


class Producing:
    """Sends until it is told to stop; each key is one producer's alone."""

    def __init__(
        self,
        world: World,
        name: str,
        topic: str,
        pause_s: float,
        *,
        keyed: bool = True,
        big: bool = False,
    ) -> None:
        self.is_done = False
        self._is_stopping = False
        self._world = world
        self.name = name
        self._topic = topic
        self.pace = 1.0
        self._pause_s = pause_s
        self._keyed = keyed
        self._big = BIG if big else 0.0
        self._chance = random.Random(f"{name} {world.seed}")
        self._numbers = 0
        world.client(name, self._live)

    def stop(self) -> None:
        self._is_stopping = True

    async def _live(self) -> None:
        cluster, chance = self._world.cluster, self._chance
        options = ProducerOptions(deadline_s=20.0)
        identities = self._world.identities
        token = identities.producer().token if identities.is_on else None
        async with cluster.producer(self._world.urls[0], options, token=token) as producer:
            while not self._is_stopping:
                events = [self._event() for _ in range(chance.choice(SIZES))]
                try:
                    outcomes = await producer.send_many(self._topic, events)
                except HeadgateError as error:
                    outcomes = [error] * len(events)
                for event, outcome in zip(events, outcomes, strict=True):
                    self._told(event, outcome)
                await asyncio.sleep(chance.expovariate(1 / self._pause_s) * self.pace)
        self.is_done = True

    def _event(self) -> OutgoingEvent:
        self._numbers += 1
        key = f"{self.name}-{self._chance.randrange(KEYS_PER_PRODUCER)}" if self._keyed else None
        event_id = f"{self.name}#{self._numbers}"
        self._world.oracle.sends(event_id)
        document: dict[str, Any] = {"number": self._numbers, "kind": self._chance.choice("abc")}
        if self._chance.random() < self._big:
            document["text"] = "x" * self._chance.choice(BIG_BYTES)
            self._world.meets("a big document is sent")
        return OutgoingEvent(document, key=key, event_id=event_id)

    def _told(self, event: OutgoingEvent, outcome: Any) -> None:
        oracle, event_id = self._world.oracle, event.event_id or ""
        if isinstance(outcome, OutcomeUnknown):
            self._world.meets("a producer is told that an outcome is unknown")
            oracle.was_told(event_id, "unknown")
            if event.key is None:
                self._world.meets("an event without a key has an unknown outcome")
        elif isinstance(outcome, Exception):
            self._world.say(f"{event_id} failed: {outcome}")
            self._world.meets(f"a producer is refused: {getattr(outcome, 'code', 'bug')}")
            oracle.was_told(event_id, "failed")
        else:
            oracle.was_told(event_id, "acknowledged", (self._topic, outcome.partition, outcome.seq))
            if event.key is None:
                self._world.meets("an event without a key is acknowledged")


class Subscribing:
    """One subscriber, over all its lives; `pause_s` is what it takes for each item, which may be
    changed. Where its topic is deleted, it comes again for the next one of that name."""

    def __init__(
        self,
        world: World,
        name: str,
        topic: str,
        asked: Filter,
        *,
        sight: Sight = SIGHTS[0],
        may_vanish: bool = False,
        **options: Any,
    ) -> None:
        self.pause_s = 0.0
        self.is_subscribed = False
        self._world = world
        self.name = name
        self.topic = topic
        self.tenant: str = options.get("tenant", "")
        self._asked = asked
        self._sight = sight
        self._may_vanish = may_vanish
        self._options = options
        self._watch: Watch | None = None
        self._inside: Subscriber | None = None
        self._has_left = False
        self._deaths = 0
        self.process = world.client(name, self._live)

    async def _live(self) -> None:
        while True:
            try:
                await self._follow()
            except UnknownTopic:
                if not self._may_vanish:
                    raise
                self._world.meets("a subscriber hears that its topic is gone")
                self._forget()
                await asyncio.sleep(ENTER_AGAIN_S)
            except InvalidRequest as error:
                if not self._may_vanish:
                    raise
                self._begins_anew(error)
                await asyncio.sleep(ENTER_AGAIN_S)
            except Unauthorized:
                self._world.meets("a subscriber is shut out")
                self._keep_positions()
                await asyncio.sleep(ENTER_AGAIN_S)

    async def _follow(self) -> None:
        world = self._world
        async with _Entering(self._new, self._not_let_in) as inside:
            self._inside = inside
            watch = self._watch = self._watch or self._begins()
            self.is_subscribed = True
            async for item in inside:
                world.oracle.received(watch, item)
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)

    def _new(self) -> Subscriber:
        world, asked = self._world, self._asked.where
        urls, options = world.urls_of(self.name), dict(self._options)
        if world.identities.is_on:
            who = world.identities.reader(self._sight, options.pop("tenant", ""))
            options["token"] = who.token
        return world.cluster.subscriber(urls, self.topic, id=self.name, where=asked, **options)

    def _begins(self) -> Watch:
        earliest = self._options.get("start") == "earliest"
        watch = self._world.oracle.subscribed(
            self.name, self.topic, self._wanted(), earliest=earliest
        )
        watch.sees = self._sees()
        watch.connection = self._connection
        self._world.say(f"{self.name} is subscribed behind {watch.heads}")
        return watch

    def _sees(self) -> Wanted:
        """What its grant shows."""
        return self._sight.sees if self._world.identities.is_on else SIGHTS[0].sees

    def _wanted(self) -> Wanted:
        asked, sees = self._asked.wanted, self._sees()
        return lambda document: asked(document) and sees(document)

    def _connection(self) -> Hashable:
        """Which one it has been told that it is subscribed over; None while it isn't."""
        inside = self._inside
        if inside is None or not self.is_subscribed or inside._following.phase is not Phase.LIVE:
            return None
        return self._deaths, inside.reconnects

    def _not_let_in(self, error: HeadgateError) -> None:
        self._world.say(f"{self.name} isn't let in: {error}")
        self._world.meets(f"a subscriber isn't let in: {error.code}")
        if self._may_vanish and isinstance(error, InvalidRequest):
            self._begins_anew(error)

    def _begins_anew(self, error: InvalidRequest) -> None:
        """Its positions are of a former topic of that name, which had other partitions."""
        self._world.say(f"{self.name} begins anew: {error}")
        self._forget()
        self._options["start"] = "now"

    def leave(self) -> None:
        """Without a word."""
        self._has_left = True
        self._forget()
        self._world.end(self.process)

    def _forget(self) -> None:
        """Nothing of what it asked for is owed to it any more."""
        if self._watch is not None:
            self._watch.is_over = True
        self._watch, self.is_subscribed = None, False

    def die_and_resume(
        self, asked: Filter | None = None, sight: Sight | None = None, after_s: float = 0.0
    ) -> None:
        """Its process is killed; the next one begins where it was, and may ask for something else
        from there on, or be somebody else."""
        comes_back = self.die(asked, sight)
        if after_s:
            self._world.watcher.call_later(after_s, comes_back)
        else:
            comes_back()

    def die(self, asked: Filter | None = None, sight: Sight | None = None) -> Callable[[], None]:
        """The same, but for that it comes back when what is returned is called."""
        self._world.end(self.process)
        positions = self._keep_positions()
        if self._watch is not None and positions is not None:
            self._world.meets("a subscriber resumes from its positions")
            if asked is not None:
                self._asked = asked
                self._world.meets("a subscriber resumes with another filter")
            if sight is not None and self._world.identities.is_on:
                self._sight = sight
                self._world.meets("a subscriber resumes as somebody else")
            if asked is not None or sight is not None:
                self._watch.changes(self._wanted(), positions)
                self._watch.sees = self._sees()
        self._deaths += 1
        return partial(self._return, self._deaths)

    def _keep_positions(self) -> dict[int, int] | None:
        """What it had, for the next one to begin there. None: it wasn't subscribed yet."""
        if self._inside is None or not self.is_subscribed:
            return None
        self.is_subscribed = False
        positions = dict(self._inside.positions)
        places = sorted(positions.items())
        self._options["start"] = ",".join(f"{number}:{seq + 1}" for number, seq in places)
        return positions

    def _return(self, deaths: int) -> None:
        """Unless it has died or left since."""
        if deaths == self._deaths and not self._has_left:
            self.process = self._world.client(self.name, self._live)


class _Entering:
    """Whoever can't be let in for now asks again, as a new one."""

    def __init__(self, new: Callable[[], Any], refused: Callable[[HeadgateError], None]) -> None:
        self._new = new
        self._refused = refused

    async def __aenter__(self) -> Any:
        while True:
            self._inside = self._new()
            try:
                return await self._inside.__aenter__()
            except HeadgateError as error:
                self._refused(error)
                await asyncio.sleep(ENTER_AGAIN_S)

    async def __aexit__(self, *error: object) -> None:
        await self._inside.__aexit__(*error)


class Consuming:
    """A consumer of a group; with `max_deliveries` it fails now and then."""

    def __init__(
        self,
        world: World,
        name: str,
        topic: str,
        group: str,
        *,
        max_deliveries: int,
        sight: Sight = SIGHTS[0],
    ) -> None:
        self.pause_s = PROMPT_S
        self._sight = sight
        self._world = world
        self.name = name
        self._topic = topic
        self._group = group
        self._max_deliveries = max_deliveries
        self._chance = random.Random(f"{name} {world.seed}")
        self.has_joined = False
        self.process = world.client(name, self._live)

    async def _live(self) -> None:
        while True:
            try:
                await self._work()
            except Unauthorized:
                self._world.meets("a consumer is shut out")
                await asyncio.sleep(ENTER_AGAIN_S)

    def _new(self) -> Consumer:
        world = self._world
        is_on = world.identities.is_on
        return world.cluster.consumer(
            world.urls_of(self.name),
            self._topic,
            self._group,
            keys_expected=32,
            acks="manual",
            max_deliveries=self._max_deliveries,
            token=world.identities.consumer(self._sight).token if is_on else None,
        )

    async def _work(self) -> None:
        world, oracle = self._world, self._world.oracle
        sees = self._sight.sees if world.identities.is_on else SIGHTS[0].sees
        async with _Entering(self._new, self._not_let_in) as inside:
            group = oracle.group(self._group, self._topic, sees)
            world.say(f"{self.name} has joined")
            self.has_joined = True
            async for item in inside:
                oracle.begins(group, self.name, item, sees)
                await asyncio.sleep(self.pause_s)
                if self._fails(item):
                    await inside.nack(item, self._chance.choice((0.0, 0.5)))
                else:
                    oracle.ends(group, item)
                    await inside.acknowledge(item)

    def _fails(self, item: Item) -> bool:
        if not self._max_deliveries or isinstance(item, Resync) or self._chance.random() > NACKED:
            return False
        self._world.meets("a consumer says that it failed")
        return True

    def _not_let_in(self, error: HeadgateError) -> None:
        self._world.say(f"{self.name} isn't let in: {error}")
        self._world.meets(f"a consumer isn't let in: {error.code}")

    def die(self) -> None:
        self._world.end(self.process)
