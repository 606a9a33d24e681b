"""What goes wrong in a run, and what operators ask for meanwhile.

Each fault draws from a chance of its own, so that a run without one of them is the same run but for
that: how a failing run is made smaller. Most of them last for a while; what lasts at the same time
has met, which the world counts (situations.py). How long they last goes with how often they come:
some are over before anybody notices, some last until a lease has ended.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import msgspec

from headgate.errors import HeadgateError, TopicExists
from headgate.model.api import TopicInfo
from headgate.model.stored import StoredState
from tests.sim.clients import (
    BUFFERS,
    COSTLY,
    FILTERS,
    Committing,
    Consuming,
    Producing,
    Subscribing,
)
from tests.sim.identities import SIGHTS, Sight
from tests.sim.observed import ObservedPartition
from tests.sim.stores import BAD, Mood
from tests.sim.world import Role, World

TOPIC: Final = "flights"
COUNTS: Final = (1, 2, 3, 4, 6, 8)
"""Of partitions, that it gets."""
VISITS: Final = "visits"
"""A topic that is deleted and made again."""
VISITS_PARTITIONS: Final = 2
SIGHTINGS: Final = "sightings"
"""A topic without keys, where a run has one."""
SIGHTINGS_PARTITIONS: Final = 3
CONNECTOR: Final = "radar"
LASTS_S: Final = 4.0
"""Of what has no end of its own: how long it counts as going on."""
AWAY_S: Final = (0.0, 0.2, 1.0, 4.0, 12.0)
"""Nodes; the last two are longer than most leases of a run."""
ABSENT_S: Final = (0.0, 0.0, 1.0, 5.0)
"""Subscribers that come back to where they were."""
FROZEN_S: Final = (0.2, 1.0, 3.0, 9.0)
CUT_S: Final = (0.2, 1.5, 9.0)
SLOWER_S: Final = (0.02, 0.2, 1.0)
STORE_S: Final = (0.3, 1.5, 7.0)
LINKS: Final = (
    ("coordinator", "lane"),
    ("coordinator", "lane"),
    ("coordinator", "gateway"),
    ("coordinator", "ingest"),
    ("coordinator", "router"),
    ("lane", "gateway"),
    ("lane", "gateway"),
    ("gateway", "ingest"),
    ("coordinator", "producer"),
    ("producer", "ingest"),
    ("producer", "gateway"),
    ("ingest", "ingest"),
    ("gateway", "gateway"),
    ("gateway", "subscriber"),
    ("gateway", "consumer"),
)
"""Who talks to whom."""
HEADLESS_S: Final = (4.5, 9.0)
"""Longer than lanes wait for a coordinator before they begin from notes."""
DEPOSED_S: Final = (6.0, 8.0)
"""Longer than a leader's lease."""
SAVED_S: Final = 0.5
"""What a leader has for what it is asked, before it is deposed."""
TORN_S: Final = 1.0
LATE_S: Final = 2.0
UNREACHED_S: Final = (3.0, 6.0)
LAST_WORDS_S: Final = 0.4
ZOMBIE_S: Final = (2.5, 5.0)
"""Until others read what a lane did that stands still."""
NEWEST: Final = 12
"""Of these records of a partition one is spoilt that was written before."""
SPOILT_AT_ONCE: Final = 0.7
"""How many are before anybody can have read them."""
WAY_ON: Final = re.compile(r"`headgate partition reset \S+:(\d+) --to (\d+) --resync`")
"""In the sentence about a corrupt record."""
OPERATED_S: Final = 1.0
ALL_THERE_S: Final = 0.1
"""Between two looks whether all nodes are."""
COSTLY_ONES: Final = 12
"""Six of these filters are all that a gateway has time for, where it has little (run.py)."""
JUMPS_MS: Final = (-600_000, -60_000, -3_000, 500, 3_000, 60_000, 600_000)


class Faults:
    """The faults of one run, by name; `WEIGHTS` says how often each is drawn."""

    def __init__(self, world: World, partitions: int, max_deliveries: int) -> None:
        self.world = world
        self.partitions = partitions
        self.max_deliveries = max_deliveries
        self.sightings = False
        """Is there such a topic?"""
        self.packers_see: Sight = SIGHTS[0]
        """All consumers of a group see the same."""
        self.has_connector = False
        """Does one read a database into `TOPIC`?"""
        self.subscribers: list[Subscribing] = []
        self.consumers: list[Consuming] = []
        self.producers: list[Producing | Committing] = []
        self.chance = random.Random(0)
        self._going_on: Counter[str] = Counter()
        self._names = 0
        self._is_calm = False
        self._is_operated = False
        """Does somebody look for corrupt records?"""

    def happen(self, name: str, chance: random.Random) -> None:
        self.chance = chance
        getattr(self, name)()

    def calm(self) -> None:
        """From here on everything is mended, and nothing begins."""
        self._is_calm = True

    # --- what lasts ------------------------------------------------------------------------------

    def _begins(self, kind: str, what: str, lasts_s: float, ends: Callable[[], None]) -> None:
        self.world.watcher.call_later(lasts_s, self._goes_on(kind, what, ends))

    def _goes_on(self, kind: str, what: str, ends: Callable[[], None]) -> Callable[[], None]:
        """Until what is returned is called."""
        world = self.world
        world.say(what)
        for other in sorted(+self._going_on):
            world.meets(f"{min(kind, other)} while {max(kind, other)}")
        self._going_on[kind] += 1

        def over() -> None:
            self._going_on[kind] -= 1
            world.say(f"over: {what}")
            ends()

        return over

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
            if role is self.world.leader:
                self._leader_lost()
            role.kill(quietly=quietly)
            away_s = self.chance.choice(AWAY_S)
            self._begins(f"no {role.kind}", f"{role.name} {how}", away_s, role.start)

    def _leader_lost(self) -> None:
        left = msgspec.json.decode(self.world.cluster.coordination.content, type=StoredState)
        if left.moves or left.target_moves:
            self.world.meets("a leader is lost in the middle of a handoff")
        if left.resets:
            self.world.meets("a leader is lost in the middle of a reset")
        for topic in left.topics:
            if topic.repartition is not None:
                phase = topic.repartition.phase
                self.world.meets(f"a leader is lost while a topic is {phase}")

    def frozen(self) -> None:
        role = self._some_role()
        if role is not None and role.process is not None:
            process, seconds = role.process, self.chance.choice(FROZEN_S)
            process.freeze()
            self._begins(f"frozen {role.kind}", f"{role.name} freezes", seconds, process.thaw)

    def stopped(self) -> None:
        if (role := self._some_role()) is not None and role.is_ready:
            role.stop()
            self._begins(
                f"stopping {role.kind}", f"{role.name} is told to stop", LASTS_S, role.start_again
            )

    def rolled(self) -> None:
        """All of a kind, one after the other."""
        kind, world = self.chance.choice(("coordinator", "ingest", "router", "gateway")), self.world
        every_s = self.chance.choice((1.0, 3.0))
        for number, role in enumerate(world.of(kind)):
            world.watcher.call_later(number * every_s, role.stop)
            world.watcher.call_later((number + 0.9) * every_s, role.start_again)
        lasts_s = every_s * len(world.of(kind))
        self._begins("rolling restart", f"all of {kind} are restarted", lasts_s, _nothing)

    def deposed(self) -> None:
        """Whoever leads doesn't hear that it doesn't any more, and goes on: often in the middle of
        what it was asked for, which its store takes its time to keep."""
        leader = self.world.leader
        if leader is None or leader.process is None:
            return
        process, seconds = leader.process, self.chance.choice(DEPOSED_S)

        def freezes() -> None:
            if process.state == "running":
                self._leader_lost()
                process.freeze()

        self._begins("deposed leader", f"{leader.name} is deposed", seconds, process.thaw)
        if self.chance.random() < 0.3:
            freezes()
            return
        self._turns("state", "slow", SAVED_S)
        self.chance.choice((self.reset, self.drained, self.repartitioned))()
        self.world.watcher.call_later(SAVED_S, freezes)

    def headless(self) -> None:
        """No coordinator is left, for longer than lanes wait for one, and a lane or a router begins
        meanwhile."""
        seconds = self.chance.choice(HEADLESS_S)
        if self.world.leader is not None:
            self._leader_lost()
        for role in self.world.of("coordinator"):
            role.kill()

        def back() -> None:
            for role in self.world.of("coordinator"):
                role.start()

        self._begins("no coordinator at all", "all coordinators are killed", seconds, back)
        if self.chance.random() < 0.5:
            self.lane_killed()
        else:
            router = self.chance.choice(self.world.of("router"))
            router.kill()
            router.start()
            self.world.say(f"{router.name} is killed and starts again")

    def forgotten(self) -> None:
        """As soon as all nodes are there, coordinators lose all that they have stored, and begin
        anew: the nodes remember. Tokens nobody remembers, so not where there are any."""
        world = self.world
        nodes = [role for role in world.roles.values() if role.kind != "coordinator"]
        if world.identities.is_on or self._is_calm:
            return
        if not all(one.is_running for one in nodes):
            world.watcher.call_later(ALL_THERE_S, self.happen, "forgotten", self.chance)
            return
        for role in world.of("coordinator"):
            role.kill()
        world.cluster.coordination.content = msgspec.json.encode(StoredState())
        world.phases.is_forgotten = True
        world.meets("coordinators forget everything")

        def back() -> None:
            for role in world.of("coordinator"):
                role.start()

        seconds = self.chance.choice(AWAY_S[:3])
        self._begins("forgetful coordinator", "coordinators forget everything", seconds, back)

    def clock(self) -> None:
        name = self.chance.choice(sorted(self.world.cluster.machines))
        by_ms = self.chance.choice(JUMPS_MS)
        self.world.cluster.jump(name, by_ms)
        self._begins("clock", f"the clock of {name} jumps by {by_ms} ms", LASTS_S, _nothing)

    # --- lanes -----------------------------------------------------------------------------------

    def lane_killed(self) -> None:
        lanes = self.world.cluster.lanes
        if lanes.living:
            lane = self.chance.choice(lanes.living)
            lanes.kill(lane)
            self._begins("killed lane", f"{lane.process.name} is killed", LASTS_S, _nothing)

    def zombie(self) -> None:
        """A router is killed and starts again. Its lanes stood still meanwhile, and go on for a
        moment as if nothing had happened: what they said last arrives only then, and a gateway may
        be away."""
        world, router = self.world, self.chance.choice(self.world.of("router"))
        lanes = [one for one in world.cluster.lanes.living if one.router is router.process]
        seconds = self.chance.choice(ZOMBIE_S)
        for lane in lanes:
            lane.outlives_s = seconds + LASTS_S
            world.network.hold(lane.process)

        def alone() -> None:
            for lane in lanes:
                lane.process.freeze()
            router.kill()
            router.start()

        world.watcher.call_later(LAST_WORDS_S, alone)
        gateway = self.chance.choice(world.of("gateway"))
        is_away = self.chance.random() < 0.3

        def thaw() -> None:
            for lane in lanes:
                world.network.release(lane.process)
                lane.process.thaw()
            if is_away:
                gateway.kill()
                what = f"{gateway.name} is killed"
                self._begins("no gateway", what, AWAY_S[2], gateway.start)

        self._begins("zombie lanes", f"{router.name} leaves its lanes alone", seconds, thaw)

    def unheard(self) -> None:
        """Lanes hear late of those who come, and are killed before or soon after they do."""
        world, network = self.world, self.world.network
        ways = [(one, two) for one in self._named("coordinator") for two in self._named("lane")]
        for way in ways:
            network.slow_down(*way, LATE_S)

        def mended() -> None:
            for way in ways:
                network.slow_down(*way, 0.0)

        def die() -> None:
            for lane in [*world.cluster.lanes.living]:
                world.cluster.lanes.kill(lane)
            self._begins("killed lane", "all lanes are killed", LASTS_S, mended)

        self._begins("late news", "lanes hear late of everything", LASTS_S, _nothing)
        for _ in range(2):
            self.subscriber_comes()
        world.watcher.call_later(self.chance.uniform(0.5, LATE_S), die)

    def lane_frozen(self) -> None:
        lanes = self.world.cluster.lanes
        if lanes.living:
            process, seconds = (
                self.chance.choice(lanes.living).process,
                self.chance.choice(FROZEN_S),
            )
            process.freeze()
            self._begins("frozen lane", f"{process.name} freezes", seconds, process.thaw)

    # --- links -----------------------------------------------------------------------------------

    def _link(self) -> tuple[str, str]:
        """Two that talk to each other, either of them first."""
        one, two = self.chance.choice(LINKS)
        ends = [
            self.chance.choice(names) for names in (self._named(one), self._named(two)) if names
        ]
        if len({*ends}) < 2:  # nobody of that kind is there
            ends = self.chance.sample([*self.world.roles], 2)
        self.chance.shuffle(ends)
        return ends[0], ends[1]

    def _named(self, kind: str) -> list[str]:
        match kind:
            case "lane":
                return sorted({one.process.name for one in self.world.cluster.lanes.living})
            case "subscriber":
                return [one.name for one in self.subscribers]
            case "consumer":
                return [one.name for one in self.consumers]
            case "producer":
                return [one.name for one in self.producers]
        return [role.name for role in self.world.of(kind)]

    def cut(self) -> None:
        network, (one, two) = self.world.network, self._link()
        ways = [(one, two), (two, one)][: self.chance.choice((1, 2, 2))]
        for way in ways:
            network.cut(*way)

        def mended() -> None:
            for way in ways:
                network.mend(*way)

        what = f"{one} {'→' if len(ways) == 1 else '↔'} {two} is cut"
        self._begins("cut link", what, self.chance.choice(CUT_S), mended)

    def slow_return(self) -> float:
        """No lane reaches a gateway, until letters are parked for it; they go out slowly then,
        while more comes. Returns when that is."""
        network, gateway = self.world.network, self.chance.choice(self.world.of("gateway")).name
        by_s = self.chance.choice(SLOWER_S)
        ways = [way for one in self._named("lane") for way in ((one, gateway), (gateway, one))]
        for way in ways:
            network.cut(*way)

        def mended() -> None:
            for way in ways:
                network.slow_down(*way, by_s)
                network.mend(*way)
            self._begins("slow return", f"{gateway} is reached slowly", LASTS_S, quick)

        def quick() -> None:
            for way in ways:
                network.slow_down(*way, 0.0)

        what = f"no lane reaches {gateway}"
        lasts_s = self.chance.choice(UNREACHED_S)
        self._begins("unreached gateway", what, lasts_s, mended)
        return lasts_s

    def slow_link(self) -> None:
        one, two = self._link()
        by_s, network = self.chance.choice(SLOWER_S), self.world.network
        network.slow_down(one, two, by_s)
        self._begins(
            "slow link",
            f"{one} → {two} takes {by_s} s more",
            LASTS_S,
            lambda: network.slow_down(one, two, 0.0),
        )

    # --- stores ----------------------------------------------------------------------------------

    def store(self) -> None:
        name = self.chance.choice([*self.world.cluster.weather])
        self._turns(name, self.chance.choice(BAD), self.chance.choice(STORE_S))

    def _turns(self, name: str, mood: Mood, lasts_s: float) -> None:
        weather = self.world.cluster.weather[name]
        weather.mood = mood

        def clears() -> None:
            weather.mood = "well"

        what = f"the store of the {name} is {mood}"
        self._begins(f"{name} away", what, lasts_s, clears)

    def flipped_bit(self) -> None:
        """A record isn't any more what was appended; an operator goes on behind it as soon as its
        partition says how."""
        stored, chance = self.world.cluster.log.partitions, self.chance
        mine = [one for ref, one in stored.items() if ref.topic == TOPIC and one.records]
        if not mine:
            return
        partition = chance.choice(mine)
        assert isinstance(partition, ObservedPartition)
        if chance.random() < SPOILT_AT_ONCE:
            partition.spoils_next = chance
            what = f"the next record of {TOPIC}:{partition.ref.partition} is spoilt"
        else:
            newest = min(NEWEST, len(partition.records))
            at = len(partition.records) - 1 - chance.randrange(newest)
            what = (
                f"record {partition.records[at].seq} of {TOPIC}:{partition.ref.partition} is spoilt"
            )
            partition.spoil(at, chance)
        self._begins("spoilt record", what, LASTS_S, _nothing)
        if not self._is_operated:
            self._is_operated = True
            self.world.client("operator", self._go_on_behind_corrupt_records)

    async def _go_on_behind_corrupt_records(self) -> None:
        """Whatever is said of one, for as long as the run lasts."""
        while True:
            await asyncio.sleep(OPERATED_S)
            with suppress(HeadgateError):
                async with self.world.cluster.http(self.world.urls[0]) as client:
                    shown = await client.get(f"/v1/topics/{TOPIC}", TopicInfo)
                    for one in shown.details:
                        if way_on := WAY_ON.search(one.reason):
                            number, to = way_on.groups()
                            body = msgspec.json.encode({"to": int(to), "resync": True})
                            path = f"/v1/topics/{TOPIC}/partitions/{number}/reset"
                            await client.call("POST", path, body, timeout_s=30.0)
                            self.world.meets("an operator goes on behind a corrupt record")
                            self.world.say(f"operator: {TOPIC}:{number} goes on at {to}")

    def torn_appends(self) -> None:
        """Nobody can tell what was written, and whoever wrote it is gone for longer than a lease:
        it is sent again to whoever comes next."""
        ingest = self.chance.choice(self.world.of("ingest"))
        self._turns("appends", "losing", TORN_S)

        def dies() -> None:
            ingest.kill()
            self._begins("no ingest", f"{ingest.name} is killed", AWAY_S[-1], ingest.start)

        self.world.watcher.call_later(TORN_S, dies)

    def election(self) -> None:
        leases = self.world.cluster.leases
        leases.is_away = True

        def back() -> None:
            leases.is_away = False

        seconds = self.chance.choice((1.0, 7.0))
        self._begins("election away", "the election is away", seconds, back)

    # --- clients ---------------------------------------------------------------------------------

    def subscriber_comes(self) -> None:
        self._names += 1
        name, asked = f"subscriber-{self._names}", self.chance.choice(FILTERS)
        priority = self.chance.choice(("normal", "normal", "high", "low"))
        start = self.chance.choice(("now", "now", "earliest"))
        topic = self.chance.choice((TOPIC, TOPIC, TOPIC, VISITS, *[SIGHTINGS] * self.sightings))
        self.subscribers.append(
            Subscribing(
                self.world,
                name,
                topic,
                asked,
                sight=self.chance.choice(SIGHTS),
                may_vanish=topic == VISITS,
                priority=priority,
                start=start,
                tenant=self.chance.choice(("", "", "crowd")),
                buffer=self.chance.choice(BUFFERS),
            )
        )
        what = f"{name} comes to {topic}, for {asked.where} from {start}, {priority}"
        self._begins("subscribing", what, LASTS_S, _nothing)

    def costly_filters(self) -> None:
        """More of them come than a gateway has time for, and leave after a while."""
        came = []
        for _ in range(COSTLY_ONES):
            self._names += 1
            name = f"subscriber-{self._names}"
            came.append(Subscribing(self.world, name, TOPIC, COSTLY, sight=SIGHTS[0]))

        def leave() -> None:
            for one in came:
                one.leave()

        self._begins("costly filters", f"{COSTLY_ONES} come who ask a lot", LASTS_S, leave)

    def subscriber_leaves(self) -> None:
        if len(self.subscribers) > 1:
            one = self.subscribers.pop(self.chance.randrange(len(self.subscribers)))
            one.leave()
            self._begins("leaving subscriber", f"{one.name} leaves", LASTS_S, _nothing)

    def subscriber_resumes(self) -> None:
        if self.subscribers:
            one, away_s = self.chance.choice(self.subscribers), self.chance.choice(ABSENT_S)
            one.die_and_resume(after_s=away_s)
            what = f"{one.name} dies and resumes after {away_s} s"
            self._begins("resuming", what, LASTS_S, _nothing)

    def filter_changes(self) -> None:
        if self.subscribers:
            one, asked = self.chance.choice(self.subscribers), self.chance.choice(FILTERS)
            sight = self.chance.choice((*SIGHTS, None))
            one.die_and_resume(asked, sight)
            self._begins("changing filter", f"{one.name} wants {asked.where}", LASTS_S, _nothing)

    def slow_subscriber(self) -> None:
        if self.subscribers:
            one = self.chance.choice(self.subscribers)
            one.pause_s = self.chance.choice((0.05, 0.5))

            def quick() -> None:
                one.pause_s = 0.0

            what = f"{one.name} takes {one.pause_s} s for each"
            self._begins("slow subscriber", what, 2 * LASTS_S, quick)

    def consumer_comes(self) -> None:
        self._names += 1
        name = f"consumer-{self._names}"
        most = self.max_deliveries
        self.consumers.append(
            Consuming(
                self.world, name, TOPIC, "packers", max_deliveries=most, sight=self.packers_see
            )
        )
        self._begins("joining", f"{name} comes", LASTS_S, _nothing)

    def stranger_comes(self) -> None:
        """A consumer whose grant shows something else than what the group is of, which nobody lets
        in."""
        world = self.world
        if world.identities.is_on and world.oracle.groups:
            self._names += 1
            sight = self.chance.choice([one for one in SIGHTS if one is not self.packers_see])
            one = Consuming(
                world, f"stranger-{self._names}", TOPIC, "packers", max_deliveries=0, sight=sight
            )
            self._begins("stranger", f"{one.name} comes, who sees {sight.name}", LASTS_S, one.die)

    def consumer_dies(self) -> None:
        if len(self.consumers) > 1:
            one = self.consumers.pop(self.chance.randrange(len(self.consumers)))
            one.die()
            self._begins("dead consumer", f"{one.name} dies", LASTS_S, _nothing)

    # --- operators -------------------------------------------------------------------------------

    def token_replaced(self) -> None:
        bearers = self.world.identities.bearers()
        if bearers:
            one, after_s = self.chance.choice(bearers), self.chance.choice((0.0, 2.0))
            one.replaced(after_s)
            what = f"the token of {one.name} is revoked, the next one comes after {after_s} s"
            self._begins("revoked token", what, LASTS_S, _nothing)

    def reset(self) -> None:
        number = self.chance.randrange(self.partitions)
        to = self.chance.choice(("earliest", "earliest", 1, 20, "latest"))
        body = {"to": to, "resync": to == "latest" and self.chance.random() < 0.5}
        what = f"partition {number} is reset to {to}"
        self._asked(what, self._post(f"/v1/topics/{TOPIC}/partitions/{number}/reset", body))
        self._begins("reset", what, LASTS_S, _nothing)

    def repartitioned(self, topic: str = TOPIC) -> None:
        there = self.world.phases.partitions.get(topic)
        to = self.chance.choice([count for count in COUNTS if count != there])
        if topic == TOPIC:
            self.partitions = max(self.partitions, to)
        what = f"{topic} gets {to} partitions"
        self._asked(what, self._post(f"/v1/topics/{topic}/repartition", {"partitions": to}))
        self._begins("repartition", what, LASTS_S, _nothing)

    def others_repartitioned(self) -> None:
        self.repartitioned(self.chance.choice((VISITS, *[SIGHTINGS] * self.sightings)))

    def origin_away(self) -> None:
        if not self.has_connector:
            return
        history = self.world.cluster.history
        history.is_away = True

        def back() -> None:
            history.is_away = False

        seconds = self.chance.choice(STORE_S)
        self._begins("origin away", "the database is away", seconds, back)

    def connector_paused(self) -> None:
        if not self.has_connector:
            return
        what = f"{CONNECTOR} is paused"
        self._asked(what, self._post(f"/v1/connectors/{CONNECTOR}/pause", {}))
        self._begins("paused connector", what, LASTS_S, self.resume_connector)

    def resume_connector(self) -> None:
        """Whether or not it is paused."""
        if self.has_connector:
            again = self._post(f"/v1/connectors/{CONNECTOR}/resume", {})
            self._asked(f"{CONNECTOR} goes on", again)

    def drained(self) -> None:
        role = self.chance.choice([*self.world.of("ingest"), *self.world.of("router")])
        what = f"{role.name} is drained"
        self._asked(what, self._post(f"/v1/nodes/{role.name}/drain", {}))
        self._begins("draining", what, 2 * LASTS_S, self.end_drains)

    def rebalanced(self) -> None:
        self._asked("everything is spread anew", self._post("/v1/rebalance", {}))

    def letters(self) -> None:
        what = "dead letters are sent again"
        self._asked(what, self._post("/v1/dead-letters/retry", {"filter": {}}))
        self._begins("retried letters", what, LASTS_S, _nothing)

    def letters_deleted(self) -> None:
        what = "dead letters are deleted"
        self._asked(what, self._post("/v1/dead-letters/delete", {"filter": {}}))
        self._begins("deleted letters", what, LASTS_S, _nothing)

    def topic_deleted(self) -> None:
        what = f"{VISITS} is deleted"
        self._asked(what, self._call("DELETE", f"/v1/topics/{VISITS}"))
        self._begins("deleted topic", what, self.chance.choice((0.5, LASTS_S)), self.make_topic)

    def make_topic(self) -> None:
        """Whether or not it is there."""
        body = {"name": VISITS, "partitions": VISITS_PARTITIONS}
        self._asked(f"{VISITS} is made", self._post("/v1/topics", body))

    def end_drains(self) -> None:
        self._asked("nobody is drained", self._end_drains(self.chance.choice(self.world.urls)))

    async def _end_drains(self, url: str) -> None:
        async with self.world.cluster.http(url) as client:
            for role in (*self.world.of("ingest"), *self.world.of("router")):
                with suppress(HeadgateError):
                    await client.delete(f"/v1/nodes/{role.name}/drain")

    def _post(self, path: str, body: object) -> Coroutine[Any, Any, None]:
        return self._call("POST", path, msgspec.json.encode(body))

    def _call(self, method: str, path: str, body: bytes | None = None) -> Coroutine[Any, Any, None]:
        """By a gateway that is drawn now."""
        url = self.chance.choice(self.world.urls)

        async def calls() -> None:
            async with self.world.cluster.http(url) as client:
                await client.call(method, path, body, timeout_s=30.0)

        return calls()

    def _asked(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Somebody asks for something, and hears what came of it."""

        async def asks() -> None:
            try:
                await work
            except TopicExists:
                return
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
    "rolled": 1,
    "deposed": 3,
    "headless": 1,
    "clock": 2,
    "lane_killed": 3,
    "lane_frozen": 2,
    "unheard": 2,
    "zombie": 2,
    "cut": 4,
    "slow_link": 2,
    "slow_return": 2,
    "store": 5,
    "torn_appends": 2,
    "election": 1,
    "subscriber_comes": 3,
    "costly_filters": 1,
    "subscriber_leaves": 1,
    "subscriber_resumes": 2,
    "filter_changes": 1,
    "token_replaced": 4,
    "slow_subscriber": 2,
    "consumer_comes": 1,
    "consumer_dies": 1,
    "stranger_comes": 1,
    "reset": 2,
    "repartitioned": 3,
    "others_repartitioned": 1,
    "origin_away": 1,
    "connector_paused": 1,
    "drained": 2,
    "rebalanced": 1,
    "letters": 2,
    "letters_deleted": 1,
    "topic_deleted": 1,
}
