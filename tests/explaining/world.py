"""A whole cluster in one process in which a test brings about one situation after the other, and
knows the truth: what every subscriber was really handed.

Gateways answer lanes as the test wants (`answering`); the log loses what the test takes from it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

from headgate.adapters.log.appending import AppendRequest
from headgate.client.consumer import Consumer
from headgate.client.producer import Producer
from headgate.client.producing.outgoing import OutgoingEvent
from headgate.client.subscriber import Subscriber
from headgate.config import Config
from headgate.errors import NotNow
from headgate.model.api import ResetAnswer, ResetPartition, ResetTo
from headgate.model.client_messages import Event, Left
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch, Verdict
from headgate.model.event import Event as NewEvent
from headgate.model.event import Op, PartitionRef
from headgate.model.explain_api import DryRun, ExplainedSubscription, Explanation
from headgate.model.groups_api import GroupReset, ResetGroup
from headgate.model.letters_api import LettersChanged, LetterSelection
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.tasks import Crew
from tests.sim.cluster import MemoryCluster, running
from tests.virtual_time import run_virtual

TOPIC = "flights"
SOON_S = 2.0
"""Of virtual time, in which everything that can happen happens."""
Answer = Callable[[DeliveryBatch], Coroutine[Any, Any, DeliveryAnswer]]
Place = tuple[int, int]


class ExplainWorld:
    def __init__(self, cluster: MemoryCluster, crew: Crew) -> None:
        self.cluster = cluster
        self.url = cluster.gateways[0].url
        self.handed: defaultdict[str, list[Place]] = defaultdict(list)
        """By the name of each subscription what its connection was handed, `left` included."""
        self.subscribers: dict[str, Subscriber | Consumer] = {}
        self.producer: Producer
        self.crew = crew
        self.ids: dict[str, str] = {}

    # --- who listens -----------------------------------------------------------------------------

    async def subscribe(
        self,
        name: str = "s",
        where: str | None = None,
        *,
        reads: bool = True,
        gateway: int = 0,
        **options: Any,
    ) -> str:
        """Returns the id of the subscription; one that doesn't read takes nothing."""
        options.setdefault("acks", "manual")  # so that nobody says how far they are
        if not reads:
            options["buffer"] = 1
        url = self.cluster.gateways[gateway].url
        priority, start = options.pop("priority", "normal"), options.pop("start", "now")
        subscriber = self.cluster.subscriber(url, "", **options)
        subscriber.add(TOPIC, where=where, priority=priority, start=start, id=name)
        await subscriber.__aenter__()
        self.subscribers[name] = subscriber
        if reads:
            self.crew.start("reading", self._read(name, subscriber))
        found = self._live(name)
        assert found is not None, "it is subscribed"
        self.ids[name] = found.id
        return found.id

    async def _read(self, name: str, subscriber: Subscriber) -> None:
        async for item in subscriber:
            if isinstance(item, Event | Left):
                self.handed[name].append((item.partition, item.seq))

    async def join(self, group: str = "g", *, acks: Any = "manual", **options: Any) -> Consumer:
        consumer = self.cluster.consumer(self.url, TOPIC, group, acks=acks, **options)
        await consumer.__aenter__()
        self.subscribers[group] = consumer
        await asyncio.sleep(15.0)  # until it has its targets
        return consumer

    async def leave(self, name: str) -> None:
        await self.subscribers.pop(name).__aexit__(None, None, None)
        await asyncio.sleep(SOON_S)

    def _live(self, name: str) -> LiveSubscription | None:
        found = [
            one
            for gateway in self.cluster.gateways
            for one in gateway._subscriptions
            if one.name == name and one.closing is None
        ]
        return found[0] if found else None

    # --- what is in the log ----------------------------------------------------------------------

    async def produce(self, key: str = "a", *, id_: str | None = None, **document: Any) -> str:
        """Returns the place of the record."""
        event = OutgoingEvent(document, key=key or None, event_id=id_)
        [receipt] = await self.producer.send_many(TOPIC, [event])
        assert not isinstance(receipt, Exception), receipt
        await asyncio.sleep(SOON_S)
        return f"{TOPIC}:{receipt.partition}:{receipt.seq}"

    async def written(
        self, op: Op, partition: int = 0, *, damaged: bool = False, **fields: Any
    ) -> str:
        """As a connector writes it; `damaged` before anybody has read it."""
        stored = self.cluster.log.partitions[PartitionRef(TOPIC, partition)]
        seq = stored.state.head + 1
        event = NewEvent(f"c-{seq}", fields.pop("document", b"null"), op=op, **fields)
        asked = AppendRequest([event], version=stored.state.version, now_ms=self.now_ms())
        stored.append(asked, mine=stored.state.epoch)
        if damaged:
            self.damage(f"{TOPIC}:{partition}:{seq}")
        self.cluster.log.grown(stored.ref)
        await asyncio.sleep(SOON_S)
        return f"{TOPIC}:{partition}:{seq}"

    async def appended(self, event_id: str, partition: int, **document: Any) -> str:
        """The same event may be in the log twice: a producer's retry met another partition."""
        stored = self.cluster.log.partitions[PartitionRef(TOPIC, partition)]
        event = NewEvent(event_id, msgspec.json.encode(document), key="a")
        asked = AppendRequest([event], version=stored.state.version, now_ms=self.now_ms())
        stored.append(asked, mine=stored.state.epoch)
        self.cluster.log.grown(stored.ref)
        await asyncio.sleep(SOON_S)
        return f"{TOPIC}:{partition}:{stored.state.head}"

    def now_ms(self) -> int:
        return self.cluster.machine().wall_ms()

    def lose(self, place: str, *, retained: bool = False) -> None:
        """The record, or with it everything before it, is gone."""
        _, partition, seq = place.split(":")
        stored = self.cluster.log.partitions[PartitionRef(TOPIC, int(partition))]
        stored.records = [
            one
            for one in stored.records
            if (one.seq > int(seq) if retained else one.seq != int(seq))
        ]

    def damage(self, place: str) -> None:
        _, partition, seq = place.split(":")
        stored = self.cluster.log.partitions[PartitionRef(TOPIC, int(partition))]
        stored.records = [
            replace(one, document=b'{"never": "appended"}') if one.seq == int(seq) else one
            for one in stored.records
        ]

    # --- operators -------------------------------------------------------------------------------

    async def letters_are(
        self, what: Literal["retried", "deleted"], place: str, *, wait: str | None = None
    ) -> None:
        """All of the record's."""
        ids = [one.id for one in (await self.explain(place)).letters]
        path = f"/v1/dead-letters/{'retry' if what == 'retried' else 'delete'}"
        async with self.cluster.http(self.url) as client:
            await client.post(path, LetterSelection(ids=ids, wait=wait), LettersChanged)
        await asyncio.sleep(SOON_S)

    async def reset(self, partition: int, to: ResetTo, *, resync: bool = False) -> None:
        path = f"/v1/topics/{TOPIC}/partitions/{partition}/reset"
        async with self.cluster.http(self.url) as client:
            await client.post(path, ResetPartition(to, resync), ResetAnswer)
        await asyncio.sleep(20.0)  # until a lane reads it again

    async def reset_group(self, to: str, group: str = "g") -> None:
        async with self.cluster.http(self.url) as client:
            await client.post(f"/v1/groups/{TOPIC}/{group}/reset", ResetGroup(to), GroupReset)
        await asyncio.sleep(SOON_S)

    # --- gateways --------------------------------------------------------------------------------

    @asynccontextmanager
    async def answering(self, answer: Answer, gateway: str = "gateway-1") -> AsyncIterator[None]:
        """Lanes hear this instead of the gateway."""
        listening, url = self.cluster.deliveries.listening, f"memory://{gateway}"
        before, listening[url] = listening[url], answer
        try:
            yield
        finally:
            listening[url] = before

    # --- whoever asks ----------------------------------------------------------------------------

    async def explain(self, record: str, **given: Any) -> Explanation:
        query = urlencode({"record": record, **given})
        async with self.cluster.http(self.url) as client:
            return await client.get(f"/v1/explain?{query}", Explanation)

    async def dry_run(self, body: DryRun) -> Explanation:
        async with self.cluster.http(self.url) as client:
            return await client.post("/v1/explain", body, Explanation)

    async def told(self, record: str, name: str = "s") -> ExplainedSubscription:
        """What is said of one subscription; compared with what it was really handed."""
        answer = await self.explain(record, subscription=self.ids[name])
        [one] = answer.subscriptions
        _, partition, seq = record.split(":")
        was_handed = (int(partition), int(seq)) in self.handed[name]
        if name in self.subscribers:
            says_so = one.status in ("delivered", "processed")
            assert says_so == was_handed, f"{one.status}: {one.why}, but {self.handed[name]}"
        return one


async def hangs(_batch: DeliveryBatch) -> DeliveryAnswer:
    await asyncio.Event().wait()
    raise AssertionError("never")


async def is_away(_batch: DeliveryBatch) -> DeliveryAnswer:
    raise NotNow("nothing answers")


def always(verdict: Verdict) -> Answer:
    async def answer(batch: DeliveryBatch) -> DeliveryAnswer:
        return DeliveryAnswer((verdict,) * len(batch.deliveries))

    return answer


@asynccontextmanager
async def world(
    config: Config | None = None,
    *,
    partitions: int = 2,
    placement: Any = "keyed",
    gateways: int = 1,
    routers: int = 1,
) -> AsyncIterator[ExplainWorld]:
    crew = Crew("explaining")
    async with running(1, config, ingest=1, gateways=gateways, routers=routers) as cluster:
        made = ExplainWorld(cluster, crew)
        await cluster.create_topic(made.url, TOPIC, partitions, placement)
        async with cluster.producer(made.url) as made.producer:
            try:
                yield made
            finally:
                await crew.close()
                for one in made.subscribers.values():
                    await one.__aexit__(None, None, None)


def played(
    bring_about: Callable[[ExplainWorld], Coroutine[Any, Any, None]],
    config: Config | None = None,
    **kinds: Any,
) -> None:
    """In a world of its own, on virtual time."""

    async def play() -> None:
        async with world(config, **kinds) as made, asyncio.timeout(3_600):
            await bring_about(made)

    run_virtual(play())
