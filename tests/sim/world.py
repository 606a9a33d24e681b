"""A whole cluster of simulated processes: each role and each client on an event loop of its own.

Roles are the classes that ship (cluster.py); a `Role` is one node over all its lives: it is killed
and started again under the same name, with or without its notes, as a supervisor would.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

from headgate.adapters.memory.connections import MemoryConnections
from headgate.adapters.memory.control_network import MemoryControlServer
from headgate.adapters.memory.election import MemoryElection, MemoryLeases
from headgate.adapters.memory.log_writer import MemoryLogWriter
from headgate.adapters.memory.machine import BEGINS_MS, ScriptedMachine
from headgate.adapters.memory.notes import MemoryRouterNotes
from headgate.client.http import HttpClient
from headgate.config import Config
from headgate.decide.links.passes import Called
from headgate.model.lanes import LaneSpec
from headgate.model.letters import Letter
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.coordination import CoordinationStore
from headgate.ports.election import Election, Leadership
from headgate.ports.letters import LetterStore
from headgate.ports.log import LogReader, LogWriter
from headgate.ports.machine import Machine
from headgate.ports.notes import LaneNotes
from headgate.services.gateway.service import GatewayOptions
from headgate.services.principals import KnownPrincipals
from tests.sim.cluster import MemoryCluster
from tests.sim.identities import Identities, known_principals, of_operators
from tests.sim.lanes import LaneProcesses, RemoteLane
from tests.sim.network import Network
from tests.sim.notes import Notebook
from tests.sim.observed import (
    ObservedControlServer,
    ObservedCoordinationStore,
    ObservedGateways,
    ObservedLetters,
    ObservedLog,
    ObservedPositions,
)
from tests.sim.oracle import Oracle
from tests.sim.phases import Phases
from tests.sim.scheduler import Process, Scheduler
from tests.sim.stores import Moody, MoodyWriter, Weather

AGAIN_S = 1.0
"""Between the end of a role and its next start."""
ELECTION_TTL_S = 5.0
PING_S = 3.0
"""Of subscribers and consumers; they take more than twice of that for the end."""
HELD_BYTES = (1_000, 8_000, 256 * 1024)
"""Of what a client doesn't read, what waits on the way to it."""
PREFETCH = (3, 100)
"""What a consumer has in hand of each of its targets, at most."""
SKEW_MS = 2_000
"""Of wall clocks, either way."""


class Node(Protocol):
    async def start(self) -> object: ...
    async def failed(self) -> None: ...
    async def stop(self) -> None: ...


class SimulatedCluster(MemoryCluster):
    """What the processes share: the network, and the stores, which nobody kills."""

    def __init__(self, world: World, config: Config) -> None:
        seed, scheduler = world.seed, world.scheduler
        super().__init__(seed, config)
        self._observed = world.oracle, world.meets
        self._phases = world.phases
        self.log = ObservedLog(*self._observed)
        self.letters = ObservedLetters(*self._observed)
        self.deliveries = ObservedGateways(*self._observed)
        held_bytes = random.Random(f"held {seed}").choice(HELD_BYTES)
        self.connections = MemoryConnections(ping_s=PING_S, held_bytes=held_bytes)
        self._scheduler = scheduler
        self._prefetch = random.Random(f"prefetch {seed}").choice(PREFETCH)
        self._skews = random.Random(f"skews {seed}")
        self.leases = MemoryLeases(ELECTION_TTL_S, lambda: scheduler.now_s)
        self._notebooks: dict[str, Notebook] = {}
        self.lanes = LaneProcesses(world, lambda spec: self.build_lane(self.machine(), spec))
        self.machines: dict[str, tuple[ScriptedMachine, int]] = {}
        """By the name of the last process that has it, with when its wall clock began."""
        self.weather = {
            name: Weather(name, random.Random(f"{name} {seed}"))
            for name in ("log", "appends", "positions", "letters")
        }
        state = Weather("state", random.Random(f"state {seed}"), scheduler.process("state"))
        self.weather["state"] = state

    def _reached(self) -> dict[str, Any]:
        return {**super()._reached(), "silence_s": 2.5 * PING_S}

    def machine(self) -> ScriptedMachine:
        loop = asyncio.get_running_loop()
        now_ms = BEGINS_MS + round(self._scheduler.now_s * 1_000)
        skewed_ms = now_ms + self._skews.randint(-SKEW_MS, SKEW_MS)
        begins_ms = skewed_ms - round(loop.time() * 1_000)
        machine = ScriptedMachine(next(self._seeds), clock=loop.time, begins_ms=begins_ms)
        self.machines[cast("Process", loop).name] = machine, begins_ms
        return machine

    def jump(self, name: str, by_ms: int) -> None:
        """Let the wall clock of a process be off by so much, from now on."""
        machine, begins_ms = self.machines[name]
        machine.begins_ms = begins_ms + by_ms

    def principals(self, machine: Machine, role: Called) -> KnownPrincipals | None:
        return known_principals(self.config, machine, role)

    def http(self, url: str) -> HttpClient:
        """As an operator asks."""
        said = of_operators() if self.config.security.is_on else None
        return HttpClient(url, open_calls=self.web.open_calls, credentials=said)

    def new_election(self) -> Election:
        return MemoryElection(self.leases)

    def control_server(self) -> MemoryControlServer:
        return ObservedControlServer(self.control, self._observed[0])

    def gateway_options(self) -> GatewayOptions:
        options = super().gateway_options()
        return replace(options, consumers=replace(options.consumers, prefetch=self._prefetch))

    def reader(self) -> LogReader:
        return cast("LogReader", Moody(super().reader(), self.weather["log"]))

    def writer(self) -> LogWriter:
        return cast("LogWriter", MoodyWriter(MemoryLogWriter(self.log), self.weather["appends"]))

    def open_lane(
        self, machine: Machine, spec: LaneSpec
    ) -> tuple[RemoteLane, Callable[[], Awaitable[None]]]:
        return self.lanes.open(spec)

    def lane_notes(self, spec: LaneSpec) -> LaneNotes:
        book = self._notebooks.setdefault(spec.router_id, Notebook(self._scheduler))
        return book.page()

    def checkpoints(self) -> CheckpointStore:
        store = ObservedPositions(self.positions, *self._observed)
        return cast("CheckpointStore", Moody(store, self.weather["positions"]))

    def letter_store(self) -> LetterStore:
        return cast("LetterStore", Moody(super().letter_store(), self.weather["letters"]))

    def coordination_store(self, leadership: Leadership) -> CoordinationStore:
        store = ObservedCoordinationStore(
            self.coordination, leadership.revision, self._phases, *self._observed
        )
        return cast("CoordinationStore", Moody(store, self.weather["state"]))


class Role:
    """One node of the cluster, over all its lives."""

    def __init__(self, world: World, name: str, build: Callable[[], Node]) -> None:
        self.name = name
        self.is_ready = False
        self.ended_by = ""
        self.process: Process | None = None
        self._world = world
        self._build = build
        self.node: Node | None = None
        self._is_stopping = self.is_buried = False

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.state != "killed"

    @property
    def is_running(self) -> bool:
        """Is it there, and does it go on?"""
        return self.is_ready and self.process is not None and self.process.state == "running"

    def start(self) -> None:
        if self.is_alive or self.is_buried:
            return
        if self.process is not None:
            self._world.withdraw(self.process)
        self.process = process = self._world.scheduler.process(self.name)
        self.is_ready = self._is_stopping = False
        process.start(self._live(process))

    def start_again(self) -> None:
        """Whether or not it has ended by now."""
        if self.is_alive and not self.is_ready:
            self.kill()
        self.start()

    def revive(self) -> None:
        if self.process is not None:
            self.process.thaw()
        self.start()

    async def _live(self, process: Process) -> None:
        try:
            node = self.node = self._build()
            await node.start()
            self.is_ready = True
            await node.failed()
            self.ended_by = "it ended"
        except Exception as error:  # noqa: BLE001 - a supervisor starts it again
            self.ended_by = repr(error)
        if self._is_stopping:
            return
        self._world.say(f"{self.name} ended by itself: {self.ended_by}")
        self._world.ended[self.name] = self.ended_by
        self._world.end(process)

    def bury(self, *, quietly: bool) -> None:
        """It is killed, and never comes back."""
        self.is_buried = True
        self.kill(quietly=quietly)

    def kill(self, *, quietly: bool = False) -> None:
        """`quietly`: its machine is gone, too, and nobody is told. None is killed that alone may
        remember what no coordinator does."""
        spared = self.kind != "coordinator" and self._world.phases.is_forgotten
        if self.process is not None and not spared:
            self.is_ready = False
            self._world.oracle.nodes_died |= self.kind == "ingest"
            self._world.end(self.process, quietly=quietly)

    def stop(self) -> None:
        """As an operator does: it ends by itself when it has settled what it can."""
        process, node = self.process, self.node
        if process is None or node is None or not self.is_ready:
            return

        async def stopping() -> None:
            await node.stop()
            self._world.end(process)

        self.is_ready, self._is_stopping = False, True
        process.start(stopping())


class World:
    """Everything of one run. `say` tells its story."""

    def __init__(self, seed: int, config: Config | None = None) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.network = Network(self.scheduler, random.Random(f"network {seed}"))
        self.met: Counter[str] = Counter()
        self.oracle = Oracle(self.meets)
        self.phases = Phases()
        self.cluster = SimulatedCluster(self, config or Config())
        self.identities = Identities(self, is_on=self.cluster.config.security.is_on)
        self.oracle.dead = self._dead_letters
        self.roles: dict[str, Role] = {}
        self.ended: dict[str, str] = {}
        """Roles that ended by themselves, and why, until they are started again."""
        self.story: list[str] = []
        self.watcher = self.scheduler.process("watcher")
        """Where things happen at their time; nobody cuts it off."""

    def say(self, what: str) -> None:
        self.story.append(f"{self.scheduler.now_s:10.3f} {what}")

    def meets(self, situation: str) -> None:
        """Which of them are meant is in situations.py."""
        self.met[situation] += 1

    def live_for(self, seconds: float, done: Callable[[], bool] = lambda: False) -> None:
        """Or until it is `done`, or something is wrong. Whatever ended by itself meanwhile is
        started again, as a supervisor does."""
        scheduler, violations = self.scheduler, self.oracle.violations
        until_s = scheduler.now_s + seconds
        while scheduler.now_s < until_s and not violations and not done():
            step_s = min(until_s, scheduler.now_s + AGAIN_S)
            scheduler.run(until_s=step_s, done=lambda: bool(violations) or done())
            for name in [*self.ended]:
                del self.ended[name]
                self.roles[name].start()

    # --- roles -----------------------------------------------------------------------------------

    def has(self, *, coordinators: int, ingest: int, gateways: int, routers: int) -> None:
        """Which nodes there are; nobody runs yet."""
        cluster = self.cluster
        cluster.coordinators = tuple(f"coordinator-{n + 1}" for n in range(coordinators))
        for name in cluster.coordinators:
            self._add(name, partial(cluster.coordinator, name))
        for n in range(ingest):
            self._add(f"ingest-{n + 1}", partial(cluster.ingest_node, f"ingest-{n + 1}"))
        for n in range(gateways):
            self._add(f"gateway-{n + 1}", partial(cluster.gateway, f"gateway-{n + 1}"))
        for n in range(routers):
            name = f"router-{n + 1}"
            self._add(name, partial(cluster.router, name, notes=MemoryRouterNotes()))

    def _add(self, name: str, build: Callable[[], Node]) -> None:
        self.roles[name] = Role(self, name, build)

    def of(self, kind: str) -> list[Role]:
        return [role for name, role in self.roles.items() if name.startswith(f"{kind}-")]

    @property
    def leader(self) -> Role | None:
        """Who led last."""
        leader = self.cluster.leases.leader
        return self.roles.get(leader.node_id) if leader is not None else None

    @property
    def urls(self) -> list[str]:
        """Of all gateways, there or not."""
        port = self.cluster.config.public.port
        return [f"http://{role.name}:{port}" for role in self.of("gateway")]

    def urls_of(self, name: str) -> list[str]:
        """The same for that client, beginning with the one that it likes best."""
        first = random.Random(f"urls {name} {self.seed}").randrange(len(self.urls))
        return [*self.urls[first:], *self.urls[:first]]

    def end(self, process: Process, *, quietly: bool = False) -> None:
        """It is killed: at once, and nothing in it hears of that. `quietly`: nor does anybody else
        until its machine is there again."""
        process.kill()
        if not quietly:
            self.withdraw(process)
        self.cluster.lanes.orphaned(process)

    def withdraw(self, process: Process) -> None:
        """What it had open ends for the others, and nobody listens there."""
        cluster = self.cluster
        cluster.web.gone(process)
        cluster.control.gone(process)
        cluster.deliveries.gone(process)
        cluster.connections.gone(process)

    # --- clients ---------------------------------------------------------------------------------

    def client(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Process:
        process = self.scheduler.process(name)

        async def lives() -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - told at the end
                how = "".join(traceback.format_exception(error))
                self.oracle.violated(f"{name} failed: {how}")

        process.start(lives())
        return process

    def _dead_letters(self) -> list[Letter]:
        return [one for one in self.cluster.letters.letters.values() if one.state == "dead"]
