"""A router without Spark: one process of the join benchmark.

It plays a router's part towards the coordinator and opens one window after the other, each with one
lane. The lane is the real one with its real ports: it reads the log, delivers to the gateway, saves
positions and lets go of partitions exactly as it does in a Spark task. What is missing is Spark's
own time between two windows.

It notes when a lane was asked to let go of a partition, and when one first read it: the pause of a
partition that moves lies between the two. The clock is the machine's monotonic one, the same in
every process.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from headgate.adapters.embedded.checkpoints import EmbeddedCheckpointStore
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.letters.store import EmbeddedLetterStore
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.grpc.control import GrpcControlSession
from headgate.adapters.http.delivery import HttpDeliveryTransport
from headgate.adapters.machine import THIS_MACHINE
from headgate.bench.rebalance.orders import serve_orders
from headgate.decide.lane.window_shares import plan_lanes
from headgate.lane.run import Lane, LanePorts
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import RouterReport
from headgate.model.event import PartitionRef, Record
from headgate.model.lanes import LaneSettings, LaneSpec
from headgate.model.topology import Owner
from headgate.tasks import Crew
from headgate.telemetry import configure_logging


class Join(msgspec.Struct, tag=True):
    """Connect as `node_id`; answered with `Done` at once."""

    node_id: str
    coordinator: str
    data: str
    settings: LaneSettings


class Serve(msgspec.Struct, tag=True):
    """Answered with `Done` when lanes have read this many partitions, at the time of the last."""

    partitions: int
    timeout_s: float


class Tell(msgspec.Struct, tag=True):
    """Answered with `Told`."""


class Done(msgspec.Struct):
    at_s: float


class Told(msgspec.Struct):
    """By partition: when a lane here was asked to let go of it, and when one first read it."""

    let_go_s: dict[int, float]
    first_read_s: dict[int, float]


class Notes:
    def __init__(self) -> None:
        self.let_go_s: dict[int, float] = {}
        self.first_read_s: dict[int, float] = {}
        self._more = asyncio.Condition()

    async def reads(self, partition: int) -> None:
        if partition not in self.first_read_s:
            self.first_read_s[partition] = time.monotonic()
            async with self._more:
                self._more.notify_all()

    async def until_read(self, count: int, timeout_s: float) -> float:
        async with asyncio.timeout(timeout_s), self._more:
            await self._more.wait_for(lambda: len(self.first_read_s) >= count)
        return sorted(self.first_read_s.values())[count - 1] if count else time.monotonic()


class _NotingReader(EmbeddedLogReader):
    def __init__(self, folder: DataFolder, notes: Notes) -> None:
        super().__init__(folder)
        self._notes = notes

    async def read(self, ref: PartitionRef, *, after_seq: int, limit: int) -> list[Record]:
        await self._notes.reads(ref.partition)
        return await super().read(ref, after_seq=after_seq, limit=limit)


class _NotingSession(GrpcControlSession):
    notes: Notes

    async def messages(self) -> AsyncIterator[from_coordinator.FromCoordinator]:
        async for message in super().messages():
            if isinstance(message, from_coordinator.LetGo) and message.settle:
                for owner in message.owners:
                    self.notes.let_go_s.setdefault(owner.ref.partition, time.monotonic())
            yield message


class LightRouter:
    def __init__(self, order: Join, notes: Notes) -> None:
        self._order = order
        self._notes = notes
        self._incarnation = uuid.uuid4().hex
        self._folder = DataFolder(Path(order.data))
        self._transport = HttpDeliveryTransport(f"lanes-{os.getpid()}")
        self._assignment: from_coordinator.Assign | None = None
        self._runnable = asyncio.Event()
        self._window = 0
        self._session = GrpcControlSession(order.coordinator, self._hello)
        self._crew = Crew("bench")
        self._crew.need("control", self._listen())
        self._crew.need("windows", self._windows())

    async def stop(self) -> None:
        """Without a goodbye: its partitions need no other owner any more."""
        await self._crew.close()

    def _hello(self) -> to_coordinator.Hello:
        assignment = self._assignment
        return to_coordinator.Hello(
            role="router",
            node_id=self._order.node_id,
            incarnation=self._incarnation,
            pid=os.getpid(),
            assignment=assignment.number if assignment else 0,
            owns=assignment.sources if assignment else (),
        )

    async def _listen(self) -> None:
        async for message in self._session.messages():
            match message:
                case from_coordinator.Welcome():
                    await self._report()
                case from_coordinator.Assign(sources=sources):
                    self._assignment = message
                    if sources:
                        self._runnable.set()
                    else:
                        self._runnable.clear()
                case from_coordinator.PushTopology(topology):
                    await self._session.send(to_coordinator.AckTopology(topology.generation))
                case _:
                    pass

    async def _report(self) -> None:
        await self._session.send(RouterReport("ready", self._window, 0.0))

    async def _windows(self) -> None:
        """The next window opens when every lane of the former one has given its tally."""
        while True:
            await self._runnable.wait()
            assert self._assignment is not None
            self._window += 1
            await self._report()
            lanes = [
                self._open(lane, owns, self._assignment.number)
                for lane, owns in enumerate(plan_lanes(self._assignment.sources, slots=1))
            ]
            await asyncio.gather(*(lane.tally() for lane in lanes))

    def _open(self, number: int, owns: tuple[Owner, ...], assignment: int) -> Lane:
        order = self._order
        spec = LaneSpec(
            router_id=order.node_id,
            incarnation=self._incarnation,
            lane=number,
            window=self._window,
            attempt=0,
            assignment=assignment,
            owns=owns,
            coordinator=order.coordinator,
            data=order.data,
            settings=order.settings,
        )
        reader = _NotingReader(self._folder, self._notes)
        checkpoints = EmbeddedCheckpointStore(self._folder)
        letters = EmbeddedLetterStore(self._folder)

        def connect(hello: Callable[[], to_coordinator.Hello]) -> GrpcControlSession:
            session = _NotingSession(order.coordinator, hello)
            session.notes = self._notes
            return session

        async def live() -> None:
            try:
                await lane.run()
            finally:
                await reader.close()
                await checkpoints.close()
                await letters.close()

        lane = Lane(
            spec, LanePorts(reader, checkpoints, letters, self._transport, connect, THIS_MACHINE)
        )
        self._crew.start("lane", live(), about=str(number))
        return lane


async def run() -> None:
    configure_logging("error", role="router", node_id="bench")
    notes = Notes()
    routers: list[LightRouter] = []

    async def answer(order: Join | Serve | Tell) -> msgspec.Struct:
        match order:
            case Join():
                at_s = time.monotonic()
                routers.append(LightRouter(order, notes))
                return Done(at_s)
            case Serve(partitions, timeout_s):
                return Done(await notes.until_read(partitions, timeout_s))
            case Tell():
                return Told(notes.let_go_s, notes.first_read_s)

    await serve_orders(Join | Serve | Tell, answer)
    for router in routers:
        await router.stop()


if __name__ == "__main__":
    asyncio.run(run())
