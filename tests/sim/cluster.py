"""A whole cluster in one process: the classes that ship, on `adapters/memory/`.

No socket, no thread, no Spark, no disk: every role's shell and every client runs on the event loop
of whoever builds the cluster, and reaches the others through what stands for the network and the
stores here. Each has a machine of its own, whose chance comes from the cluster's seed and whose
clock is the loop's, so on virtual time a seed is a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headgate.adapters.embedded.election import SoleElection
from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.adapters.memory.connections import MemoryConnections, MemoryListener
from headgate.adapters.memory.control_network import (
    MemoryControlNetwork,
    MemoryControlServer,
    NetworkControlSession,
)
from headgate.adapters.memory.coordination import MemoryCoordination, MemoryCoordinationStore
from headgate.adapters.memory.delivery import (
    MemoryDeliveryListener,
    MemoryDeliveryTransport,
    MemoryGateways,
)
from headgate.adapters.memory.http import MemoryHttpListener, MemoryWeb
from headgate.adapters.memory.letters import MemoryLetters, MemoryLetterStore
from headgate.adapters.memory.log import MemoryLog
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.log_writer import MemoryLogWriter
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.adapters.memory.notes import MemoryRouterNotes
from headgate.adapters.memory.origin import MemoryHistory, MemoryOrigin
from headgate.client.consumer import Consumer
from headgate.client.credentials import Token, credentials
from headgate.client.http import HttpClient
from headgate.client.producer import Producer
from headgate.client.producing.pending import ProducerOptions
from headgate.client.producing.route import Route
from headgate.client.subscriber import Subscriber
from headgate.config import Config
from headgate.decide.lane.checkpoints import Checkpoint
from headgate.decide.links.passes import Called
from headgate.lane.lives import Living
from headgate.lane.plain import PlainWindows
from headgate.lane.run import Lane, LanePorts
from headgate.metrics.roles import RouterMetrics
from headgate.model.api import CreateTopic, TopicInfo
from headgate.model.connector import Connector
from headgate.model.event import PartitionRef
from headgate.model.lanes import LaneSpec
from headgate.model.topology import Placement
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.control import ControlSession, HelloSource
from headgate.ports.coordination import CoordinationStore
from headgate.ports.election import Election, Leadership
from headgate.ports.letters import LetterStore
from headgate.ports.log import LogReader, LogWriter
from headgate.ports.machine import Machine
from headgate.ports.notes import LaneNotes, NoNotes, RouterNotes
from headgate.ports.origin import Origin
from headgate.services.coordinator.service import Coordinator, CoordinatorPorts
from headgate.services.gateway.service import Gateway, GatewayOptions
from headgate.services.ingest.node import Ingest
from headgate.services.principals import KnownPrincipals
from headgate.services.router.plans import RouterSettings
from headgate.services.router.service import Router, RouterPorts
from headgate.tasks import Crew
from headgate.wiring.roles import (
    coordinator_settings,
    gateway_options,
    ingest_options,
    lane_settings,
)

PORTS = (1, 2)
"""Of the coordinator's control streams: for nodes, and for gateways and clients."""
MACHINES = 1_000_000
"""Processes of one seed, at most."""
START_S = 60.0


class MemoryCluster:
    """What the roles share, and the roles. `config` is what every role is built from."""

    def __init__(self, seed: int = 0, config: Config | None = None) -> None:
        self.config = config or Config()
        self._seeds = iter(range(seed * MACHINES, (seed + 1) * MACHINES))
        self.web = MemoryWeb()
        self.control = MemoryControlNetwork()
        self.connections = MemoryConnections()
        self.deliveries = MemoryGateways()
        self.log = MemoryLog()
        self.history = MemoryHistory()
        """What the database has committed that connectors read."""
        self.positions: dict[PartitionRef, Checkpoint] = {}
        self.letters = MemoryLetters()
        self.coordination = MemoryCoordination()
        self._election = SoleElection()
        self.coordinators: tuple[str, ...] = ("coordinator-1",)
        self.gateways: list[Gateway] = []
        self.leading: Coordinator | None = None
        """The coordinator that serves, while one does."""

    # --- what stands for the network and the stores ----------------------------------------------

    def machine(self) -> ScriptedMachine:
        """For one process."""
        return ScriptedMachine(next(self._seeds), clock=asyncio.get_running_loop().time)

    def new_election(self) -> Election:
        """One candidate's way to it."""
        return self._election

    def reader(self) -> LogReader:
        return MemoryLogReader(self.log)

    def writer(self) -> LogWriter:
        return MemoryLogWriter(self.log)

    def checkpoints(self) -> CheckpointStore:
        return MemoryCheckpointStore(self.positions)

    def letter_store(self) -> LetterStore:
        return MemoryLetterStore(self.letters)

    def coordination_store(self, leadership: Leadership) -> CoordinationStore:
        return MemoryCoordinationStore(self.coordination, leadership.revision)

    def control_server(self) -> MemoryControlServer:
        """Where nodes and clients find one coordinator."""
        return MemoryControlServer(self.control)

    def gateway_options(self) -> GatewayOptions:
        return gateway_options(self.config)

    def _to_coordinator(
        self, machine: Machine, port: int
    ) -> Callable[[HelloSource], ControlSession]:
        address = ",".join(f"{name}:{port}" for name in self.coordinators)
        return lambda hello: self._session(machine, address, hello)

    def _session(self, machine: Machine, address: str, hello: HelloSource) -> ControlSession:
        return NetworkControlSession(self.control, address, hello, jitter=machine.jitter)

    # --- roles -----------------------------------------------------------------------------------

    def principals(self, machine: Machine, role: Called) -> KnownPrincipals | None:
        """Who is let in by `role`; None where nobody has to say who they are."""
        return None

    def coordinator(self, name: str = "coordinator-1") -> Coordinator:
        settings, machine = coordinator_settings(self.config), self.machine()
        alone = len(self.coordinators) == 1
        return Coordinator(
            replace(settings, node_id=name, host=name, ports=PORTS, alone=alone),
            CoordinatorPorts(
                election=self.new_election(),
                open_store=self.coordination_store,
                checkpoints=self.checkpoints(),
                reader=self.reader(),
                letters=self.letter_store(),
                http=MemoryHttpListener(self.web),
                control=self.control_server(),
                machine=machine,
                principals=self.principals(machine, "coordinator"),
            ),
        )

    def ingest_node(self, name: str) -> Ingest:
        machine = self.machine()
        options = ingest_options(self.config)
        return Ingest(
            replace(options, node_id=name, incarnation=machine.token(16), host=name),
            writer=self.writer(),
            reader=self.reader(),
            open_session=self._to_coordinator(machine, PORTS[0]),
            settled=self.checkpoints().list,
            http=MemoryHttpListener(self.web),
            calls=self.web.open_calls(),
            open_origin=self.open_origin,
            machine=machine,
            principals=self.principals(machine, "ingest"),
        )

    def open_origin(self, _connector: Connector) -> Origin:
        return MemoryOrigin(self.history)

    def gateway(self, name: str) -> Gateway:
        machine = self.machine()
        options = self.gateway_options()
        return Gateway(
            replace(options, node_id=name, incarnation=machine.token(16), host=name),
            reader=self.reader(),
            checkpoints=self.checkpoints(),
            letters=self.letter_store() if self.config.routing.dlq.enabled else None,
            open_session=self._to_coordinator(machine, PORTS[1]),
            http=MemoryHttpListener(self.web),
            calls=self.web.open_calls(),
            open_listener=partial(MemoryDeliveryListener, self.deliveries, f"memory://{name}"),
            connections=MemoryListener(self.connections),
            machine=machine,
            principals=self.principals(machine, "gateway"),
        )

    def router(self, name: str, *, slots: int = 2, notes: RouterNotes | None = None) -> Router:
        machine = self.machine()
        settings = RouterSettings(
            node_id=name,
            incarnation=machine.token(16),
            coordinator=f"{self.coordinators[0]}:{PORTS[0]}",
            slots=slots,
            data=Path("nowhere"),
            lane=lane_settings(self.config),
            http=(name, 0),
        )
        ports = RouterPorts(
            windows=PlainWindows(partial(self.open_lane, machine)),
            connect=self._to_coordinator(machine, PORTS[0]),
            notes=notes or MemoryRouterNotes(),
            listener=MemoryHttpListener(self.web),
            calls=self.web.open_calls(),
            machine=machine,
        )
        return Router(settings, ports, RouterMetrics())

    def open_lane(
        self, machine: Machine, spec: LaneSpec
    ) -> tuple[Living, Callable[[], Awaitable[None]]]:
        """For the router on that machine."""
        return self.build_lane(machine, spec)

    def build_lane(
        self, machine: Machine, spec: LaneSpec
    ) -> tuple[Lane, Callable[[], Awaitable[None]]]:
        transport = MemoryDeliveryTransport(self.deliveries)
        ports = LanePorts(
            self.reader(),
            self.checkpoints(),
            self.letter_store(),
            transport,
            self._to_coordinator(machine, PORTS[0]),
            machine,
            notes=self.lane_notes(spec),
        )
        return Lane(spec, ports), transport.close

    def lane_notes(self, spec: LaneSpec) -> LaneNotes:
        """What it leaves to others of its router."""
        return NoNotes()

    # --- clients ---------------------------------------------------------------------------------

    def http(self, url: str) -> HttpClient:
        return HttpClient(url, open_calls=self.web.open_calls)

    def producer(
        self, url: str, options: ProducerOptions | None = None, *, token: Token | None = None
    ) -> Producer:
        machine = self.machine()
        route = Route(
            url,
            open_session=partial(self._session, machine),
            open_calls=self.web.open_calls,
            machine=machine,
            credentials=credentials(token, machine),
        )
        return Producer(url, options, route=route, machine=machine, open_calls=self.web.open_calls)

    def subscriber(self, url: str | Sequence[str], topic: str, **options: Any) -> Subscriber:
        return Subscriber(url, topic, **self._reached(), **options)

    def consumer(
        self, url: str | Sequence[str], topic: str, group: str, **options: Any
    ) -> Consumer:
        return Consumer(url, topic, group, **self._reached(), **options)

    def _reached(self) -> dict[str, Any]:
        return {
            "machine": self.machine(),
            "open_calls": self.web.open_calls,
            "open_link": self.connections.open_link,
        }

    async def start_coordinator(self) -> None:
        """As a new process would start: it knows what is stored."""
        self.leading = self.coordinator()
        await self.leading.start()

    async def stop_coordinator(self) -> None:
        """Does nothing where none serves."""
        leading, self.leading = self.leading, None
        if leading is not None:
            await leading.stop()

    async def create_topic(
        self, url: str, name: str, partitions: int, placement: Placement = "keyed"
    ) -> TopicInfo:
        wanted = CreateTopic(name, partitions, placement)
        async with self.http(url) as client:
            return await client.post("/v1/topics", wanted, TopicInfo)


@asynccontextmanager
async def running(
    seed: int = 0,
    config: Config | None = None,
    *,
    ingest: int = 2,
    gateways: int = 2,
    routers: int = 1,
) -> AsyncIterator[MemoryCluster]:
    """A cluster that serves, with one coordinator and so many of the others; stopped afterwards,
    the routers first, as an operator would."""
    cluster = MemoryCluster(seed, config)
    cluster.gateways = [cluster.gateway(f"gateway-{n + 1}") for n in range(gateways)]
    nodes: list[Ingest | Gateway | Router] = [*cluster.gateways]
    nodes += [cluster.ingest_node(f"ingest-{n + 1}") for n in range(ingest)]
    nodes += [cluster.router(f"router-{n + 1}") for n in range(routers)]
    crew = Crew("cluster")
    try:
        async with asyncio.timeout(START_S):
            await cluster.start_coordinator()
            await asyncio.gather(*(node.start() for node in nodes))
        for node in nodes:
            crew.need(type(node).__name__, node.failed())
        yield cluster
    finally:
        crew.dismiss()
        for node in reversed(nodes):
            await node.stop()
        await cluster.stop_coordinator()
        await crew.close()
