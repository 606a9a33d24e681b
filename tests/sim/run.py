"""One run: a cluster, its clients, what goes wrong, and the calm after it. All of it from a seed.

Which faults a run has at all, and how often, is drawn first (swarm testing): a run with only frozen
gateways and resets meets what a run with everything never gets to.
"""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import structlog

from headgate.config import Config
from headgate.errors import HeadgateError
from headgate.tasks import deaths
from tests.sim.clients import Producing
from tests.sim.escapes import watched
from tests.sim.faults import TOPIC, WEIGHTS, Faults
from tests.sim.world import World

READY_S: Final = 120.0
FAULTS_S: Final = 180.0
CALM_S: Final = 400.0
"""After the last fault, everything is there within that."""
STEP_S: Final = 4.0
"""Between two faults, on average."""
QUIET_S: Final = 30.0
"""A quiet stretch, one pause in twenty."""
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
            coordinators=chance.choice((1, 2, 3)),
            ingest=chance.choice((1, 2, 3)),
            gateways=chance.choice((1, 2, 3)),
            routers=chance.choice((1, 1, 2)),
        )
        self.partitions = chance.choice((1, 2, 4, 6))
        self.faults = Faults(self.world, self.partitions)
        self.plan = _planned(chance)
        self._without = without
        self._producers: list[Producing] = []
        self._has_topic = False

    # --- the whole of it -------------------------------------------------------------------------

    def live(self) -> None:
        with watched(self.world.scheduler):
            self._begin()
            self._go_wrong()
            self._calm_down()

    def _begin(self) -> None:
        world, chance = self.world, random.Random(f"clients {self.seed}")
        for role in world.roles.values():
            role.start()
        world.client("operator", self._create_topic)
        world.live_for(READY_S, done=lambda: self._has_topic)
        if not self._has_topic:
            world.oracle.violated("no topic could be created")
        for n in range(chance.choice((1, 2, 3))):
            pause_s = chance.choice((0.2, 1.0, 3.0))
            self._producers.append(Producing(world, f"producer-{n + 1}", TOPIC, pause_s))
        begin = ["subscriber_comes"] * chance.choice((1, 2, 4))
        begin += ["consumer_comes"] * chance.choice((0, 2, 3))
        for name in begin:
            self.faults.happen(name, chance)

    async def _create_topic(self) -> None:
        while not self._has_topic:
            try:
                await self.world.cluster.create_topic(self.world.urls[0], TOPIC, self.partitions)
                self._has_topic = True
            except HeadgateError:
                await asyncio.sleep(1.0)

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
        world.network.mend_all()
        world.cluster.leases.is_away = False
        for weather in world.cluster.weather.values():
            weather.mood = "well"
        for role in world.roles.values():
            role.revive()
        self.faults.end_drains()
        for subscriber in self.faults.subscribers:
            subscriber.pause_s = 0.0
        for producer in self._producers:
            producer.stop()
        until_s = world.scheduler.now_s + CALM_S
        while world.scheduler.now_s < until_s and not world.oracle.violations:
            world.live_for(5.0)
            if not self._unfinished():
                return
        if not world.oracle.violations:
            world.oracle.violated(f"{CALM_S:.0f} s after the last fault: {self._unfinished()}")

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
    """What changes the flow, by chance."""
    mode = chance.choice(("direct", "direct", "consistent_hash", "broadcast"))
    return Config.model_validate(
        {
            "routing": {
                "mode": mode,
                "batch": {"max_size": chance.choice((1, 10, 100))},
                "backpressure": {"queue_size": chance.choice((10, 100, 10_000))},
            },
            "gateway": {"subscriber_queue": chance.choice((5, 50, 1_000))},
            "router": {"window": chance.choice((20.0, 60.0, 300.0))},
        }
    )


def _planned(chance: random.Random) -> list[Planned]:
    swarm = {name: weight for name, weight in WEIGHTS.items() if chance.random() < 0.6} or WEIGHTS
    plan, at_s = [], 0.0
    while at_s < FAULTS_S:
        at_s += chance.expovariate(1 / STEP_S) + (QUIET_S if chance.random() < 0.05 else 0.0)
        [fault] = chance.choices([*swarm], [*swarm.values()])
        plan.append(Planned(at_s, fault))
    return plan
