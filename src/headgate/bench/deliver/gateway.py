"""The gateway of `bench deliver`, in a process of its own: its listeners, and what decides.

Everything from the wire to the verdict is the gateway's own, with live subscribers; what they are
sent ends in a counter instead of a socket, because writing to sockets is what `bench fanout`
measures. A stand-in for the coordinator adopts their subscriptions at once.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

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
from headgate.decide.feed.recent_ids import RecentIds
from headgate.decide.feed.redelivered import Redelivered
from headgate.decide.links.passes import ClusterTokens, PassKeeper
from headgate.metrics.roles import GatewayMetrics
from headgate.model.access import Grant, Principal
from headgate.model.control.from_coordinator import AdoptionFloor, PushTopology, Registered, Welcome
from headgate.model.control.to_coordinator import Hello, Register, ToCoordinator
from headgate.model.topology import Topic, Topology
from headgate.ports.transport import DeliveryListener
from headgate.services.gateway.control import Control
from headgate.services.gateway.delivery import Deliveries
from headgate.services.gateway.evidence import GatewayEvidence
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.groups.consumers import Consumers
from headgate.services.gateway.hearing import Hearing
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
TOPIC = "flights"
SOMEBODY = Principal("bench", "token", (Grant("subscribe", where="number >= 0"),))
"""Who may see every record of the benchmark, as its grant's filter says."""


class Open(msgspec.Struct, tag=True):
    """Serve these protocols, with so many subscriptions of a topic with so many partitions; and all
    of it once more, for lanes that show a pass of `cluster_token` and for subscribers who have said
    who they are, and whose grant has a filter."""

    protocols: list[str]
    nats: str
    subscriptions: int
    partitions: int
    cluster_token: str


class Opened(msgspec.Struct):
    """The address of each protocol, and the ids of the subscriptions; and the same again."""

    urls: dict[str, str]
    subscriptions: list[str]
    secured_urls: dict[str, str]
    secured_subscriptions: list[str]


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
    """Registers and adopts whatever it is told."""

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


class Receiving:
    def __init__(self, data: Path) -> None:
        control, crew = Control(), Crew("gateway")
        options = EvidenceOptions()
        evidence = GatewayEvidence(
            GATEWAY_ID, size=options.size, age_s=options.age_s, machine=THIS_MACHINE
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
            self._subscriptions, control, MemoryCheckpointStore(), ConsumerBounds()
        )
        telling = Telling(evidence, self._subscriptions, consumers, recent)
        self._hearing = Hearing(control, registering, self._subscriptions, consumers, telling)
        self._coordinator = _Coordinator()
        self._crew = Crew("bench")
        self._listeners: list[DeliveryListener] = []

    async def open(self, order: Open) -> Opened:
        self._crew.need("control", self._hearing.listen(self._coordinator.session))
        topic = Topic(TOPIC, order.partitions, "keyed")
        self._coordinator.welcome(Topology(1, topics=(topic,)))
        keeper = ClusterTokens((order.cluster_token,)).keeper("gateway")
        return Opened(
            await self._listen(order, PassKeeper()),
            await self._subscribe(order.subscriptions, None),
            await self._listen(order, keeper, secured="secured-"),
            await self._subscribe(order.subscriptions, SOMEBODY),
        )

    async def _subscribe(self, count: int, principal: Principal | None) -> list[str]:
        names = []
        for _ in range(count):
            question = SubscribeRequest(TOPIC, principal=principal)
            subscriber = await self._subscriptions.subscribe(question)
            self._subscriptions.begin(subscriber, lambda: None, _Line(subscriber))
            names.append(subscriber.id)
        return names

    async def _listen(
        self, order: Open, keeper: PassKeeper, *, secured: str = ""
    ) -> dict[str, str]:
        urls = {}
        for protocol in order.protocols:
            options = ListenerOptions(protocol=protocol, nats=order.nats, keeper=keeper)
            accept, process = self._deliveries.accept, f"{secured}{protocol}"
            listener = listener_for(options, GATEWAY_ID, accept, incarnation=process)
            urls[protocol] = await listener.start()
            self._listeners.append(listener)
        return urls

    async def close(self) -> None:
        await self._crew.close()
        for listener in self._listeners:
            await listener.stop(0.0)

    def tell(self) -> Told:
        self._deliveries.pass_on()
        return Told(self._subscriptions.totals.sent, time.process_time())


async def run() -> None:
    # Standard output is for answers.
    configure_logging("error", role="gateway", node_id=GATEWAY_ID)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        receiving = Receiving(Path(folder) / "data")

        async def answer(order: Open | Tell) -> msgspec.Struct:
            match order:
                case Open():
                    opened = await receiving.open(order)
                    collect_rarely()
                    return opened
                case Tell():
                    return receiving.tell()

        try:
            await serve_orders(Open | Tell, answer)
        finally:
            await receiving.close()


if __name__ == "__main__":
    uvloop.run(run())
