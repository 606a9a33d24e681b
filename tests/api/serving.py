"""Real HTTP servers for tests that aren't asynchronous: each in an event loop of its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.http1_server import Http1Server
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.adapters.memory.origin import no_origin
from headgate.config import Config
from headgate.model.control.to_coordinator import AckTopology
from headgate.model.http import Route
from headgate.model.topology import Topic
from headgate.services.gateway.public.browsing import Browsing
from headgate.services.gateway.public.explaining import Explaining
from headgate.services.gateway.public.routes import PublicRoutes
from headgate.services.gateway.public.settings import PublicSettings
from headgate.services.ingest.node import Ingest, IngestOptions
from headgate.wiring import roles
from tests.services.ingest.doubles import (
    NODE,
    FaultyLogWriter,
    ScriptedCoordinator,
    nothing_settled,
    topology,
)

NEWEST = 2**70
"""A version that nobody can be ahead of: being ahead means waiting for news."""


@contextmanager
def in_thread(serve: Callable[[], AbstractAsyncContextManager[str]]) -> Iterator[str]:
    """What `serve` yields, for as long as the block runs."""
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    address: list[str] = []

    async def work() -> None:
        try:
            async with serve() as url:
                address.append(url)
                ready.set()
                await stop.wait()
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: loop.run_until_complete(work()), daemon=True)
    thread.start()
    assert ready.wait(30)
    assert address, "the server didn't start"
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


def routes_of_ingest() -> list[Route]:
    return _ingest(FaultyLogWriter(), ScriptedCoordinator()).routes()


def routes_of_gateway() -> list[Route]:
    """For their description: what the handlers need isn't there."""
    nothing: Any = None
    return PublicRoutes(
        nothing,
        nothing,
        coordinator_url=nothing,
        ingest_urls=nothing,
        knows=nothing,
        is_unheard=nothing,
        health=nothing,
        metrics=nothing,
        collect=nothing,
        browsing=Browsing(nothing, topology=nothing, machine=nothing),
        settings=PublicSettings(nothing, nothing, nothing, topology=nothing),
        crew=nothing,
        machine=nothing,
        explaining=Explaining(nothing, nothing, topology=nothing, machine=ScriptedMachine()),
        version="",
        keep_alive_s=0.0,
        web_files={},
        demo="",
    ).table()


def _ingest(writer: FaultyLogWriter, coordinator: ScriptedCoordinator) -> Ingest:
    return Ingest(
        IngestOptions(NODE, "start"),
        writer=writer,
        reader=MemoryLogReader(writer.stored),
        open_session=coordinator.open,
        settled=nothing_settled,
        http=Http1Server(),
        calls=PooledCalls(),
        open_origin=no_origin,
        machine=ScriptedMachine(begins_ms=0),
    )


@asynccontextmanager
async def ingest() -> AsyncIterator[str]:
    """An ingest node with a log in memory, and the topics `flights` and `jobs`."""
    coordinator = ScriptedCoordinator()
    node = _ingest(FaultyLogWriter(), coordinator)
    url = await node.start()
    topics = (
        Topic("flights", 4, version=NEWEST),
        Topic("jobs", 4, "opportunistic", version=NEWEST),
    )
    coordinator.push(topology(1, *topics))
    await coordinator.heard(AckTopology(1))
    try:
        yield url
    finally:
        await node.stop()


def public(folder: Path) -> Callable[[], AbstractAsyncContextManager[str]]:
    """A coordinator, an ingest node and a gateway on free ports; no router, so no subscriptions."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        data = DataFolder.open(folder)
        anywhere = {"coordinator": {"http_port": 0, "router_port": 0, "consumer_port": 0}}
        coordinator = roles.build_coordinator(Config.model_validate(anywhere), data)
        http = await coordinator.start()
        control = coordinator.client_address.rpartition(":")[2]
        config = Config.model_validate(
            {
                "coordinator": {"http_port": int(http.rpartition(":")[2])},
                "ingest": {"port": 0, "server_port": int(control)},
                "gateway": {"client_port": 0, "server_port": int(control)},
                "public": {"port": 0, "ws_port": 0},
            }
        )
        node = roles.build_ingest(config, data)
        gateway = roles.build_gateway(config, data)
        await node.start()
        await gateway.start()
        try:
            yield gateway.url
        finally:
            await gateway.stop()
            await node.stop()
            await coordinator.stop()

    return serve
