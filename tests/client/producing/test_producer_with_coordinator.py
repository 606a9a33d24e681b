"""The producer's routing cache against a real coordinator: HTTP for the first one, gRPC then."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.adapters.embedded.checkpoints import EmbeddedCheckpointStore
from headgate.adapters.embedded.coordination import EmbeddedCoordinationStore
from headgate.adapters.embedded.election import SoleElection
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.letters.store import EmbeddedLetterStore
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.grpc.control import GrpcControlServer, GrpcControlSession
from headgate.adapters.http.server import HttpServer
from headgate.adapters.machine import THIS_MACHINE
from headgate.client.producing.route import Route
from headgate.decide.coordination.members.members import Timing
from headgate.decide.produce.routing_cache import Applied
from headgate.model.control.to_coordinator import Hello
from headgate.services.coordinator.service import (
    Coordinator,
    CoordinatorPorts,
    CoordinatorSettings,
)

WAIT_S = 30.0
IN_ANOTHER_THREAD = """
import asyncio, sys, threading
from headgate.client.producing.route import Route

async def follow():
    route = Route(sys.argv[1], follow_after_s=0.0)
    route.begin()
    while not (route._session is not None and route._session.connected):
        await asyncio.sleep(0.01)
    print("it follows", flush=True)
    await route.close()

def work():
    threading.main_thread().join()
    asyncio.run(follow())

threading.Thread(target=work).start()
"""

FORKING = """
import asyncio, os, sys, threading
from headgate.client.producing.route import Route

async def follow():
    route = Route(sys.argv[1], follow_after_s=0.0)
    route.begin()
    while not (route._session is not None and route._session.connected):
        await asyncio.sleep(0.01)
    print(*sorted(set(map(ended, [fork() for _ in range(20)]))), flush=True)
    await route.close()

def fork():
    child = os.fork()
    if not child:
        threading.Event().wait(0.1)
        os._exit(0)
    return child

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

asyncio.run(follow())
"""


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    folder = DataFolder.open(tmp_path / "data")
    coordinator = Coordinator(
        CoordinatorSettings("c", "127.0.0.1", (0, 0), 0, Timing(), 4),
        CoordinatorPorts(
            SoleElection(),
            lambda _: EmbeddedCoordinationStore(folder),
            EmbeddedCheckpointStore(folder),
            EmbeddedLogReader(folder),
            EmbeddedLetterStore(folder),
            HttpServer(),
            GrpcControlServer(),
            THIS_MACHINE,
        ),
    )
    yield await coordinator.start()
    await coordinator.stop()


class WatchedRoute(Route):
    """Says when its cache was replaced."""

    def __init__(self, url: str) -> None:
        super().__init__(url, follow_after_s=0.0)
        self.generations: asyncio.Queue[int] = asyncio.Queue()

    async def _take_up(self, applied: Applied) -> Applied:
        await super()._take_up(applied)
        self.generations.put_nowait(self.cache.generation)
        return applied


async def test_a_change_reaches_the_cache_by_itself(address: str) -> None:
    route = WatchedRoute(address)
    await route.learn("t")
    fetched = await asyncio.wait_for(route.generations.get(), WAIT_S)
    assert fetched > 0
    # The stream opens with a push of what there is; then somebody joins.
    assert await asyncio.wait_for(route.generations.get(), WAIT_S) == fetched
    session = route._session
    assert isinstance(session, GrpcControlSession)
    node = GrpcControlSession(
        session._addresses[0], lambda: Hello(role="ingest", node_id="i", incarnation="1")
    )
    assert await asyncio.wait_for(route.generations.get(), WAIT_S) > fetched
    await node.close()
    await route.close()


async def test_a_producer_follows_also_when_the_main_thread_has_ended(address: str) -> None:
    assert await said_by(IN_ANOTHER_THREAD, address) == b"it follows\n"


async def test_what_is_forked_off_beside_a_stream_lives(address: str) -> None:
    """Of gRPC's own handlers for that, every other one crashed the process."""
    assert await said_by(FORKING, address) == b"0\n"


async def said_by(program: str, address: str) -> bytes:
    """On its standard output, until it ends."""
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, address), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(WAIT_S):
            said, _ = await running.communicate()
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()
    return said
