"""When the coordinator was there, as a node knows it from the answers to its check-ins."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headgate.adapters.control_stream import QUEUE_BOUND, ServerStream
from headgate.adapters.grpc.control import GrpcControlServer, GrpcControlSession
from headgate.adapters.memory.control_network import (
    MemoryControlNetwork,
    MemoryControlServer,
    NetworkControlSession,
)
from headgate.model.control.from_coordinator import AdoptionFloor, CheckedIn, Welcome
from headgate.model.control.to_coordinator import CheckIn, Hello, Unregister
from headgate.ports.control import ControlStream
from headgate.tasks import Helpers
from tests.virtual_time import run_virtual
from tests.waiting import until

LOOPBACK = "127.0.0.1"
HELLO = Hello(role="gateway", node_id="gateway-1", incarnation="a")


class Coordinator:
    """Counts check-ins, and answers everything else."""

    def __init__(self) -> None:
        self.check_ins = 0
        self.streams = 0
        self.stream: ControlStream | None = None

    async def serve(self, stream: ControlStream, _hello: Hello) -> None:
        self.stream, self.streams = stream, self.streams + 1
        stream.send(Welcome("coordinator", lease_ms=60_000, check_in_ms=10_000))
        writing = asyncio.create_task(stream.write_until_hung())
        while (message := await stream.receive()) is not None:
            if isinstance(message, CheckIn):
                self.check_ins += 1
            else:
                stream.send(AdoptionFloor(0))
        stream.hang()
        await writing


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[GrpcControlSession, Coordinator]]:
    coordinator = Coordinator()
    server = GrpcControlServer()
    [port] = await server.start(coordinator.serve, LOOPBACK, [0])
    session = GrpcControlSession(f"{LOOPBACK}:{port}", lambda: HELLO)
    try:
        await until(lambda: session.connected)
        yield session, coordinator
    finally:
        await session.close()
        await server.stop(0)


async def test_an_answer_that_is_read_late_is_true_of_when_it_was_asked_for() -> None:
    """Whoever stood still finds answers that are older than its lease, and nothing else."""
    async with connected() as (session, coordinator):
        never_s = session.heard_s
        await session.send(CheckIn())
        await until(lambda: coordinator.check_ins == 1)
        asked_by_s = asyncio.get_running_loop().time()
        assert coordinator.stream is not None
        coordinator.stream.send(AdoptionFloor(1))
        messages = session.messages()
        while not isinstance(await anext(messages), AdoptionFloor):
            pass
        assert session.heard_s == never_s, "it may have been said long ago"
        coordinator.stream.send(CheckedIn())
        await until(lambda: session.heard_s > never_s)
        assert session.heard_s <= asked_by_s
        coordinator.stream.send(CheckedIn())  # which nobody asked for
        coordinator.stream.send(AdoptionFloor(2))
        await anext(messages)
        assert session.heard_s <= asked_by_s


async def test_who_has_much_to_say_and_to_hear_checks_in_too() -> None:
    async with connected() as (session, coordinator):
        session._check_in_s = 0.05
        async with asyncio.timeout(30):
            while coordinator.check_ins < 2:
                await session.send(Unregister(1, ("s",)))
                await asyncio.sleep(0.005)


def test_a_coordinator_that_says_nothing_for_three_check_ins_is_left() -> None:
    """Also where it still takes what is said, as one that stands still does."""

    async def play() -> None:
        network, streams = MemoryControlNetwork(), [0]

        async def welcomes_only(stream: ControlStream, _hello: Hello) -> None:
            streams[0] += 1
            stream.send(Welcome("coordinator", lease_ms=60_000, check_in_ms=10_000))
            await stream.write_until_hung()

        server = MemoryControlServer(network)
        await server.start(welcomes_only, "coordinator-1", [1])
        session = NetworkControlSession(
            network, "coordinator-1:1", lambda: HELLO, jitter=lambda: 0.5
        )
        await asyncio.sleep(29.0)
        assert session.connected
        assert streams == [1]
        await asyncio.sleep(3.0)
        assert streams == [2]
        await session.close()
        await server.stop(0)

    run_virtual(play())


async def test_who_has_more_to_say_than_is_taken_begins_anew() -> None:
    """What didn't fit is said with everything else on the next stream; nobody says it on this."""
    async with connected() as (session, coordinator):
        for number in range(QUEUE_BOUND):
            assert await session.send(Unregister(number, ()))
        assert not await session.send(Unregister(QUEUE_BOUND, ()))
        assert not session.connected
        async with Helpers() as helpers:
            helpers.start(_heard(session))
            await until(lambda: coordinator.streams == 2 and session.connected)
        assert await session.send(Unregister(0, ()))


async def _heard(session: GrpcControlSession) -> None:
    async for _ in session.messages():
        pass


class Swallowing:
    """A pipe that takes everything, and brings nothing."""

    async def read(self) -> bytes | None:
        return None

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)


async def test_a_stream_is_hung_up_however_much_is_on_its_way() -> None:
    stream = ServerStream(Swallowing())
    for revision in range(QUEUE_BOUND):
        stream.send(AdoptionFloor(revision))
    stream.hang()
    async with asyncio.timeout(30):
        await stream.write_until_hung()
