"""What an ingest node does in the background dies: it is started again, or the node ends, and
/health says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.http1_server import Http1Server
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.adapters.memory.origin import no_origin
from headgate.client.http import HttpClient
from headgate.model.api import Health
from headgate.model.control.reports import IngestReport
from headgate.model.control.to_coordinator import AckTopology
from headgate.model.event import PartitionRef
from headgate.model.position import Position
from headgate.model.topology import Topic
from headgate.services.ingest.node import Ingest, IngestOptions
from tests.services.ingest.doubles import NODE, FaultyLogWriter, ScriptedCoordinator, topology
from tests.waiting import until

FLIGHTS = Topic("flights", 2)


class Stage:
    """A node that serves. Its store of positions makes the `mistakes` that it is given, in turn."""

    def __init__(self, **options: Any) -> None:
        self.mistakes: list[Exception] = []
        self.coordinator = ScriptedCoordinator()
        self.writer = FaultyLogWriter()
        self.node = Ingest(
            IngestOptions(NODE, "start-1", report_every_s=0.02, stop_timeout_s=5.0, **options),
            writer=self.writer,
            reader=MemoryLogReader(self.writer.stored),
            open_session=self.coordinator.open,
            settled=self._settled,
            http=Http1Server(),
            calls=PooledCalls(),
            open_origin=no_origin,
            machine=ScriptedMachine(begins_ms=0),
        )
        self.client: HttpClient

    async def _settled(self) -> dict[PartitionRef, Position]:
        if self.mistakes:
            raise self.mistakes.pop()
        return {}

    async def health(self) -> Health:
        return await self.client.get("/health", Health)

    async def metrics(self) -> str:
        return (await self.client.call("GET", "/metrics")).decode()

    def reports(self) -> int:
        return sum(isinstance(message, IngestReport) for message in self.coordinator.sent)


@asynccontextmanager
async def staged(**options: Any) -> AsyncIterator[Stage]:
    stage = Stage(**options)
    async with HttpClient(await stage.node.start()) as stage.client:
        try:
            yield stage
        finally:
            await stage.node.stop()


async def test_reports_that_died_go_on_and_it_is_said() -> None:
    async with staged() as stage:
        await until(stage.reports)
        assert (await stage.health()).status == "healthy"
        stage.mistakes = [RuntimeError("a mistake")]
        await until(lambda: not stage.mistakes)
        before = stage.reports()
        await until(lambda: stage.reports() > before + 1)
        health = await stage.health()
        assert health.status == "degraded"
        assert any(
            "ingest report died" in reason and "a mistake" in reason for reason in health.reasons
        )
        assert 'headgate_task_deaths_total{task="ingest report"} 1.0' in await stage.metrics()


async def test_retention_that_died_goes_on() -> None:
    async with staged(retain_every_s=0.02) as stage:
        for ref in FLIGHTS.refs():
            stage.writer.retain_failures[ref] = RuntimeError("a mistake")
        stage.coordinator.push(topology(1, FLIGHTS))
        await stage.coordinator.heard(AckTopology(1))
        await until(lambda: stage.writer.retained)
        stage.writer.retain_failures.clear()
        await until(lambda: {ref for ref, *_ in stage.writer.retained} == set(FLIGHTS.refs()))
        assert any("ingest retention died" in reason for reason in (await stage.health()).reasons)


async def test_a_node_that_can_not_listen_any_more_ends() -> None:
    """What the coordinator said is lost with it, so only a new start is safe."""
    async with staged() as stage:
        stage.writer.open_failures[FLIGHTS.refs()[0]] = RuntimeError("a mistake")
        stage.coordinator.push(topology(1, FLIGHTS))
        with pytest.raises(RuntimeError, match="a mistake"):
            await asyncio.wait_for(stage.node.failed(), 30)
        assert any(
            "ingest control died" in reason and "this process ends" in reason
            for reason in (await stage.health()).reasons
        )


async def test_a_node_whose_session_ends_by_itself_ends_too() -> None:
    async with staged() as stage:
        await stage.coordinator.session.close()
        with pytest.raises(Exception, match="ingest control returned"):
            await asyncio.wait_for(stage.node.failed(), 30)
