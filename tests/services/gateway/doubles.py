"""Stand-ins for what a gateway needs: a coordinator, and the lanes.

Lanes keep their promise: they deliver in order, at least once, with the filters they have adopted.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import msgspec

from headgate.adapters.memory.control import MemoryControlSession
from headgate.adapters.transports import Transports
from headgate.decide.connectors.whole_collection import concerned
from headgate.decide.delivery.gaps import is_marker, marked, notice
from headgate.decide.filter.plan import compile_filter
from headgate.decide.filter.record_fields import with_record_fields
from headgate.decide.groups.targets import belongs
from headgate.model.control.from_coordinator import AdoptionFloor, PushTopology, Registered, Welcome
from headgate.model.control.to_coordinator import Hello, Register, ToCoordinator, Unregister
from headgate.model.delivery import Delivery, DeliveryAnswer, DeliveryBatch
from headgate.model.event import WHOLE_COLLECTION, PartitionRef, Record
from headgate.model.subscription import Subscription
from headgate.model.topology import Node, Owner, Topic, Topology
from headgate.ports.control import HelloSource
from tests.written_log import TOPIC, WrittenLog


@dataclass
class FakeCoordinator:
    """Registers what it is told; adopts at once unless `adopting` is off."""

    coordinator_id: str = "coordinator-1"
    lease_ms: int = 30_000
    adopting: bool = True
    refusing: str | None = None
    revision: int = 100
    registry: dict[str, Subscription] = field(default_factory=dict)
    received: list[ToCoordinator] = field(default_factory=list)
    session: MemoryControlSession | None = None
    hellos: list[Hello] = field(default_factory=list)
    topology: Topology = field(default_factory=lambda: Topology(generation=0))
    connect_at_once: bool = True
    remembers: bool = True
    """Whether it still has what a gateway that comes back had told it."""

    def open_session(self, hello: HelloSource) -> MemoryControlSession:
        self.session = MemoryControlSession(hello, self._on_message)
        if self.connect_at_once:
            self.connect()
        return self.session

    def connect(self) -> None:
        assert self.session is not None
        resumed = bool(self.hellos) and self.remembers
        self.hellos.append(self.session.connect())
        self.session.push(Welcome(self.coordinator_id, self.lease_ms, 1_000, resumed))
        if self.topology.generation:
            self.session.push(PushTopology(self.topology))

    def disconnect(self) -> None:
        assert self.session is not None
        self.session.cut()

    def publish(self, topology: Topology) -> None:
        self.topology = topology
        if self.session is not None:
            self.session.push(PushTopology(topology))

    def adopt(self) -> None:
        assert self.session is not None
        self.session.push(AdoptionFloor(self.revision))

    def _on_message(self, message: ToCoordinator) -> None:
        assert self.session is not None
        self.received.append(message)
        if isinstance(message, Register):
            self.revision += 1
            news = [one for one in message.subscriptions if one.id not in self.registry]
            refused = {one.id: self.refusing for one in news if self.refusing}
            for one in message.subscriptions:
                if one.id not in refused:
                    self.registry[one.id] = one
            self.session.push(
                Registered(
                    message.request_id,
                    self.revision,
                    {name: reason for name, reason in refused.items() if reason},
                )
            )
            if self.adopting:
                self.adopt()
        elif isinstance(message, Unregister):
            for name in message.ids:
                self.registry.pop(name, None)

    def of_kind(self, kind: type[ToCoordinator]) -> list[ToCoordinator]:
        return [message for message in self.received if isinstance(message, kind)]


@dataclass
class FakeLanes:
    """Read the log, match with the registry, deliver over HTTP; `cursor` is the seq of the last one
    that was delivered, per partition."""

    log: WrittenLog
    coordinator: FakeCoordinator
    gateway_id: str
    url: str
    transport: Transports = field(default_factory=lambda: Transports("lane"))
    cursor: dict[PartitionRef, int] = field(default_factory=dict)
    epoch: int = 1
    window: int = 1
    attempt: int = 0
    batch_size: int = 50

    async def run(self, *, topic: str = TOPIC) -> list[str]:
        """Deliver everything that is in the log and wasn't delivered; returns the verdicts."""
        verdicts: list[str] = []
        for ref, records in self.log.records.items():
            if ref.topic != topic:
                continue
            fresh = [one for one in records if one.seq > self.cursor.get(ref, 0)]
            self.cursor[ref] = fresh[-1].seq if fresh else self.cursor.get(ref, 0)
            deliveries = [made for record in fresh if (made := self.match(record)) is not None]
            for begin in range(0, len(deliveries), self.batch_size):
                batch = deliveries[begin : begin + self.batch_size]
                verdicts += (await self.deliver(batch)).verdicts
        return verdicts

    def match(self, record: Record) -> Delivery | None:
        if is_marker(record):
            ref = PartitionRef(record.topic, record.partition)
            return notice(marked(record), ref, epoch=self.epoch, time_ms=record.time_ms)
        document = msgspec.json.decode(record.document)
        ids = tuple(
            one.id
            for one in self.coordinator.registry.values()
            if one.topic == record.topic
            and belongs(record, one.shard)
            and self._wants(one, record, document)
        )
        return self.delivery(record, ids) if ids else None

    def _wants(self, one: Subscription, record: Record, document: object) -> bool:
        matches = compile_filter(one.where)
        if record.op in WHOLE_COLLECTION:
            return not matches.excludes(*concerned(record))
        return matches.matches(with_record_fields(document, record.key, record.collection))

    def delivery(self, record: Record, ids: tuple[str, ...], *, since: int = 0) -> Delivery:
        return Delivery(
            record.topic,
            record.partition,
            record.seq,
            record.event_id,
            record.key,
            record.collection,
            record.op,
            msgspec.Raw(record.document),
            ids,
            self.epoch,
            record.time_ms,
            (since,) * len(ids) if since else (),
            headers=msgspec.UNSET if record.headers is None else msgspec.Raw(record.headers),
        )

    async def deliver(self, deliveries: Sequence[Delivery]) -> DeliveryAnswer:
        batch = DeliveryBatch(self.gateway_id, self.window, self.attempt, tuple(deliveries))
        return await self.transport.deliver(self.url, batch, timeout_s=5.0)


def topology(
    generation: int = 1,
    *,
    partitions: int = 2,
    names: Sequence[str] = (TOPIC,),
    deleted: Sequence[str] = (),
    ingest_url: str = "",
    epoch: int = 0,
) -> Topology:
    topics = tuple(Topic(name, partitions) for name in names)
    nodes = (Node("ingest-1", "ingest", ingest_url),) if ingest_url else ()
    sources = tuple(Owner(ref, "router-1", epoch) for topic in topics for ref in topic.refs())
    return Topology(generation, topics, nodes, (), sources if epoch else (), tuple(deleted))


@contextlib.asynccontextmanager
async def closing_transport(lanes: FakeLanes) -> AsyncIterator[FakeLanes]:
    try:
        yield lanes
    finally:
        await lanes.transport.close()
