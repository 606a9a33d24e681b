"""A router, its real lanes and the coordinator's real decisions in one process, on virtual time,
without a socket, a thread or Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.adapters.memory.control import MemoryControlSession
from headgate.adapters.memory.http import MemoryHttpCalls, MemoryWeb
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.adapters.memory.notes import MemoryRouterNotes
from headgate.decide.coordination.effects import Effect, FenceCheckpoints
from headgate.decide.coordination.members.members import Timing
from headgate.decide.lane.checkpoints import Reset
from headgate.lane.plain import PlainWindows
from headgate.lane.run import Lane, LanePorts
from headgate.metrics.roles import RouterMetrics
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.event import PartitionRef
from headgate.model.lanes import LaneSettings, LaneSpec
from headgate.model.subscription import Subscription
from headgate.services.router.plans import RouterSettings
from headgate.services.router.service import Router, RouterPorts
from headgate.tasks import Crew
from tests.client.group_system import DecidingCoordinator
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.lane.world import FakeGateways, FaultyLetters
from tests.services.router.stage import Lookout, on_virtual_time, until
from tests.written_log import TOPIC, WrittenLog

PARTITIONS = 3
WINDOW_S = 10.0


def now_ms() -> int:
    return 1_000 + round(asyncio.get_running_loop().time() * 1_000)


class HoldingCoordinator(DecidingCoordinator):
    """Doesn't get to raise fences while `holds_fences`: the store of positions is away."""

    holds_fences = False

    def apply(self, effects: list[Effect]) -> None:
        if self.holds_fences:
            effects = [effect for effect in effects if not isinstance(effect, FenceCheckpoints)]
        super().apply(effects)


class System:
    """One gateway, which wants everything and takes it, and one router with room for two lanes."""

    def __init__(self) -> None:
        self.coordinator = HoldingCoordinator(
            partitions=PARTITIONS, timing=Timing(learn_for_ms=0), now_ms=now_ms
        )
        self.log = WrittenLog()
        self.checkpoints = FaultyCheckpoints()
        self.letters = FaultyLetters()
        self.gateways = FakeGateways()
        self.specs: list[LaneSpec] = []
        self.ended: list[tuple[int, int]] = []
        self.crew = Crew("test")
        self.written = [0] * PARTITIONS
        self.machine = ScriptedMachine(clock=asyncio.get_running_loop().time)

    def router(self) -> Router:
        settings = RouterSettings(
            node_id="router-1",
            incarnation="a",
            coordinator="",
            slots=2,
            data=Path("nowhere"),
            lane=LaneSettings(window_s=WINDOW_S),
        )
        ports = RouterPorts(
            windows=PlainWindows(self._open_lane),
            connect=self.coordinator.open_session,
            notes=MemoryRouterNotes(),
            listener=Lookout(),
            calls=MemoryHttpCalls(MemoryWeb()),
            machine=self.machine,
        )
        return Router(settings, ports, RouterMetrics())

    def _open_lane(self, spec: LaneSpec) -> tuple[Lane, Callable[[], Awaitable[None]]]:
        async def close() -> None:
            self.ended.append((spec.window, spec.lane))

        self.specs.append(spec)
        connect = self.coordinator.open_session
        ports = LanePorts(
            self.log, self.checkpoints, self.letters, self.gateways, connect, self.machine
        )
        return Lane(spec, ports), close

    async def subscribe(self) -> None:
        gateway = to_coordinator.Hello(
            role="gateway", node_id="gateway-1", incarnation="a", url="http://gateway-1"
        )
        session = self.coordinator.open_session(lambda: gateway)
        self.crew.need("gateway", self._acknowledge(session))
        wanted = Subscription("everything", "gateway-1", TOPIC)
        await session.send(to_coordinator.Register(1, (wanted,)))
        await session.send(to_coordinator.RegistrationComplete())

    async def _acknowledge(self, session: MemoryControlSession) -> None:
        async for message in session.messages():
            if isinstance(message, from_coordinator.PushTopology):
                await session.send(to_coordinator.AckTopology(message.topology.generation))

    def write(self, count: int) -> None:
        for number in range(count):
            partition = number % PARTITIONS
            self.log.append({"number": number}, partition=partition)
            self.written[partition] += 1

    def reset(self, ref: PartitionRef) -> None:
        """An operator wants it to be read again from its beginning."""
        coordinator = self.coordinator
        coordinator.apply(coordinator.cluster.reset(ref, Reset(0), coordinator.now_ms()))

    def delivered(self, partition: int) -> list[int]:
        """Without repeats, which a real gateway drops: lanes overlap when windows change."""
        return list(dict.fromkeys(self.gateways.seqs("gateway-1", partition)))

    def is_delivered(self) -> bool:
        return [len(self.delivered(one)) for one in range(PARTITIONS)] == self.written


@asynccontextmanager
async def running() -> AsyncIterator[tuple[System, Router]]:
    system = System()
    system.crew.need("coordinator", system.coordinator.tick())
    await system.subscribe()
    router = system.router()
    await asyncio.wait_for(router.start(), 30)
    keeping = system.crew.start("keeping", router.failed())
    try:
        yield system, router
    finally:
        await router.stop()
        keeping.cancel()
        await system.crew.close()


@on_virtual_time
async def test_events_go_through_windows_that_change_and_none_is_lost_or_out_of_order() -> None:
    async with running() as (system, _):
        for _ in range(50):
            system.write(60)
            await asyncio.sleep(1.0)
        await until(system.is_delivered)
        for partition in range(PARTITIONS):
            last = system.written[partition]
            assert system.delivered(partition) == list(range(1, last + 1))
        windows = sorted({spec.window for spec in system.specs})
        assert windows == [1, 2, 3, 4, 5]
        former = {(spec.window, spec.lane) for spec in system.specs if spec.window < windows[-1]}
        assert set(system.ended) == former, "each was overtaken"


@on_virtual_time
async def test_a_stop_settles_and_saves_what_is_in_flight() -> None:
    async with running() as (system, router):
        system.write(30)
        await asyncio.sleep(0.01)
        await router.stop()
        assert system.is_delivered()
        saved = {ref.partition: one.settled for ref, one in system.checkpoints.stored.items()}
        assert saved == dict(enumerate(system.written))


@on_virtual_time
async def test_a_router_whose_assignment_is_held_back_waits_for_it_with_few_windows() -> None:
    """The store of positions is away, so that nobody is told of the epochs that an operator's reset
    has made; lanes under the former ones are refused as they start."""
    async with running() as (system, _):
        system.write(9)
        await until(system.is_delivered)
        system.coordinator.holds_fences = True
        for partition in range(PARTITIONS):
            system.reset(PartitionRef(TOPIC, partition))
        for _ in range(30):
            await asyncio.sleep(1.0)
            assert len({spec.window for spec in system.specs}) < 25
        assert system.specs[-1].window > 10, "it goes on by itself"
        system.coordinator.holds_fences = False
        system.write(9)
        await until(system.is_delivered, timeout_s=2.0)


def test_the_same_happens_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no thread is started for it."""

    def refuse(self: threading.Thread) -> None:
        raise AssertionError(f"a thread: {self.name}")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    seen: list[list[tuple[float, list[tuple[int, int]]]]] = []

    @on_virtual_time
    async def run() -> None:
        async with running() as (system, _):
            for _ in range(25):
                system.write(7)
                await asyncio.sleep(1.0)
            await until(system.is_delivered)
        seen.append(
            [
                (at_s, [(one.partition, one.seq) for one in batch.deliveries])
                for at_s, batch in system.gateways.batches
            ]
        )

    run()
    run()
    assert seen[0] == seen[1]
