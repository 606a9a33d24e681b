"""Gateways in this process with the coordinator's real decisions, for consumers of a group.

The log and the positions are in memory; lanes deliver what is in the log to every gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from headgate import errors
from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.server import HttpServer
from headgate.adapters.listeners import ListenerOptions, listener_for
from headgate.adapters.machine import THIS_MACHINE
from headgate.adapters.memory.control import MemoryControlSession
from headgate.adapters.memory.letters import MemoryLetters, MemoryLetterStore
from headgate.adapters.picows.server import PicowsListener
from headgate.answering import HttpApp
from headgate.client.consumer import Consumer
from headgate.decide.coordination.cluster import Cluster
from headgate.decide.coordination.effects import Effect, EndSession, FenceCheckpoints, Persist, Send
from headgate.decide.coordination.members.members import Balance, Timing
from headgate.model.api import Status
from headgate.model.client_messages import Event
from headgate.model.control.to_coordinator import ToCoordinator
from headgate.model.event import PartitionRef
from headgate.model.http import Request, Response, Route, json_response
from headgate.model.stored import StoredState
from headgate.model.subscription import Subscription
from headgate.model.topology import Topic
from headgate.ports.control import HelloSource
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.service import Gateway, GatewayOptions
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.services.gateway.doubles import FakeLanes
from tests.written_log import WrittenLog

WAIT_S = 30.0
PARTITIONS = 3
TIMING = Timing(
    lease_ms=400, check_in_ms=50, rebalance_ms=200, settle_ms=30, handoff_ms=3_000, learn_for_ms=0
)


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class DecidingCoordinator:
    """The real decisions behind sessions in memory. Lanes read nothing here, so that every
    subscription is adopted at once."""

    def __init__(
        self,
        *,
        partitions: int = PARTITIONS,
        timing: Timing = TIMING,
        balance: Balance | None = None,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self.stored = StoredState(boot=1, topics=(Topic("flights", partitions),))
        self.sessions: dict[int, MemoryControlSession] = {}
        self.now_ms = now_ms
        self._timing, self._balance = timing, balance or Balance()
        self._numbers = 0
        self._known: dict[str, Subscription] = {}
        self.begin()

    def begin(self) -> None:
        self.cluster = Cluster(
            self.stored, self._timing, "coordinator-1", self.now_ms(), balance=self._balance
        )

    @property
    def registry(self) -> dict[str, Subscription]:
        """What lanes match with: that of the coordinator before, until this one has all of it."""
        if self.cluster.registry.complete:
            self._known = self.cluster.registry.subscriptions
        return self._known

    def open_session(self, hello: HelloSource) -> MemoryControlSession:
        session = MemoryControlSession(hello, lambda message: self._received(session, message))
        self.connect(session)
        return session

    def connect(self, session: MemoryControlSession) -> None:
        self._numbers += 1
        self.sessions[self._numbers] = session
        self.apply(self.cluster.opened(self._numbers, session.connect(), self.now_ms()))

    def _received(self, session: MemoryControlSession, message: ToCoordinator) -> None:
        number = next((n for n, known in self.sessions.items() if known is session), None)
        if number is not None:
            self.apply(self.cluster.received(number, message, self.now_ms()))

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self.stored = effect.state
            elif isinstance(effect, Send) and effect.session in self.sessions:
                self.sessions[effect.session].push(effect.message)
            elif isinstance(effect, EndSession) and effect.session in self.sessions:
                self.sessions.pop(effect.session).cut()
            elif isinstance(effect, FenceCheckpoints):
                self.apply(self.cluster.fenced(effect.owners))

    def restart(self) -> None:
        """Another coordinator goes on from the store; everybody connects to it."""
        self.stored = msgspec.structs.replace(self.stored, boot=self.stored.boot + 1)
        self.begin()
        former, self.sessions = list(self.sessions.values()), {}
        for session in former:
            self.connect(session)

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            for number, session in list(self.sessions.items()):
                if session.closed:
                    del self.sessions[number]
                    self.apply(self.cluster.closed(number, self.now_ms()))
                elif session.connected and (member := self.cluster.member_of(number)) is not None:
                    member.seen_ms = self.now_ms()
            self.apply(self.cluster.tick(self.now_ms()))

    def owners(self) -> dict[int, str]:
        owned = self.cluster.groups.targets.owned()
        return {owner.ref.partition: owner.node_id for owner in owned}


@dataclass
class GroupSystem:
    coordinator: DecidingCoordinator
    log: WrittenLog
    checkpoints: FaultyCheckpoints
    url: str
    letters: MemoryLetters = field(default_factory=MemoryLetters)
    gateways: list[Gateway] = field(default_factory=list)
    lanes: list[FakeLanes] = field(default_factory=list)
    stopped: set[str] = field(default_factory=set)
    produced: list[tuple[str, int]] = field(default_factory=list)
    """Key and number, in order."""

    @property
    def ws_url(self) -> str:
        """Of the first gateway that is up."""
        up = (gateway for gateway in self.gateways if gateway.url not in self.stopped)
        return next((gateway.ws_url for gateway in up), "")

    async def add_gateway(self, consumers: ConsumerBounds) -> None:
        node_id = f"gateway-{len(self.gateways) + 1}"
        gateway = Gateway(
            GatewayOptions(
                node_id,
                "1",
                self.url,
                bounds=Bounds(subscribe_timeout_s=WAIT_S, topic_grace_s=0.5),
                consumers=consumers,
                report_every_s=0.05,
                stop_timeout_s=1.0,
            ),
            reader=self.log,
            checkpoints=self.checkpoints,
            open_session=self.coordinator.open_session,
            letters=MemoryLetterStore(self.letters),
            http=HttpServer(),
            calls=PooledCalls(),
            open_listener=partial(listener_for, ListenerOptions(), node_id, incarnation="1"),
            connections=PicowsListener(),
            machine=THIS_MACHINE,
        )
        await gateway.start()
        self.gateways.append(gateway)
        lanes = FakeLanes(self.log, self.coordinator, node_id, gateway.delivery_url)  # type: ignore[arg-type]  # it has a registry, too
        self.lanes.append(lanes)

    async def stop_gateway(self, number: int) -> None:
        gateway = self.gateways[number]
        self.stopped.add(gateway.url)
        await gateway.stop()

    async def produce(self, count: int, *, keys: int = 30) -> None:
        for _ in range(count):
            number = len(self.produced)
            key = f"key-{number % keys}"
            self.produced.append((key, number))
            self.log.append({"n": number}, partition=number % keys % PARTITIONS, key=key)
        await self.deliver()

    async def deliver(self) -> None:
        for gateway, lanes in zip(self.gateways, self.lanes, strict=True):
            if gateway.url not in self.stopped:
                with contextlib.suppress(errors.HeadgateError):
                    await lanes.run()

    async def status(self, _request: Request) -> Response:
        if not self.ws_url:
            raise errors.NotNow("not yet")
        return json_response(Status("0", 1, 1, [], [], [], [], [], 0, self.ws_url))


@contextlib.asynccontextmanager
async def group_system(
    *, gateways: int = 1, consumers: ConsumerBounds | None = None
) -> AsyncIterator[GroupSystem]:
    system = GroupSystem(DecidingCoordinator(), WrittenLog(), FaultyCheckpoints(), "")
    server = HttpServer()
    port = await server.start(HttpApp([Route("GET", "/v1/status", system.status)]), "127.0.0.1", 0)
    system.url = f"http://127.0.0.1:{port}"
    ticking = asyncio.create_task(system.coordinator.tick())
    try:
        for _ in range(gateways):
            await system.add_gateway(consumers or ConsumerBounds(save_s=0.05))
        yield system
    finally:
        for gateway, lanes in zip(system.gateways, system.lanes, strict=True):
            if gateway.url not in system.stopped:
                await gateway.stop()
            await lanes.transport.close()
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        await server.stop(1.0)


@dataclass
class Worker:
    """A consumer that keeps what it processed, in the order of all workers together."""

    system: GroupSystem
    id: str
    processed: list[tuple[str, str, int]]
    """Consumer, key and number; shared by all workers."""
    options: dict[str, Any] = field(default_factory=dict)
    each_s: float = 0.0
    consumer: Consumer = field(init=False)
    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.consumer = Consumer(
            self.system.url,
            "flights",
            "radar",
            consumer=self.id,
            **{"keys_expected": 600, "retry_first_s": 0.02, "retry_max_s": 0.1, **self.options},
        )
        await self.consumer.__aenter__()
        self._task = asyncio.create_task(self._work(), name=f"worker {self.id}")

    async def _work(self) -> None:
        async for message in self.consumer:
            assert isinstance(message, Event)
            if self.each_s:
                await asyncio.sleep(self.each_s)
            assert message.key is not None
            self.processed.append((self.id, message.key, message.document["n"]))

    async def leave(self) -> None:
        assert self._task is not None
        await self.consumer.close()
        await self._task

    async def die(self) -> None:
        """The process ends without a word, in the middle of something."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.consumer._membership.ended()
        if (link := self.consumer._line.link) is not None:
            link.abort()
        await self.consumer.close()

    def lose_connection(self) -> None:
        link = self.consumer._line.link
        assert link is not None
        link.abort()
        self.consumer._line.lost()

    @property
    def failed(self) -> BaseException | None:
        return self._task.exception() if self._task is not None and self._task.done() else None


def position_ref(target: int, partition: int, targets: int = 6) -> PartitionRef:
    return PartitionRef(f"@group/flights/radar/{target}-of-{targets}", partition)
