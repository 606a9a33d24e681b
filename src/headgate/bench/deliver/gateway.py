"""The gateway of `bench deliver`, in a process of its own: its listeners, and what decides.

Everything from the wire to the verdict is the gateway's own, with live subscribers; what they are
sent ends in a counter instead of a socket, because writing to sockets is what `bench fanout`
measures. A stand-in for the coordinator adopts their subscriptions at once.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import cast

import msgspec
import uvloop

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.listeners import ListenerOptions, listener_for
from headgate.adapters.machine import THIS_MACHINE
from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.adapters.memory.control import MemoryControlSession
from headgate.adapters.processes import collect_rarely
from headgate.bench.rebalance.orders import serve_orders
from headgate.decide.console.overview import overview_of
from headgate.decide.feed.recent_ids import RecentIds
from headgate.decide.feed.redelivered import Redelivered
from headgate.decide.limits.holdings import Holdings
from headgate.decide.links.passes import ClusterTokens, PassKeeper
from headgate.metrics.roles import GatewayMetrics
from headgate.model.access import Grant, Principal
from headgate.model.api import NodeStatus, Status, TopicInfo, TopicPartition
from headgate.model.control.from_coordinator import AdoptionFloor, PushTopology, Registered, Welcome
from headgate.model.control.to_coordinator import Hello, Register, ToCoordinator
from headgate.model.http import Request, Response, json_response
from headgate.model.topology import Topic, Topology
from headgate.ports.transport import DeliveryListener
from headgate.services.gateway.control import Control
from headgate.services.gateway.delivery import Deliveries
from headgate.services.gateway.entry import Entry
from headgate.services.gateway.evidence import GatewayEvidence
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.groups.consumers import Consumers
from headgate.services.gateway.hearing import Hearing
from headgate.services.gateway.public.leader_calls import LeaderCalls
from headgate.services.gateway.public.watching import Watcher, Watching
from headgate.services.gateway.service import DedupOptions, EvidenceOptions
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.services.gateway.subscriptions.registering import Registering
from headgate.services.gateway.subscriptions.subscriptions import (
    Bounds,
    SubscribeRequest,
    Subscriptions,
)
from headgate.services.gateway.telling import Telling
from headgate.tasks import Crew
from headgate.telemetry import configure_logging

GATEWAY_ID = "gateway-1"
KEPT, SECURED, ALONE = "", "secured-", "alone-"
TOPICS, PARTITIONS = 10, 16
"""Of the system that is looked at."""
TOPIC = "flights"
SOMEBODY = Principal("bench", "token", (Grant("subscribe", where="number >= 0"),))
"""Who may see every record of the benchmark, as its grant's filter says."""


class Open(msgspec.Struct, tag=True):
    """Serve these protocols, with so many subscriptions of a topic with so many partitions; once
    more, for lanes that show a pass of `cluster_token` and for subscribers with a credential whose
    grant has a filter; and by a gateway that keeps no evidence."""

    protocols: list[str]
    nats: str
    subscriptions: int
    partitions: int
    cluster_token: str


class Opened(msgspec.Struct):
    """The address of each protocol, and the ids of the subscriptions; and the same twice more."""

    urls: dict[str, str]
    subscriptions: list[str]
    secured_urls: dict[str, str]
    secured_subscriptions: list[str]
    alone_urls: dict[str, str]
    alone_subscriptions: list[str]


class Watch(msgspec.Struct, tag=True):
    """Have so many browsers look on, which a gateway feeds a look per second each; 0: none."""

    browsers: int


class Tell(msgspec.Struct, tag=True):
    pass


class Told(msgspec.Struct):
    """What subscribers were sent, and what the process has used since its start."""

    sent: int
    cpu_s: float


class _Line:
    """A connection that takes everything: what it costs to write is measured elsewhere."""

    def __init__(self, subscriber: LiveSubscription) -> None:
        self.open_to = subscriber

    def send(self, message: bytes) -> None:
        pass

    def write(self) -> None:
        pass


class _Coordinator:
    """Registers and adopts all that it is told."""

    def __init__(self) -> None:
        hello = Hello(role="gateway", node_id=GATEWAY_ID, incarnation="1")
        self.session = MemoryControlSession(lambda: hello, self._received)
        self._revision = 0

    def welcome(self, topology: Topology) -> None:
        self.session.connect()
        self.session.push(Welcome("coordinator", 30_000, 5_000))
        self.session.push(PushTopology(topology))

    def _received(self, message: ToCoordinator) -> None:
        if isinstance(message, Register):
            self._revision += 1
            self.session.push(Registered(message.request_id, self._revision))
            self.session.push(AdoptionFloor(self._revision))


class _Leader:
    """Answers looks at the system with the overview of one that is as large as most, and isn't the
    same twice in a row. To make it is a coordinator's work, so that is done before."""

    def __init__(self) -> None:
        self._answers = cycle(
            [json_response(overview_of(_as_large_as_most(seen), [])) for seen in (1, 2)]
        )

    async def pass_on(self, _request: Request, _body: bytes) -> Response:
        return next(self._answers)


def _as_large_as_most(seen: int) -> Status:
    topics = [
        TopicInfo(
            f"topic-{number}",
            PARTITIONS,
            "keyed",
            1,
            [TopicPartition(n, seen, seen, 0, 0, "i-1", "r-1", 1) for n in range(PARTITIONS)],
        )
        for number in range(TOPICS)
    ]
    nodes = [NodeStatus(f"node-{number}", "router", "ready") for number in range(TOPICS)]
    return Status("bench", seen, seen, nodes, topics, [], [], [], subscriptions=seen)


class Onlookers:
    """The dashboards that are open; what they are sent ends here."""

    def __init__(self, crew: Crew) -> None:
        leader = cast("LeaderCalls", _Leader())
        self._watching = Watching(leader, crew=crew, machine=THIS_MACHINE)
        self._crew = crew
        self._open: list[tuple[Watcher, asyncio.Task[None]]] = []

    async def set(self, browsers: int) -> None:
        """Those that are open from now on have seen all once."""
        while self._open:
            watcher, reading = self._open.pop()
            reading.cancel()
            await watcher.aclose()
        for _ in range(browsers):
            watcher = Watcher(self._watching, Entry(Holdings(), None), ())
            await anext(watcher)
            self._open.append((watcher, self._crew.start("looking on", self._read(watcher))))

    async def _read(self, watcher: Watcher) -> None:
        async for _ in watcher:
            pass


class Receiving:
    """`evidence_size` is how much evidence it keeps."""

    def __init__(self, data: Path, evidence_size: int = EvidenceOptions().size) -> None:
        control, crew = Control(), Crew("gateway")
        evidence = GatewayEvidence(
            GATEWAY_ID,
            size=evidence_size,
            age_s=EvidenceOptions().age_s,
            machine=THIS_MACHINE,
        )
        registering = Registering(control, crew)
        self._subscriptions = Subscriptions(
            GATEWAY_ID,
            Bounds(),
            control,
            registering,
            crew=crew,
            reader=EmbeddedLogReader(DataFolder.open(data)),
            settled=MemoryCheckpointStore().list,
            metrics=GatewayMetrics(),
            evidence=evidence,
            machine=THIS_MACHINE,
        )
        dedup = DedupOptions()
        recent = RecentIds(capacity=dedup.cache_size, ttl_s=dedup.ttl_s)
        self._deliveries = Deliveries(
            GATEWAY_ID,
            self._subscriptions,
            incarnation="1",
            recent=recent,
            redelivered=Redelivered(capacity=dedup.cache_size, ttl_s=dedup.ttl_s),
            evidence=evidence,
            machine=THIS_MACHINE,
        )
        consumers = Consumers(
            self._subscriptions,
            control,
            MemoryCheckpointStore(),
            ConsumerBounds(),
            machine=THIS_MACHINE,
        )
        telling = Telling(evidence, self._subscriptions, consumers)
        self._hearing = Hearing(control, registering, self._subscriptions, consumers, telling)
        self._coordinator = _Coordinator()
        self._crew = Crew("bench")
        self._listeners: list[DeliveryListener] = []

    def begin(self, order: Open) -> None:
        self._crew.need("control", self._hearing.listen(self._coordinator.session))
        topic = Topic(TOPIC, order.partitions, "keyed")
        self._coordinator.welcome(Topology(1, topics=(topic,)))

    async def open(self, order: Open, side: str) -> tuple[dict[str, str], list[str]]:
        """The addresses at which it takes deliveries, and the subscriptions that it takes them
        for."""
        if side != SECURED:
            urls = await self._listen(order, PassKeeper(), side)
            return urls, await self._subscribe(order.subscriptions, None)
        keeper = ClusterTokens((order.cluster_token,)).keeper("gateway")
        urls = await self._listen(order, keeper, side)
        return urls, await self._subscribe(order.subscriptions, SOMEBODY)

    async def _subscribe(self, count: int, principal: Principal | None) -> list[str]:
        names = []
        for _ in range(count):
            question = SubscribeRequest(TOPIC, principal=principal)
            subscriber = await self._subscriptions.subscribe(question)
            self._subscriptions.begin(subscriber, lambda: None, _Line(subscriber))
            names.append(subscriber.id)
        return names

    async def _listen(self, order: Open, keeper: PassKeeper, side: str) -> dict[str, str]:
        urls = {}
        for protocol in order.protocols:
            options = ListenerOptions(protocol=protocol, nats=order.nats, keeper=keeper)
            accept, process = self._deliveries.accept, f"{side}{protocol}"
            listener = listener_for(options, GATEWAY_ID, accept, incarnation=process)
            urls[protocol] = await listener.start()
            self._listeners.append(listener)
        return urls

    async def close(self) -> None:
        await self._crew.close()
        for listener in self._listeners:
            await listener.stop(0.0)

    def sent(self) -> int:
        self._deliveries.pass_on()
        return self._subscriptions.totals.sent


async def run() -> None:
    # Standard output is for answers.
    configure_logging("error", role="gateway", node_id=GATEWAY_ID)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        receiving = Receiving(Path(folder) / "data")
        alone = Receiving(Path(folder) / "alone", evidence_size=0)

        def told() -> Told:
            return Told(receiving.sent() + alone.sent(), time.process_time())

        async with Crew("onlookers") as crew:
            onlookers = Onlookers(crew)

            async def answer(order: Open | Watch | Tell) -> msgspec.Struct:
                match order:
                    case Open():
                        receiving.begin(order)
                        alone.begin(order)
                        opened = Opened(
                            *await receiving.open(order, KEPT),
                            *await receiving.open(order, SECURED),
                            *await alone.open(order, ALONE),
                        )
                        collect_rarely()
                        return opened
                    case Watch():
                        await onlookers.set(order.browsers)
                        return told()
                    case Tell():
                        return told()

            try:
                await serve_orders(Open | Watch | Tell, answer)
            finally:
                await onlookers.set(0)
                await receiving.close()
                await alone.close()


if __name__ == "__main__":
    uvloop.run(run())
