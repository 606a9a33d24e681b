"""What goes wrong across a repartition: whoever is in the middle of something when a topic gets
another number of partitions has begun in one version and ends in the next.

By chance alone that is rare: a repartition takes a tenth of a second, and what has to meet it must
have begun before, and must last. So each of these brings both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.sim.clients import PROMPT_S, Subscribing
from tests.sim.faults import AWAY_S, LASTS_S, TOPIC, TORN_S, WEIGHTS, Faults
from tests.sim.stores import EVERYTHING, Mood

LEAD_S: Final = (0.3, 1.0, 2.0)
"""What has begun before the topic gets other partitions lasts for so long by then."""
RETURNS_S: Final = (1.5, 4.0)
"""Longer than most repartitions take."""
UNREAD_S: Final = 3.0
UNHEARD_S: Final = (1.0, 3.5)
"""The second one is longer than a producer waits for an answer."""
UNINFORMED_S: Final = (0.5, 1.5)
LETTERS_S: Final = 3.0
PARKED_S: Final = 5.0
"""Until a lane knows that a gateway isn't there, which answers nothing."""
ISLAND_S: Final = 4.0
ENOUGH: Final = 3
"""Of consumers, so that they are at more than one gateway."""
LATE_S: Final = 3.0
SLOW_S: Final = 0.5
HURRY: Final = 0.1
"""What is left of a producer's pauses where there is to be much to read."""


class Crossings(Faults):
    """All faults of a run, with these."""

    def slow_crossing(self) -> None:
        """Subscribers are behind, and read the log, in partitions that are former ones then."""
        self._slow_down([one for one in self.subscribers if one.topic == TOPIC], LASTS_S)
        self._repartition_later()

    def _slow_down(self, slow: Sequence[Subscribing], lasts_s: float) -> None:
        """There is much to read for them meanwhile, and behind that."""
        for subscriber in slow:
            subscriber.pause_s = SLOW_S
        for producer in self.producers:
            producer.pace = HURRY

        def quick() -> None:
            for subscriber in slow:
                subscriber.pause_s = 0.0

        def calm() -> None:
            for producer in self.producers:
                producer.pace = 1.0

        what = f"{len(slow)} subscribers take {SLOW_S} s for each, and there is much to read"
        self._begins("slow subscriber", what, lasts_s, quick)
        self.world.watcher.call_later(max(lasts_s, LASTS_S), calm)

    def unread_crossing(self) -> None:
        """Gateways read the log slowly, or not at all, when the topic gets others: whoever
        was behind or away, and is quick by now, has the former version still before it when the
        next one comes live."""
        log = self.world.cluster.weather["log"]
        mood: Mood = self.chance.choice(("slow", "failing"))
        mine = [one for one in self.subscribers if one.topic == TOPIC]
        lead_s = self.chance.choice(LEAD_S)
        self._slow_down(mine, lead_s)
        self._begins("absent subscriber", "subscribers die", lead_s, _nothing)
        for one in mine[::2]:
            one.die_and_resume(after_s=lead_s)

        def unread() -> None:
            for gateway in self._named("gateway"):
                log.moods[gateway, "read"] = mood
            what = f"the log is {mood} where gateways read it"
            self._begins("unread log", what, UNREAD_S, mended)

        def mended() -> None:
            for gateway in self._named("gateway"):
                log.moods.pop((gateway, "read"), None)

        self.world.watcher.call_later(lead_s, unread)
        self.world.watcher.call_later(lead_s + self.chance.uniform(0.0, 0.5), self.repartitioned)

    def uninformed_crossing(self) -> None:
        """Some hear late that there is another version: gateways whose subscribers are behind in
        the former one, producers, or ingest nodes."""
        world, kind = self.world, self.chance.choice(("gateway", "gateway", "producer", "ingest"))
        by_s = self.chance.choice(UNINFORMED_S)
        ways = [(one, two) for one in self._named("coordinator") for two in self._named(kind)]
        if kind == "gateway":
            self.unread_crossing()
        else:
            self._repartition_later()
        for way in ways:
            world.network.slow_down(*way, by_s)

        def mended() -> None:
            for way in ways:
                world.network.slow_down(*way, 0.0)

        what = f"news takes {by_s} s to everyone of {kind}"
        self._begins(f"uninformed {kind}", what, LASTS_S, mended)

    def parked_crossing(self) -> None:
        """Letters are parked for a gateway in both versions: it is reached again, slowly or at
        once, around the time when the topic gets other partitions; and the letters may take their
        time by then."""
        for producer in self.producers:
            producer.pace = HURRY
        lasts_s = self.slow_return()

        def calm() -> None:
            for producer in self.producers:
                producer.pace = 1.0

        self._begins("much to park", "there is much to park", lasts_s, calm)
        after_s = lasts_s + self.chance.uniform(-2.0, 1.0)
        watcher, letters_s = self.world.watcher, self.chance.choice((0.0, 0.0, LETTERS_S))
        if letters_s:
            slow_s = lasts_s - LETTERS_S / 2
            watcher.call_later(slow_s, lambda: self._turns("letters", "slow", letters_s))
        watcher.call_later(after_s, self.repartitioned)

    def half_parked_crossing(self) -> None:
        """One lane reaches no gateway until letters are parked there, and for a while after the
        topic has other partitions; the others do, and read what comes next."""
        lanes = self._named("lane")
        if not lanes:
            return
        lane, network = self.chance.choice(lanes), self.world.network
        ways = [way for one in self._named("gateway") for way in ((lane, one), (one, lane))]
        for way in ways:
            network.cut(*way)
        for producer in self.producers:
            producer.pace = HURRY

        def mended() -> None:
            for way in ways:
                network.mend(*way)
            for producer in self.producers:
                producer.pace = 1.0

        parks_s = self.world.cluster.config.router.buffer_timeout
        lasts_s = PARKED_S + parks_s + self.chance.choice(RETURNS_S)
        self._begins("half-reached gateways", f"{lane} reaches no gateway", lasts_s, mended)
        self.world.watcher.call_later(self.chance.uniform(0.5, lasts_s - 1.0), self.repartitioned)

    def island(self) -> None:
        """A gateway is cut off from every coordinator and from the positions, for longer than its
        lease, and not from its consumers, who have much before them. Others are elsewhere."""
        world = self.world
        while len(self.consumers) < ENOUGH:
            self.consumer_comes()
        for one in self.consumers:
            one.pause_s = SLOW_S / 2
        for producer in self.producers:
            producer.pace = HURRY
        gateway, positions = (
            self.chance.choice(self._named("gateway")),
            world.cluster.weather["positions"],
        )
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
            for producer in self.producers:
                producer.pace = 1.0

        lasts_s = world.cluster.config.coordinator.timeout + ISLAND_S
        self._begins("island", f"{gateway} is an island", lasts_s, mended)

    def away_crossing(self) -> None:
        """A subscriber is away, and comes back with positions that name no partition that came."""
        if self.subscribers:
            one, away_s = self.chance.choice(self.subscribers), self.chance.choice(RETURNS_S)
            one.die_and_resume(after_s=away_s)
            self._begins("absent subscriber", f"{one.name} dies", away_s, _nothing)
            self.repartitioned()

    def late_crossing(self) -> None:
        """What is on its way to the log when its partition is sealed comes too late."""
        self._turns("appends", self.chance.choice(("slow", "shaky")), LATE_S)
        for producer in self.producers:
            producer.pace = HURRY

        def calm() -> None:
            for producer in self.producers:
                producer.pace = 1.0

        self._begins("late appends", "there is much to write", LATE_S, calm)
        self.world.watcher.call_later(self.chance.uniform(0.2, LATE_S / 2), self.repartitioned)

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
        self.world.watcher.call_later(self.chance.choice(AWAY_S[:3]), happens)

    def _repartition_later(self) -> None:
        self.world.watcher.call_later(self.chance.choice(LEAD_S), self.repartitioned)


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
    "late_crossing": 2,
    "torn_crossing": 2,
    "unheard_crossing": 2,
    "slow_consumers": 2,
}
