"""What goes wrong across a repartition: whoever is in the middle of something when a topic gets
another number of partitions has begun in one version and ends in the next.

By chance alone that is rare: what has to meet it must have begun before, and must last; and until
the next version is there it takes a tenth of a second in one run, and a quarter of a minute in the
next. So each of these brings both, and waits for the phase that it is about (phases.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from headgate.services.gateway.service import Gateway
from tests.sim.clients import PROMPT_S, Subscribing
from tests.sim.faults import AWAY_S, LASTS_S, TOPIC, TORN_S, VISITS, WEIGHTS, Faults
from tests.sim.phases import PHASES, Phase
from tests.sim.stores import EVERYTHING, Mood
from tests.sim.world import ELECTION_TTL_S

LEAD_S: Final = (0.3, 1.0, 2.0)
"""What has begun before the topic gets other partitions lasts for so long by then."""
RETURNS_S: Final = (0.2, 1.5, 4.0)
"""What comes back after the next version is there."""
PHASE_S: Final = 20.0
"""Within that a repartition is so far, or was given up."""
POLL_S: Final = 0.05
UNREAD_S: Final = 3.0
UNHEARD_S: Final = (1.0, 3.5)
"""The second one is longer than a producer waits for an answer."""
UNINFORMED_S: Final = (0.5, 1.5)
LETTERS_S: Final = 3.0
PARKED_S: Final = 15.0
"""Until a lane knows that a gateway isn't there, which answers nothing, and has parked for it."""
JOINED_S: Final = 5.0
ISLAND_S: Final = 5.0
ENOUGH: Final = 3
"""Of consumers, so that they are at more than one gateway."""
LATE_S: Final = 3.0
UNASKED_S: Final = ELECTION_TTL_S
"""Until another coordinator leads."""
SLOW_S: Final = 0.5
HURRY: Final = 0.1
"""What is left of a producer's pauses where there is to be much to read."""


class Crossings(Faults):
    """All faults of a run, with these."""

    # --- when ------------------------------------------------------------------------------------

    def _when(
        self, is_so: Callable[[], bool], then: Callable[[], None], *, within_s: float = PHASE_S
    ) -> None:
        """As soon as it is so; after so long in any case."""
        watcher = self.world.watcher
        until_s = watcher.time() + within_s

        def look() -> None:
            if is_so() or watcher.time() >= until_s:
                then()
            else:
                watcher.call_later(POLL_S, look)

        look()

    def _is(self, phase: Phase, topic: str = TOPIC) -> Callable[[], bool]:
        """Whether the next repartition has come so far."""
        phases = self.world.phases
        return partial(phases.has_reached, topic, phases.next(topic, phase))

    def _later(self, after_s: float, then: Callable[[], None]) -> Callable[[], None]:
        return lambda: self._call_later(after_s, then)

    def _call_later(self, after_s: float, then: Callable[[], None]) -> None:
        self.world.watcher.call_later(after_s, then)

    def _much_to_read(self, lasts_s: float = LASTS_S) -> None:
        for producer in self.producers:
            producer.pace = HURRY

        def calm() -> None:
            for producer in self.producers:
                producer.pace = 1.0

        self._call_later(lasts_s, calm)

    def _repartition_later(self) -> None:
        self._call_later(self.chance.choice(LEAD_S), self.repartitioned)

    # --- subscribers -----------------------------------------------------------------------------

    def slow_crossing(self) -> None:
        """Subscribers are behind, and read the log, in partitions that are former ones then."""
        self._slow_down([one for one in self.subscribers if one.topic == TOPIC])
        self._much_to_read()
        self._repartition_later()

    def _slow_down(self, slow: Sequence[Subscribing]) -> None:
        """Until there is another version, and a little longer."""
        for subscriber in slow:
            subscriber.pause_s = SLOW_S

        def quick() -> None:
            for subscriber in slow:
                subscriber.pause_s = 0.0

        what = f"{len(slow)} subscribers take {SLOW_S} s for each"
        over = self._goes_on("slow subscriber", what, quick)
        self._when(self._is("fenced"), self._later(self.chance.choice(LEAD_S), over))

    def unread_crossing(self) -> None:
        """Subscribers come back to where they were, at gateways that can't read the log until the
        topic has had others for a while: they still have the former version before them when the
        next one comes live."""
        mine = [one for one in self.subscribers if one.topic == TOPIC]
        self._slow_down(mine[1::2])
        lead_s, chance = self.chance.choice(LEAD_S), self.chance
        mood: Mood = chance.choice(("slow", "failing", "failing"))
        return_ = [one.die() for one in mine[::2]]
        self._begins("absent subscriber", f"{len(return_)} subscribers die", lead_s, _nothing)
        self._much_to_read(lead_s + 1.0)
        log, gateways = self.world.cluster.weather["log"], self._named("gateway")

        def unread() -> None:
            for gateway in gateways:
                log.moods[gateway, "read"] = mood
            what = f"the log is {mood} where gateways read it"
            over = self._goes_on("unread log", what, mended)
            is_fenced = self._is("fenced")
            for comes_back in return_:
                comes_back()
            self.repartitioned()
            self._when(is_fenced, self._later(0.0, self._much_to_read))
            self._when(is_fenced, self._later(UNREAD_S, over))

        def mended() -> None:
            for gateway in gateways:
                log.moods.pop((gateway, "read"), None)

        self._call_later(lead_s, unread)

    def uninformed_crossing(self) -> None:
        """Some hear late that there is another version: gateways whose subscribers are behind in
        the former one, producers, or ingest nodes."""
        world, kind = self.world, self.chance.choice(("gateway", "gateway", "producer", "ingest"))
        by_s = self.chance.choice(UNINFORMED_S)
        ways = [(one, two) for one in self._named("coordinator") for two in self._named(kind)]
        is_over = self._is("over")
        if kind == "gateway":
            self.unread_crossing()
        else:
            self._repartition_later()

        def uninformed() -> None:
            for way in ways:
                world.network.slow_down(*way, by_s)
            what = f"news takes {by_s} s to everyone of {kind}"
            self._when(is_over, self._goes_on(f"uninformed {kind}", what, mended))

        def mended() -> None:
            for way in ways:
                world.network.slow_down(*way, 0.0)

        # Who comes back is there before news takes so long.
        self._when(self._is("sealing"), uninformed)

    def away_crossing(self) -> None:
        """A subscriber is away, and comes back with positions that name no partition that came."""
        if self.subscribers:
            one, away_s = self.chance.choice(self.subscribers), self.chance.choice(RETURNS_S)
            self._begins("absent subscriber", f"{one.name} dies", away_s, _nothing)
            self._when(self._is("fenced"), self._later(away_s, one.die()))
            self.repartitioned()

    def deleted_crossing(self) -> None:
        """A topic is deleted while it gets other partitions, and made again soon."""
        phase = self.chance.choice(PHASES[:-1])
        self._when(self._is(phase, VISITS), self.topic_deleted, within_s=PHASE_S / 2)
        self.repartitioned(VISITS)

    # --- letters ---------------------------------------------------------------------------------

    def _is_parked(self, gateways: Sequence[str]) -> Callable[[], bool]:
        letters = self.world.cluster.letters.letters
        return lambda: any(
            one.state == "parked" and one.gateway_id in gateways and one.delivery.topic == TOPIC
            for one in letters.values()
        )

    def parked_crossing(self) -> None:
        """Letters are parked for a gateway in both versions: it is reached again, slowly or at
        once, around the time when the topic gets other partitions; and the letters may take their
        time by then."""
        network, gateway = self.world.network, self.chance.choice(self.world.of("gateway")).name
        chance, letters_s = self.chance, self.chance.choice((0.0, 0.0, LETTERS_S))
        by_s, more_s = chance.choice((0.0, 0.02, 0.2)), chance.choice((0.0, *RETURNS_S))
        ways = [way for one in self._named("lane") for way in ((one, gateway), (gateway, one))]
        for way in ways:
            network.cut(*way)

        def mended() -> None:
            for way in ways:
                network.slow_down(*way, by_s)
                network.mend(*way)
            self._begins("slow return", f"{gateway} is reached slowly", LASTS_S, quick)
            if letters_s:
                self._turns("letters", "slow", letters_s)

        def quick() -> None:
            for way in ways:
                network.slow_down(*way, 0.0)

        over = self._goes_on("unreached gateway", f"no lane reaches {gateway}", mended)

        def crosses() -> None:
            self._much_to_read()
            self._when(self._is("draining"), self._later(more_s, over))
            self.repartitioned()

        self._much_to_read()
        self._when(self._is_parked([gateway]), crosses, within_s=PARKED_S)

    def half_parked_crossing(self) -> None:
        """One lane reaches no gateway until letters are parked there, and for a while after the
        topic has other partitions; the others do, and read what comes next."""
        lanes, gateways = self._named("lane"), self._named("gateway")
        if not lanes:
            return
        lane, network = self.chance.choice(lanes), self.world.network
        more_s = self.chance.choice(RETURNS_S)
        ways = [way for one in gateways for way in ((lane, one), (one, lane))]
        for way in ways:
            network.cut(*way)

        def mended() -> None:
            for way in ways:
                network.mend(*way)

        over = self._goes_on("half-reached gateways", f"{lane} reaches no gateway", mended)

        def crosses() -> None:
            self._much_to_read()
            self._when(self._is("draining"), self._later(more_s, over))
            self.repartitioned()

        self._much_to_read()
        self._when(self._is_parked(gateways), crosses, within_s=PARKED_S)

    # --- consumers -------------------------------------------------------------------------------

    def island(self) -> None:
        """A gateway is cut off from every coordinator and from the positions, for longer than its
        lease, and not from its consumers, who have much before them. Others are elsewhere."""
        while len(self.consumers) < ENOUGH:
            self.consumer_comes()
        chance = self.chance
        for one in self.consumers:
            one.pause_s = SLOW_S / 2
        self._much_to_read(JOINED_S)
        self._when(
            lambda: all(one.has_joined for one in self.consumers),
            self._later(chance.choice(LEAD_S), partial(self._cut_off, chance.random())),
            within_s=JOINED_S,
        )

    def _cut_off(self, which: float) -> None:
        """Of the gateways that have consumers."""
        world, positions = self.world, self.world.cluster.weather["positions"]
        roles = world.of("gateway")
        busy = [
            role.name
            for role in roles
            if role.is_ready
            and isinstance(role.node, Gateway)
            and any(one.targets() for one in role.node._consumers._table.values())
        ] or [role.name for role in roles]
        gateway = busy[int(which * len(busy))]
        ways = [
            way for one in self._named("coordinator") for way in ((one, gateway), (gateway, one))
        ]
        for way in ways:
            world.network.cut(*way)
        positions.moods[gateway, EVERYTHING] = "failing"

        def mended() -> None:
            positions.moods.pop((gateway, EVERYTHING), None)
            for way in ways:
                world.network.mend(*way)
            for one in self.consumers:
                one.pause_s = PROMPT_S

        lasts_s = world.cluster.config.coordinator.timeout + ISLAND_S
        self._begins("island", f"{gateway} is an island", lasts_s, mended)

    def slow_consumers(self) -> None:
        """They have much in hand when one of them dies, or another comes."""
        consumers = [*self.consumers]
        for consumer in consumers:
            consumer.pause_s = SLOW_S

        def quick() -> None:
            for consumer in consumers:
                consumer.pause_s = PROMPT_S

        what = f"{len(consumers)} consumers take {SLOW_S} s for each"
        self._begins("slow consumers", what, LASTS_S, quick)
        happens = self.chance.choice((self.consumer_dies, self.consumer_comes, self.repartitioned))
        self.world.watcher.call_later(self.chance.choice(AWAY_S[1:4]), happens)

    # --- the coordinator -------------------------------------------------------------------------

    def unasked_crossing(self) -> None:
        """More come than a gateway has time for while there is no coordinator to ask, and there is
        one before they give up."""
        world = self.world
        for role in world.of("coordinator"):
            role.kill()

        def back() -> None:
            for role in world.of("coordinator"):
                role.start()

        self._begins("no coordinator at all", "all coordinators are killed", AWAY_S[1], back)
        comes_s = self.chance.uniform(UNASKED_S / 2, UNASKED_S)
        world.watcher.call_later(comes_s, self.costly_filters)

    # --- producers -------------------------------------------------------------------------------

    def late_crossing(self) -> None:
        """What is on its way to the log when its partition is sealed comes too late."""
        self._turns("appends", self.chance.choice(("slow", "shaky")), LATE_S)
        self._begins("late appends", "there is much to write", LATE_S, _nothing)
        self._much_to_read(LATE_S)
        self._call_later(self.chance.uniform(0.2, LATE_S / 2), self.repartitioned)

    def torn_crossing(self) -> None:
        """Nobody can tell what was written, whoever wrote it dies, and it is sent again to whoever
        has the next version."""
        self.torn_appends()
        self.world.watcher.call_later(TORN_S - self.chance.uniform(0.0, 0.2), self.repartitioned)

    def unheard_crossing(self) -> None:
        """An ingest node is heard by the coordinator, and by nobody who produces: what it has
        written is sent again, to whoever has the next version."""
        network, node = self.world.network, self.chance.choice(self.world.of("ingest")).name
        ways = [(node, one) for one in (*self._named("producer"), *self._named("gateway"))]
        for way in ways:
            network.cut(*way)

        def mended() -> None:
            for way in ways:
                network.mend(*way)

        what = f"nobody who produces hears {node}"
        self._begins("unheard ingest", what, self.chance.choice(UNHEARD_S), mended)
        self.world.watcher.call_later(self.chance.uniform(0.0, 1.0), self.repartitioned)


def _nothing() -> None:
    """It has no end of its own."""


ALL_WEIGHTS: Final[dict[str, float]] = {
    **WEIGHTS,
    "slow_crossing": 3,
    "unread_crossing": 2,
    "uninformed_crossing": 2,
    "parked_crossing": 2,
    "half_parked_crossing": 2,
    "island": 2,
    "away_crossing": 2,
    "deleted_crossing": 1,
    "late_crossing": 2,
    "torn_crossing": 2,
    "unheard_crossing": 2,
    "slow_consumers": 2,
    "unasked_crossing": 2,
}
