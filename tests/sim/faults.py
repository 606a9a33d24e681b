"""What goes wrong in a run, and what operators ask for meanwhile.

Each fault draws from a chance of its own, so that a run without one of them is the same run but for
that: how a failing run is made smaller. Most of them last for a while; what lasts at the same time
has met, which `Faults.met` counts (situations.py).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import msgspec

from headgate.errors import HeadgateError
from tests.sim.clients import FILTERS, Consuming, Subscribing
from tests.sim.stores import BAD
from tests.sim.world import Role, World

TOPIC: Final = "flights"
LASTS_S: Final = 15.0
"""Of what has no end of its own: how long it counts as going on."""


class Faults:
    """The faults of one run, by name; `WEIGHTS` says how often each is drawn."""

    def __init__(self, world: World, partitions: int) -> None:
        self.world = world
        self.partitions = partitions
        self.subscribers: list[Subscribing] = []
        self.consumers: list[Consuming] = []
        self.met: Counter[tuple[str, str]] = Counter()
        self.chance = random.Random(0)
        self._going_on: Counter[str] = Counter()
        self._names = 0

    def happen(self, name: str, chance: random.Random) -> None:
        self.chance = chance
        getattr(self, name)()

    # --- what lasts ------------------------------------------------------------------------------

    def _begins(self, kind: str, what: str, lasts_s: float, ends: Callable[[], None]) -> None:
        world, process = self.world, self.world.watcher
        world.say(what)
        for other in sorted(+self._going_on):
            self.met[min(kind, other), max(kind, other)] += 1
        self._going_on[kind] += 1

        def over() -> None:
            self._going_on[kind] -= 1
            world.say(f"over: {what}")
            ends()

        process.call_at(process.time() + lasts_s, over)

    def _some_role(self) -> Role | None:
        alive = [role for role in self.world.roles.values() if role.is_alive]
        return self.chance.choice(alive) if alive else None

    # --- nodes -----------------------------------------------------------------------------------

    def killed(self) -> None:
        self._dies("is killed", quietly=False)

    def machine_gone(self) -> None:
        self._dies("is gone with its machine", quietly=True)

    def _dies(self, how: str, *, quietly: bool) -> None:
        if (role := self._some_role()) is not None:
            role.kill(quietly=quietly)
            away_s = self.chance.choice((0.5, 3.0, 20.0, 60.0))
            self._begins(f"no {role.kind}", f"{role.name} {how}", away_s, role.start)

    def frozen(self) -> None:
        role = self._some_role()
        if role is not None and role.process is not None:
            process, seconds = role.process, self.chance.choice((0.5, 2.0, 10.0, 45.0))
            process.freeze()
            self._begins(f"frozen {role.kind}", f"{role.name} freezes", seconds, process.thaw)

    def stopped(self) -> None:
        if (role := self._some_role()) is not None and role.is_ready:
            role.stop()
            self._begins(
                f"stopping {role.kind}", f"{role.name} is told to stop", 20.0, role.start_again
            )

    # --- links -----------------------------------------------------------------------------------

    def cut(self) -> None:
        network = self.world.network
        one, two = self.chance.sample(
            [*self.world.roles, *(one.name for one in self.subscribers)], 2
        )
        ways = [(one, two), (two, one)][: self.chance.choice((1, 2, 2))]
        for way in ways:
            network.cut(*way)

        def mended() -> None:
            for way in ways:
                network.mend(*way)

        what = f"{one} {'→' if len(ways) == 1 else '↔'} {two} is cut"
        self._begins("cut link", what, self.chance.choice((0.5, 5.0, 40.0)), mended)

    def slow_link(self) -> None:
        one, two = self.chance.sample([*self.world.roles], 2)
        by_s, network = self.chance.choice((0.05, 0.5, 3.0)), self.world.network
        network.slow_down(one, two, by_s)
        self._begins(
            "slow link",
            f"{one} → {two} takes {by_s} s more",
            LASTS_S,
            lambda: network.slow_down(one, two, 0.0),
        )

    # --- stores ----------------------------------------------------------------------------------

    def store(self) -> None:
        weather = self.chance.choice([*self.world.cluster.weather.values()])
        weather.mood = self.chance.choice(BAD)

        def clears() -> None:
            weather.mood = "well"

        self._begins(
            f"{weather.name} away",
            f"the store of the {weather.name} is {weather.mood}",
            self.chance.choice((1.0, 5.0, 30.0)),
            clears,
        )

    def election(self) -> None:
        leases = self.world.cluster.leases
        leases.is_away = True

        def back() -> None:
            leases.is_away = False

        seconds = self.chance.choice((1.0, 8.0))
        self._begins("election away", "the election is away", seconds, back)

    # --- clients ---------------------------------------------------------------------------------

    def subscriber_comes(self) -> None:
        self._names += 1
        name, asked = f"subscriber-{self._names}", self.chance.choice(FILTERS)
        priority = self.chance.choice(("normal", "normal", "high", "low"))
        start = self.chance.choice(("now", "now", "earliest"))
        self.subscribers.append(
            Subscribing(self.world, name, TOPIC, asked, priority=priority, start=start)
        )
        what = f"{name} comes, for {asked.where} from {start}, {priority}"
        self._begins("subscribing", what, LASTS_S, _nothing)

    def subscriber_leaves(self) -> None:
        if len(self.subscribers) > 1:
            one = self.subscribers.pop(self.chance.randrange(len(self.subscribers)))
            one.leave()
            self._begins("leaving subscriber", f"{one.name} leaves", LASTS_S, _nothing)

    def slow_subscriber(self) -> None:
        if self.subscribers:
            one = self.chance.choice(self.subscribers)
            one.pause_s = self.chance.choice((0.1, 1.0))

            def quick() -> None:
                one.pause_s = 0.0

            what = f"{one.name} takes {one.pause_s} s for each"
            self._begins("slow subscriber", what, 2 * LASTS_S, quick)

    def consumer_comes(self) -> None:
        self._names += 1
        name = f"consumer-{self._names}"
        self.consumers.append(Consuming(self.world, name, TOPIC, "packers"))
        self._begins("joining", f"{name} comes", LASTS_S, _nothing)

    def consumer_dies(self) -> None:
        if len(self.consumers) > 1:
            one = self.consumers.pop(self.chance.randrange(len(self.consumers)))
            one.die()
            self._begins("dead consumer", f"{one.name} dies", LASTS_S, _nothing)

    # --- operators -------------------------------------------------------------------------------

    def reset(self) -> None:
        number = self.chance.randrange(self.partitions)
        body = {"to": self.chance.choice(("earliest", 1, 20))}
        what = f"partition {number} is reset to {body['to']}"
        self._asked(what, self._post(f"/v1/topics/{TOPIC}/partitions/{number}/reset", body))
        self._begins("reset", what, LASTS_S, _nothing)

    def drained(self) -> None:
        role = self.chance.choice([*self.world.of("ingest"), *self.world.of("router")])
        what = f"{role.name} is drained"
        self._asked(what, self._post(f"/v1/nodes/{role.name}/drain", {}))
        self._begins("draining", what, 20.0, self.end_drains)

    def letters(self) -> None:
        what = "dead letters are sent again"
        self._asked(what, self._post("/v1/dead-letters/retry", {"filter": {}}))
        self._begins("retried letters", what, LASTS_S, _nothing)

    def end_drains(self) -> None:
        self._asked("nobody is drained", self._end_drains(self.chance.choice(self.world.urls)))

    async def _end_drains(self, url: str) -> None:
        async with self.world.cluster.http(url) as client:
            for role in (*self.world.of("ingest"), *self.world.of("router")):
                with suppress(HeadgateError):
                    await client.delete(f"/v1/nodes/{role.name}/drain")

    async def _post(self, path: str, body: object) -> None:
        async with self.world.cluster.http(self.chance.choice(self.world.urls)) as client:
            await client.call("POST", path, msgspec.json.encode(body), timeout_s=30.0)

    def _asked(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Somebody asks for something, and hears what came of it."""

        async def asks() -> None:
            try:
                await work
            except HeadgateError as error:
                self.world.say(f"{what}? {error}")

        self.world.client("operator", asks)


def _nothing() -> None:
    """It has no end of its own."""


WEIGHTS: Final[dict[str, float]] = {
    "killed": 4,
    "machine_gone": 2,
    "frozen": 4,
    "stopped": 2,
    "cut": 4,
    "slow_link": 2,
    "store": 5,
    "election": 1,
    "subscriber_comes": 2,
    "subscriber_leaves": 1,
    "slow_subscriber": 2,
    "consumer_comes": 1,
    "consumer_dies": 1,
    "reset": 2,
    "drained": 2,
    "letters": 2,
}
