"""One run: a cluster, its clients, what goes wrong, and the calm after it. All of it from a seed.

Which faults a run has at all, and how often, is drawn first (swarm testing): a run with only frozen
gateways and resets meets what a run with everything never gets to.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import traceback
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import structlog

from headgate.adapters.memory.origin import position_of
from headgate.config import Config
from headgate.errors import HeadgateError, InvalidRequest, NotNow
from headgate.model.api import Status
from headgate.model.topology import Placement
from headgate.tasks import deaths
from tests.sim.checks import Checks, wrong_sums
from tests.sim.clients import PROMPT_S, Committing, Producing
from tests.sim.crossings import ALL_WEIGHTS, Crossings
from tests.sim.escapes import watched
from tests.sim.faults import (
    CONNECTOR,
    SIGHTINGS,
    SIGHTINGS_PARTITIONS,
    TOPIC,
    VISITS,
    VISITS_PARTITIONS,
)
from tests.sim.identities import GUARDED, SECURITY, SIGHTS
from tests.sim.world import World

READY_S: Final = 120.0
FAULTS_S: Final = 15.0
CALM_S: Final = 400.0
"""After the last fault, everything is there within that."""
LOOK_EVERY_S: Final = 1.0
"""Whether it is."""
ASK_EVERY: Final = 3
"""Looks, until what operators wanted to be there is asked for again."""
ANSWER_S: Final = 1.0
"""For `status` to answer."""
STEP_S: Final = 0.5
"""Between two faults, on average."""
QUIET_S: Final = 4.0
"""A quiet stretch, one pause in twenty."""
CONNECTED: Final = 0.5
"""Of the runs, how many have a connector."""
SIGHTED: Final = 0.3
"""Of the runs, how many have a topic without keys."""
UNKEPT: Final = 0.15
"""Of the runs, how many keep no dead letters."""
SHARES: Final = (0.3, 0.6, 0.6)
"""Of the kinds of faults, how many a run has: the fewer there are, the more often each."""
BIG: Final = 0.25
"""Of the runs, how many have big documents."""
BURIED: Final = 0.3
"""Of the kinds of nodes, how many lose one for ever."""
REPLACED: Final = 0.3
"""Of the runs, how many have a node that is replaced when everything else is over,"""
REPLACED_S: Final = 3.0
"""and within which time."""
ROTTEN: Final = 0.3
"""Of the runs, how many have a disk that spoils records."""
FORGETFUL: Final = 0.2
"""Of the runs, how many have coordinators that lose everything they have stored."""
ENDS_ON_PURPOSE: Final = ("coordinator leading", "coordinator observing")
"""One that never reached its election is configured wrongly, and says so by ending."""


@dataclass(frozen=True)
class Planned:
    at_s: float
    fault: str


class Run:
    """`without` are the numbers of faults that don't happen."""

    def __init__(self, seed: int, without: Collection[int] = ()) -> None:
        self.seed = seed
        chance = random.Random(f"run {seed}")
        self.world = World(seed, _config(chance))
        self.world.has(
            coordinators=chance.choice((1, 1, 2, 3)),
            ingest=chance.choice((1, 2, 2, 3)),
            gateways=chance.choice((1, 2, 2, 3)),
            routers=chance.choice((1, 1, 2)),
        )
        self.partitions = chance.choice((1, 2, 4, 6))
        max_deliveries = chance.choice((0, 0, 2, 4))
        if not self.world.cluster.config.routing.dlq.enabled:
            max_deliveries = 0  # what fails for good has nowhere to go
            self.world.meets("no dead letters are kept")
        self.faults = Crossings(self.world, self.partitions, max_deliveries)
        self.faults.sightings = chance.random() < SIGHTED
        self.faults.packers_see = chance.choice(SIGHTS)
        self.faults.has_connector = chance.random() < CONNECTED
        self.plan = _planned(chance)
        self._without = without
        self._producers = self.faults.producers
        self._topics: set[str] = set()

    # --- the whole of it -------------------------------------------------------------------------

    def live(self) -> None:
        with watched(self.world.scheduler):
            self._checks = Checks(self.world)
            self._begin()
            self._go_wrong()
            self._calm_down()

    def _begin(self) -> None:
        world, chance = self.world, random.Random(f"clients {self.seed}")
        for role in world.roles.values():
            role.start()
        wanted: list[tuple[str, int, Placement]] = [
            (TOPIC, self.partitions, "keyed"),
            (VISITS, VISITS_PARTITIONS, "keyed"),
        ]
        if self.faults.sightings:
            wanted.append((SIGHTINGS, SIGHTINGS_PARTITIONS, "opportunistic"))
        for one in wanted:
            world.client("operator", partial(self._create_topic, *one))
        world.live_for(READY_S, done=lambda: len(self._topics) == len(wanted))
        if len(self._topics) < len(wanted):
            world.oracle.violated("no topic could be created")
        big = chance.random() < BIG
        topics = [*[TOPIC] * chance.choice((1, 2, 3)), VISITS, *[SIGHTINGS] * self.faults.sightings]
        for n, topic in enumerate(topics):
            pause_s = chance.choice((0.3, 0.7, 2.0))
            name = f"producer-{n + 1}"
            keyed = topic != SIGHTINGS
            self._producers.append(Producing(world, name, topic, pause_s, keyed=keyed, big=big))
        if self.faults.has_connector:
            world.client("operator", self._create_connector)
            self._producers.append(Committing(world, "database", chance.choice((0.3, 1.0))))
        begin = ["subscriber_comes"] * chance.choice((1, 2, 4))
        begin += ["consumer_comes"] * chance.choice((0, 2, 3))
        for name in begin:
            self.faults.happen(name, chance)
        self._spoil_some()
        self._forget_all()

    def _spoil_some(self) -> None:
        """By a chance of its own: all else of a run is as it would be without."""
        chance = random.Random(f"rot {self.seed}")
        if chance.random() < ROTTEN:
            for number in range(chance.choice((1, 2, 4))):
                spoils = partial(
                    self.faults.happen, "flipped_bit", random.Random(f"rot {self.seed} {number}")
                )
                self.world.watcher.call_later(chance.uniform(1.0, FAULTS_S), spoils)

    def _forget_all(self) -> None:
        """Likewise."""
        chance = random.Random(f"forgotten {self.seed}")
        if chance.random() < FORGETFUL:
            forgets = partial(self.faults.happen, "forgotten", chance)
            self.world.watcher.call_later(chance.uniform(1.0, FAULTS_S), forgets)

    async def _create_topic(self, name: str, partitions: int, placement: Placement) -> None:
        url, create = self.world.urls[0], self.world.cluster.create_topic
        while name not in self._topics:
            try:
                await create(url, name, partitions, placement)
                self._topics.add(name)
            except HeadgateError:
                await asyncio.sleep(1.0)

    async def _create_connector(self) -> None:
        """From the first change on, so that every one is owed."""
        wanted = {
            "name": CONNECTOR,
            "type": "mongodb",
            "routes": [{"topic": TOPIC}],
            "settings": {"uri": "mongodb://database", "database": "traffic"},
            "from": position_of(0),
        }
        while True:
            try:
                async with self.world.cluster.http(self.world.urls[0]) as client:
                    body = msgspec.json.encode(wanted)
                    await client.call("POST", "/v1/connectors?check=false", body)
            except (InvalidRequest, NotNow):
                await asyncio.sleep(1.0)
            except HeadgateError:
                return  # it is there
            else:
                return

    def _go_wrong(self) -> None:
        world, began_s = self.world, self.world.scheduler.now_s
        for number, planned in enumerate(self.plan):
            world.live_for(began_s + planned.at_s - world.scheduler.now_s)
            if world.oracle.violations:
                return
            if number not in self._without:
                self.faults.happen(planned.fault, random.Random(f"fault {self.seed} {number}"))

    def _calm_down(self) -> None:
        """Everything is mended; within a while nothing is owed to anybody any more."""
        world = self.world
        world.say("calm")
        self.faults.calm()
        self._checks.is_calm = True
        world.network.mend_all()
        world.cluster.leases.is_away = False
        for weather in world.cluster.weather.values():
            weather.mood = "well"
            weather.moods.clear()
        self._bury_some()
        for role in world.roles.values():
            role.revive()
        goes_on_s = 2 * REPLACED_S if self._replace_one() else 0.0
        self.faults.end_drains()
        world.cluster.history.is_away = False
        self._make_room()
        for subscriber in self.faults.subscribers:
            subscriber.pause_s = 0.0
        for consumer in self.faults.consumers:
            consumer.pause_s = PROMPT_S
        for producer in self._producers:
            world.watcher.call_later(goes_on_s, producer.stop)
        until_s = world.scheduler.now_s + CALM_S
        looks = itertools.count()
        while world.scheduler.now_s < until_s and not world.oracle.violations:
            if next(looks) % ASK_EVERY == 0:
                self.faults.make_topic()  # what was asked for before may still delete it
                self.faults.resume_connector()
            world.live_for(LOOK_EVERY_S)
            if not self._unfinished() and not self._wrong_sums():
                return
        if not world.oracle.violations:
            why = self._unfinished() or self._wrong_sums()
            world.oracle.violated(f"{CALM_S:.0f} s after the last fault: {why}")

    def _bury_some(self) -> None:
        """Where there are others of their kind, some stay dead for ever."""
        chance = random.Random(f"dead {self.seed}")
        for kind in ("coordinator", "ingest", "router", "gateway"):
            roles = self.world.of(kind)
            if len(roles) > 1 and chance.random() < BURIED:
                roles[-1].bury(quietly=chance.random() < BURIED)
                self.world.say(f"{roles[-1].name} is dead for ever")
                self.world.meets(f"for ever without one {kind}")

    def _replace_one(self) -> bool:
        """Another process has its name at once, and nothing happens after that which everybody
        would hear of; but something is sent. Whether there is one."""
        chance = random.Random(f"replaced {self.seed}")

        def replaced() -> None:
            role = chance.choice([one for one in self.world.roles.values() if not one.is_buried])
            self.world.say(f"{role.name} is killed and starts again at once")
            self.world.meets("a node is replaced at once")
            role.kill()
            role.start()

        there_is = chance.random() < REPLACED
        if there_is:
            self.world.watcher.call_later(chance.uniform(0.0, REPLACED_S), replaced)
        return there_is

    def _wrong_sums(self) -> str:
        """As `status` shows them now."""
        answers: list[Status] = []
        world = self.world

        async def asks() -> None:
            with suppress(HeadgateError):
                async with world.cluster.http(world.urls[0]) as client:
                    answers.append(await client.get("/v1/status", Status))

        world.client("operator", asks)
        world.live_for(ANSWER_S, done=lambda: bool(answers))
        return wrong_sums(world, answers[0]) if answers else "status doesn't answer"

    def _unfinished(self) -> str:
        oracle = self.world.oracle
        if not all(producer.is_done for producer in self._producers):
            return "a producer hasn't ended"
        for subscriber in self.faults.subscribers:
            if not subscriber.is_subscribed:
                return f"{subscriber.name} isn't subscribed"
        letters = self.world.cluster.letters
        # What an operator has sent again goes as its subscribers have room, in its own time.
        parked = [
            one
            for one in letters.letters.values()
            if one.state == "parked" and one.id not in letters.again
        ]
        if parked:
            return f"{len(parked)} letters are parked, the first for {parked[0].gateway_id}"
        return oracle.owed_to_anybody(groups=bool(self.faults.consumers))

    def _make_room(self) -> None:
        """Of a tenant there may be more than find room, also of those that were inside before:
        nothing is owed to them then."""
        crowd = [one for one in self.faults.subscribers if one.tenant]
        if len(crowd) > self.world.cluster.config.subscriptions.max_per_tenant:
            for one in crowd:
                one.leave()
                self.faults.subscribers.remove(one)

    # --- what came of it -------------------------------------------------------------------------

    def judge(self) -> None:
        oracle = self.world.oracle
        oracle.judge_producers()
        died = {name: n for name, n in deaths.counts().items() if name not in ENDS_ON_PURPOSE}
        if died:
            oracle.violated(f"tasks died: {died}")
        for process in self.world.scheduler.processes:
            for error in process.errors:
                oracle.violated(f"{process.name}: {error}")


def lived(seed: int, without: Collection[int] = ()) -> Run:
    """In a process of its own: what was killed in it must never be collected."""
    logging.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    run = Run(seed, without)
    try:
        run.live()
    except Exception:  # noqa: BLE001 - part of the story
        run.world.oracle.violated(traceback.format_exc())
    run.judge()
    return run


def _config(chance: random.Random) -> Config:
    """What changes the flow, by chance; and most of what anybody waits for is a tenth of what
    ships, so that a run of a minute sees what takes ten."""
    mode = chance.choice(("direct", "direct", "consistent_hash", "broadcast"))
    lease_s = chance.choice((2.0, 4.0, 4.0, 10.0))
    return Config.model_validate(
        {
            "routing": {
                "mode": mode,
                "batch": {"max_size": chance.choice((1, 10, 100))},
                "backpressure": {"queue_size": chance.choice((20, 100, 10_000))},
                "dlq": {"enabled": chance.random() >= UNKEPT},
            },
            "gateway": {
                "subscriber_queue": chance.choice((5, 50, 1_000)),
                "queue_memory": chance.choice((200_000, 1 << 28)),
                "when_slow": {"low": chance.choice(("park", "drop_oldest", "disconnect"))},
            },
            "router": {
                "window": chance.choice((3.0, 10.0, 60.0)),
                "lane_report_timeout": 1.5,
                "flush_every": 1.0,
                "buffer_timeout": chance.choice((2.0, 6.0)),
            },
            "coordinator": {
                "timeout": lease_s,
                "grace": chance.choice((0.2, 0.5, 1.0, lease_s)),
                "check_in": lease_s / chance.choice((4, 8)),
                "adoption_timeout": chance.choice((3.0, 30.0)),
                "rebalance": chance.choice((1.0, 4.0)),
                "learn_for": 6.0,
                "subscribe_timeout": 4.0,
            },
            "subscriptions": {
                "max_per_tenant": chance.choice((1, 3, 1_000)),
                "max_cost_per_gateway": chance.choice((0.01, 1.0)),
            },
            "consumers": {"shard_size": chance.choice((4, 16, 100))},
            "log": {"retention": _retention(chance)},
            "security": SECURITY if chance.random() < GUARDED else {},
            "reliability": {
                "checkpoint": {"interval": chance.choice((0.3, 1.0)), "event_count": 50},
                "circuit_breaker": {"timeout": 3.0},
                "shutdown": {"flush_timeout": 2.0, "checkpoint_timeout": 1.0},
            },
        }
    )


def _retention(chance: random.Random) -> dict[str, object]:
    """Mostly none, in the time of a run."""
    if chance.random() < 0.6:
        return {}
    return {
        "max_age": chance.choice((2.0, 8.0)),
        "past_settled": chance.random() < 0.3,
        "every": 1.0,
    }


def _planned(chance: random.Random) -> list[Planned]:
    share = chance.choice(SHARES)
    drawn = {name: weight for name, weight in ALL_WEIGHTS.items() if chance.random() < share}
    swarm = drawn or ALL_WEIGHTS
    plan, at_s = [], 0.0
    while at_s < FAULTS_S:
        at_s += chance.expovariate(1 / STEP_S) + (QUIET_S if chance.random() < 0.05 else 0.0)
        [fault] = chance.choices([*swarm], [*swarm.values()])
        plan.append(Planned(at_s, fault))
    return plan
