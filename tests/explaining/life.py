"""A random life of a cluster on virtual time, in which somebody asks after every record.

Everything is drawn from the seed: who subscribes for what and may see what, what is produced, and
what goes wrong. What each connection was handed, and was told that it misses, is written down by
the clients themselves; what is in the log, by who wrote it. `judging.py` compares.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import msgspec

from headgate.adapters.log.appending import AppendRequest
from headgate.adapters.memory.machine import BEGINS_MS
from headgate.client.consumer import Consumer
from headgate.client.credentials import credentials
from headgate.client.http import HttpClient
from headgate.client.producing.outgoing import OutgoingEvent
from headgate.client.producing.pending import ProducerOptions
from headgate.client.subscriber import Subscriber
from headgate.config import Config
from headgate.errors import HeadgateError
from headgate.model.api import TopicInfo
from headgate.model.client_messages import Event, Left, Resync
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch, Verdict
from headgate.model.event import Event as NewEvent
from headgate.model.event import PartitionRef, Record
from headgate.model.letters import Letter
from headgate.model.stored import StoredState
from headgate.services.gateway.service import Gateway
from headgate.services.gateway.subscriptions.live import LiveSubscription
from tests.sim.clients import FILTERS, Filter
from tests.sim.identities import JWT, SECURITY, SIGHTS, Sight
from tests.sim.world import World

TOPIC: Final = "flights"
GROUP: Final = "packers"
COUNTS: Final = (1, 2, 3)
"""Of partitions."""
KEYS: Final = "abcd"
READY_S: Final = 60.0
SOON_S: Final = 2.0
"""In which everything that nobody holds up happens."""
CALM_S: Final = 120.0
REFUSALS: Final[tuple[Verdict, ...]] = ("rejected", "no_subscriber")
Place = tuple[int, int]


class Listening:
    """One subscriber; `handed` and `told` by the id of the subscription, of which every connection
    has another."""

    def __init__(
        self, life: Life, name: str, asked: Filter, sight: Sight, *, acks: Any, **options: Any
    ) -> None:
        self.name, self.asked, self.sight = name, asked, sight
        self.handed: defaultdict[str, set[Place]] = defaultdict(set)
        self.ids: dict[str, Place] = {}
        """Of events, where it had them first."""
        self.told: list[Resync] = []
        self.entered_at: int | None = None
        """How many records there were when it was told that it is subscribed."""
        self.has_left = False
        self.came_again = False
        self.inside: Subscriber | None = None
        self._life, self._acks, self._options = life, acks, options
        self.process = life.world.client(name, self._live)

    @property
    def stayed(self) -> bool:
        """Has it been connected all the time?"""
        return not self.came_again and self.inside is not None and not self.inside.reconnects

    async def _live(self) -> None:
        life, token = self._life, None
        if life.guarded:
            shown = "" if self.sight.where is None else f" where {self.sight.where}"
            token = said_by(self.name, f"subscribe{shown}")
        while True:
            self.inside = life.world.cluster.subscriber(
                life.world.urls_of(self.name), "", id=self.name, acks=self._acks, token=token
            )
            self.inside.add(TOPIC, where=self.asked.where, id=self.name, **self._options)
            with suppress(HeadgateError):
                async with self.inside as inside:
                    if self.entered_at is None:
                        self.entered_at = life.records_now()
                    async for item in inside:
                        self._hand(item)
            if self.entered_at is not None:
                self._options["start"] = resuming(self.inside)
                self.came_again = True
            await asyncio.sleep(1.0)

    def _hand(self, item: object) -> None:
        if isinstance(item, Resync):
            self.told.append(item)
        elif isinstance(item, Event | Left):
            place = item.partition, item.seq
            for one in self._life.live(self.name):
                self.handed[one.id].add(place)
            self.ids.setdefault(item.event_id, place)

    def had(self, place: Place) -> bool:
        """On any of its connections."""
        return any(place in some for some in self.handed.values())

    def wants(self, record: Record, *, guarded: bool) -> bool:
        """What `left` tells counts, too."""
        if record.op not in ("insert", "update"):
            return True
        return any(
            self._wants(raw, guarded=guarded) for raw in (record.document, record.earlier) if raw
        )

    def _wants(self, raw: bytes, *, guarded: bool) -> bool:
        document = msgspec.json.decode(raw)
        return self.asked.wanted(document) and (not guarded or self.sight.sees(document))

    def leave(self) -> None:
        self.has_left = True
        self._life.world.end(self.process)


def resuming(inside: Subscriber) -> str:
    return ",".join(f"{number}:{seq + 1}" for number, seq in sorted(inside.positions.items()))


class Working:
    """One consumer of the group, which acknowledges most of what it is handed."""

    def __init__(self, life: Life, name: str) -> None:
        self._life = life
        self.name = name
        self.acknowledged: set[Place] = set()
        self.handed: set[Place] = set()
        self.told: list[Resync] = []
        self._chance = random.Random(f"{name} {life.seed}")
        self.has_left = False
        self.process = life.world.client(name, self._live)

    async def _live(self) -> None:
        token = said_by(self.name, "consume") if self._life.guarded else None
        while True:
            with suppress(HeadgateError):
                async with self._life.world.cluster.consumer(
                    self._life.world.urls_of(self.name),
                    TOPIC,
                    GROUP,
                    keys_expected=8,
                    acks="manual",
                    max_deliveries=2,
                    token=token,
                ) as inside:
                    async for item in inside:
                        await self._work(inside, item)
            await asyncio.sleep(1.0)

    async def _work(self, inside: Consumer, item: Any) -> None:
        if isinstance(item, Event | Left):
            place = item.partition, item.seq
            self.handed.add(place)
            if self._chance.random() < 0.2:
                await inside.nack(item, 0.1)
                return
            self.acknowledged.add(place)
        elif isinstance(item, Resync):
            self.told.append(item)
        await inside.acknowledge(item)

    def leave(self) -> None:
        self.has_left = True
        self._life.world.end(self.process)


def said_by(name: str, *grants: str) -> str:
    """A token that counts for as long as any life lasts."""
    claims = {"sub": name, "grants": [*grants], "exp": BEGINS_MS / 1_000 + 1e6}
    return JWT + msgspec.json.encode(claims).hex()


class Life:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = chance = random.Random(f"explained {seed}")
        self.guarded = chance.random() < 0.4
        self.forgets = chance.random() < 0.2
        """Does nobody remember for long? Else only who was killed has forgotten."""
        self.short_windows = chance.random() < 0.3
        """What lanes remember goes with the window, where each has a process of its own."""
        self.world = World(seed, self._config())
        self.world.has(coordinators=1, ingest=1, gateways=2, routers=chance.choice((1, 2)))
        self.partitions = chance.choice(COUNTS)
        self.listeners: list[Listening] = []
        self.workers: list[Working] = []
        self.records: dict[Place, Record] = {}
        """All that were ever in the log."""
        self.damaged: set[Place] = set()
        self.skipped: set[Place] = set()
        """What an operator went past without a word."""
        self.ever_dead: set[Place] = set()
        self.refused: set[Place] = set()
        """What a gateway said it has no subscriber for."""
        self.ever_damaged: set[Place] = set()
        self.was_reset = False
        self.has_died = False
        """Has anybody who would have remembered?"""
        self.has_forgotten_all = False
        """Did the coordinator lose what it keeps?"""
        self.answering: dict[str, Any] = {}
        self.failures: list[str] = []
        self.answers: defaultdict[str, int] = defaultdict(int)
        """How often each status was said."""
        self._names = 0
        self._written: dict[str, NewEvent] = {}
        """By their ids: the same one may be in several partitions."""

    def _config(self) -> Config:
        chance = self.chance
        evidence = {"size": chance.choice((0, 20))} if self.forgets else {}
        return Config.model_validate(
            {
                "evidence": evidence,
                "routing": {
                    "mode": chance.choice(("direct", "direct", "consistent_hash", "broadcast")),
                    "batch": {"max_size": chance.choice((1, 10, 100))},
                },
                "gateway": {
                    "subscriber_queue": chance.choice((5, 1_000)),
                    "when_slow": {"low": "drop_oldest"},
                },
                "router": {
                    "window": 10.0 if self.short_windows else 600.0,
                    "lane_report_timeout": 1.5,
                    "flush_every": 1.0,
                    "buffer_timeout": 2.0,
                },
                "coordinator": {
                    "timeout": 4.0,
                    "grace": 0.5,
                    "check_in": 0.5,
                    "adoption_timeout": 3.0,
                    "rebalance": 2.0,
                    "learn_for": 4.0,
                    "subscribe_timeout": 4.0,
                },
                "consumers": {"shard_size": 4},
                "security": SECURITY if self.guarded else {},
                "reliability": {
                    "checkpoint": {"interval": 0.3},
                    "circuit_breaker": {"timeout": 2.0},
                    "shutdown": {"flush_timeout": 2.0, "checkpoint_timeout": 1.0},
                },
            }
        )

    # --- time ------------------------------------------------------------------------------------

    def pass_(self, seconds: float, done: Callable[[], bool] = lambda: False) -> None:
        world = self.world
        until_s = world.scheduler.now_s + seconds
        while world.scheduler.now_s < until_s and not done():
            world.scheduler.run(until_s=min(until_s, world.scheduler.now_s + 1.0), done=done)
            for name in [*world.ended]:
                del world.ended[name]
                world.roles[name].start()
        self._look()

    def _look(self) -> None:
        """At what only lasts for a while."""
        for ref, stored in self.world.cluster.log.partitions.items():
            if ref.topic == TOPIC:
                for record in stored.records:
                    self.records.setdefault((ref.partition, record.seq), record)
        for letter in self.letters():
            if letter.state == "dead":
                self.ever_dead.add((letter.delivery.partition, letter.delivery.seq))

    def records_now(self) -> int:
        self._look()
        return len(self.records)

    def asked(self, work: Coroutine[Any, Any, Any], within_s: float = 20.0) -> Any:
        """What came of it: a value, or the error; None where nothing did in that time."""
        came: list[Any] = []

        async def asks() -> None:
            try:
                came.append(await work)
            except HeadgateError as error:
                came.append(error)

        process = self.world.client("operator", asks)
        self.pass_(within_s, done=lambda: bool(came))
        if not came:
            self.world.end(process)
        return came[0] if came else None

    def letters(self) -> list[Letter]:
        return [*self.world.cluster.letters.letters.values()]

    def url(self) -> str:
        alive = [
            url
            for url, role in zip(self.world.urls, self.world.of("gateway"), strict=True)
            if role.is_ready
        ]
        return self.chance.choice(alive or self.world.urls)

    def http(self, token: str | None = None) -> HttpClient:
        if token is None:
            return self.world.cluster.http(self.url())
        return HttpClient(
            self.url(), open_calls=self.world.cluster.web.open_calls, credentials=credentials(token)
        )

    def call(self, method: str, path: str, body: object = None) -> Any:
        async def calls() -> bytes:
            async with self.world.cluster.http(self.url()) as client:
                raw = None if body is None else msgspec.json.encode(body)
                return await client.call(method, path, raw, timeout_s=15.0)

        return self.asked(calls())

    def live(self, name: str) -> list[LiveSubscription]:
        """What is at a gateway now of the listener of that name."""
        nodes = [role.node for role in self.world.of("gateway") if role.is_ready]
        return [
            one
            for node in nodes
            if isinstance(node, Gateway)
            for one in node._subscriptions
            if one.name == name and one.closing is None
        ]

    # --- its beginning and its end ---------------------------------------------------------------

    def begin(self) -> None:
        for role in self.world.roles.values():
            role.start()
        for _ in range(10):
            made = self.asked(
                self.world.cluster.create_topic(self.world.urls[0], TOPIC, self.partitions)
            )
            if isinstance(made, TopicInfo) or "already" in str(made):
                break
            self.pass_(1.0)
        for _ in range(self.chance.choice((1, 2))):
            self.listener_comes()
        if self.chance.random() < 0.5:
            self.worker_comes()
        self.pass_(SOON_S)

    def step(self) -> str:
        [name] = self.chance.choices([*WEIGHTS], [*WEIGHTS.values()])
        getattr(self, name)()
        self.world.say(name)
        self.pass_(self.chance.choice((0.05, 0.5, SOON_S, SOON_S)))
        return name

    def calm_down(self) -> None:
        """Everything is mended, and whatever can still happen does."""
        world = self.world
        world.network.mend_all()
        for name in [*self.answering]:
            self._answers_again(name)
        for role in world.roles.values():
            role.revive()
        self.pass_(10.0)
        self.mend_partitions()
        self.pass_(CALM_S, done=self._is_calm)
        self.pass_(4 * SOON_S)

    def mend_partitions(self) -> None:
        """An operator goes on behind what nobody can read."""
        for partition, seq in sorted(self.damaged):
            self.call(
                "POST",
                f"/v1/topics/{TOPIC}/partitions/{partition}/reset",
                {"to": seq + 1, "resync": True},
            )
            self.pass_(5.0)

    def _is_calm(self) -> bool:
        return not any(one.state == "parked" for one in self.letters())

    # --- what happens ----------------------------------------------------------------------------

    def listener_comes(self) -> None:
        chance = self.chance
        self._names += 1
        self.listeners.append(
            Listening(
                self,
                f"listener-{self._names}",
                chance.choice(FILTERS),
                chance.choice(SIGHTS),
                start=chance.choice(("now", "now", "earliest")),
                acks=chance.choice(("auto", "manual")),
                priority=chance.choice(("normal", "high", "low")),
            )
        )

    def listener_leaves(self) -> None:
        there = [one for one in self.listeners if not one.has_left]
        if len(there) > 1:
            self.chance.choice(there).leave()

    def worker_comes(self) -> None:
        if not self.workers:
            self._names += 1
            self.workers.append(Working(self, f"worker-{self._names}"))

    def produced(self) -> None:
        documents = [
            OutgoingEvent(
                {"number": self.chance.randrange(40), "kind": self.chance.choice("abc")},
                key=self.chance.choice(KEYS),
            )
            for _ in range(self.chance.choice((1, 3, 8)))
        ]
        token = said_by("producer", "produce") if self.guarded else None

        async def sends() -> None:
            options = ProducerOptions(deadline_s=5.0)
            async with self.world.cluster.producer(self.url(), options, token=token) as producer:
                await producer.send_many(TOPIC, documents)

        self.asked(sends())

    def written(self) -> None:
        """As a connector does: with the state before the change, or an event that is there
        already."""
        chance = self.chance
        refs = [ref for ref in self.world.cluster.log.partitions if ref.topic == TOPIC]
        stored = self.world.cluster.log.partitions[chance.choice(sorted(refs))]
        if stored.state.sealed or not stored.state.epoch:
            return
        event_id = f"w-{chance.randrange(6)}"
        if event_id in stored.find([event_id]):
            return
        self._append(stored.ref, self._written.setdefault(event_id, self._change(event_id)))

    def _change(self, event_id: str) -> NewEvent:
        chance = self.chance
        before, after = (
            msgspec.json.encode({"number": chance.randrange(40), "kind": chance.choice("abc")})
            for _ in range(2)
        )
        match chance.choice(("insert", "update", "update", "drop")):
            case "drop":
                return NewEvent(event_id, b"null", op="drop", collection="ships")
            case "update":
                key = chance.choice(KEYS)
                return NewEvent(event_id, after, key=key, op="update", earlier=before)
            case _:
                return NewEvent(event_id, after, key=chance.choice(KEYS))

    def _append(self, ref: PartitionRef, event: NewEvent) -> None:
        log = self.world.cluster.log
        stored = log.partitions[ref]
        now_ms = BEGINS_MS + round(self.world.scheduler.now_s * 1_000)
        asked = AppendRequest([event], version=stored.state.version, now_ms=now_ms)

        async def appends() -> None:
            stored.append(asked, mine=stored.state.epoch)
            log.grown(ref)

        self.asked(appends())

    def damages(self) -> None:
        """A record that nobody has read yet, or that all have."""
        refs = [
            ref
            for ref, one in self.world.cluster.log.partitions.items()
            if ref.topic == TOPIC and one.records
        ]
        if not refs or self.damaged:
            return
        stored = self.world.cluster.log.partitions[self.chance.choice(sorted(refs))]
        self._look()
        at = self.chance.randrange(len(stored.records))
        record = stored.records[at]
        stored.records[at] = msgspec.structs.replace(record, document=b'{"never":"appended"}')
        self.damaged.add((stored.ref.partition, record.seq))
        self.ever_damaged.add((stored.ref.partition, record.seq))

    def retained(self) -> None:
        """Retention takes the oldest of what is settled."""
        for ref, stored in sorted(self.world.cluster.log.partitions.items()):
            settled = self.world.cluster.positions.get(ref)
            if ref.topic == TOPIC and settled is not None and stored.records:
                up_to = min(settled.settled, stored.records[len(stored.records) // 2].seq)
                self._look()
                stored.records = [one for one in stored.records if one.seq > up_to]
                self.damaged = {
                    one for one in self.damaged if one[0] != ref.partition or one[1] > up_to
                }

    def role_killed(self) -> None:
        role = self.chance.choice([*self.world.roles.values()])
        if role.is_alive:
            self.has_died = True
            role.kill(quietly=self.chance.random() < 0.3)
            away_s = self.chance.choice((0.0, 1.0, 6.0))
            self.world.watcher.call_later(away_s, role.start)
            self.world.say(f"{role.name} is away for {away_s} s")

    def coordinator_forgets(self) -> None:
        """It comes back without anything it knew."""
        [role] = self.world.of("coordinator")
        role.kill()
        self.has_died = self.has_forgotten_all = True
        self.world.cluster.coordination.content = msgspec.json.encode(StoredState())
        role.start()

    def lane_killed(self) -> None:
        lanes = self.world.cluster.lanes
        if lanes.living:
            self.has_died = True
            lanes.kill(self.chance.choice(lanes.living))

    def gateway_unreached(self) -> None:
        """For long enough that letters are parked."""
        name = self.chance.choice(self.world.of("gateway")).name
        network = self.world.network
        ways = [
            way
            for one in sorted({one.process.name for one in self.world.cluster.lanes.living})
            for way in ((one, name), (name, one))
        ]
        for way in ways:
            network.cut(*way)

        def mended() -> None:
            for way in ways:
                network.mend(*way)

        self.world.watcher.call_later(self.chance.choice((3.0, 8.0)), mended)

    def gateway_refuses(self) -> None:
        """Every record, for a while."""
        name = self.chance.choice(self.world.of("gateway")).name
        url, listening = f"memory://{name}", self.world.cluster.deliveries.listening
        if name in self.answering or url not in listening:
            return
        verdict = self.chance.choice(REFUSALS)

        async def refuses(batch: DeliveryBatch) -> DeliveryAnswer:
            if verdict == "no_subscriber":
                self.refused |= {(one.partition, one.seq) for one in batch.deliveries}
            return DeliveryAnswer((verdict,) * len(batch.deliveries))

        listener = listening[url]
        self.answering[name] = listener, refuses
        listening[url] = refuses
        self.world.watcher.call_later(2.0, lambda: self._answers_again(name))

    def _answers_again(self, name: str) -> None:
        url, listening = f"memory://{name}", self.world.cluster.deliveries.listening
        before, instead = self.answering.pop(name, (None, None))
        if before is not None and listening.get(url) is instead:
            listening[url] = before

    def partition_reset(self) -> None:
        number = self.chance.randrange(self.partitions)
        to = self.chance.choice(("earliest", "latest", 2))
        resync = self.chance.random() < 0.5
        self._look()
        before = self.world.cluster.positions.get(PartitionRef(TOPIC, number))
        settled = 0 if before is None else before.settled
        self.was_reset = self.has_died = True  # the lane begins anew
        self.call(
            "POST",
            f"/v1/topics/{TOPIC}/partitions/{number}/reset",
            {"to": to, "resync": resync},
        )
        if not resync:
            self._look()
            self.skipped |= {one for one in self.records if one[0] == number and one[1] > settled}

    def repartitioned(self) -> None:
        to = self.chance.choice([one for one in COUNTS if one != self.partitions])
        done = self.call("POST", f"/v1/topics/{TOPIC}/repartition", {"partitions": to})
        if isinstance(done, bytes):
            self.has_died = True  # so do all
            self.partitions = max(to, self.partitions)

    def letters_retried(self) -> None:
        self.call("POST", "/v1/dead-letters/retry", {"filter": {}})

    def letters_deleted(self) -> None:
        self.call("POST", "/v1/dead-letters/delete", {"filter": {}})

    def group_reset(self) -> None:
        if self.workers:
            to = self.chance.choice(("earliest", "latest"))
            self.was_reset = True
            self.call("POST", f"/v1/groups/{TOPIC}/{GROUP}/reset", {"to": to})


WEIGHTS: Final[dict[str, float]] = {
    "produced": 8,
    "written": 4,
    "listener_comes": 2,
    "listener_leaves": 1,
    "worker_comes": 1,
    "damages": 0.5,
    "retained": 1,
    "role_killed": 2,
    "coordinator_forgets": 0.3,
    "lane_killed": 1,
    "gateway_unreached": 1,
    "gateway_refuses": 1,
    "partition_reset": 1,
    "repartitioned": 1,
    "letters_retried": 1,
    "letters_deleted": 1,
    "group_reset": 0.5,
}
