"""What a coordinator does in the background dies of a mistake: it is started again, or the
coordinator ends, and /health says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.adapters.embedded.checkpoints import EmbeddedCheckpointStore
from headgate.adapters.embedded.coordination import EmbeddedCoordinationStore
from headgate.adapters.embedded.election import SoleElection
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.letters.store import EmbeddedLetterStore
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.grpc.control import GrpcControlServer
from headgate.adapters.http.server import HttpServer
from headgate.adapters.machine import THIS_MACHINE
from headgate.client.http import HttpClient
from headgate.decide.coordination.members.members import Timing
from headgate.model.api import Health
from headgate.model.leader import Leader
from headgate.services.coordinator.service import (
    Coordinator,
    CoordinatorPorts,
    CoordinatorSettings,
)
from headgate.tasks import TaskDied
from tests.waiting import until


class Letters(EmbeddedLetterStore):
    """Makes a mistake in its first sweeps."""

    mistakes = 0
    sweeps = 0

    async def sweep(self, *, before_ms: int, limit: int) -> int:
        self.sweeps += 1
        if self.mistakes:
            self.mistakes -= 1
            raise RuntimeError("a mistake")
        return await super().sweep(before_ms=before_ms, limit=limit)


class Election(SoleElection):
    """Stops telling who leads when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()

    async def observe(self) -> AsyncGenerator[Leader | None, None]:
        yield None
        await self.over.wait()


class Stage:
    def __init__(self, folder: DataFolder) -> None:
        self.letters, self.election = Letters(folder), Election()
        self.coordinator = Coordinator(
            CoordinatorSettings("coordinator-1", "127.0.0.1", (0, 0), 0, Timing(), 1),
            CoordinatorPorts(
                self.election,
                lambda _: EmbeddedCoordinationStore(folder),
                EmbeddedCheckpointStore(folder),
                EmbeddedLogReader(folder),
                self.letters,
                HttpServer(),
                GrpcControlServer(),
                THIS_MACHINE,
            ),
        )
        self.client: HttpClient

    async def died(self) -> list[str]:
        """What /health says of it."""
        reasons = (await self.client.get("/health", Health)).reasons
        return [reason for reason in reasons if "died" in reason]


@asynccontextmanager
async def staged(path: Path, *, mistakes: int = 0) -> AsyncIterator[Stage]:
    stage = Stage(DataFolder.open(path / "data"))
    stage.letters.mistakes = mistakes
    try:
        async with HttpClient(await stage.coordinator.start()) as stage.client:
            yield stage
    finally:
        await stage.coordinator.stop(0.5)


async def test_sweeping_that_died_goes_on(tmp_path: Path) -> None:
    async with staged(tmp_path, mistakes=1) as stage:
        await until(lambda: stage.letters.sweeps == 2)
        [reason] = await stage.died()
        assert "coordinator sweeping died" in reason
        assert "a mistake" in reason
        metrics = (await stage.client.call("GET", "/metrics")).decode()
        assert 'headgate_task_deaths_total{task="coordinator sweeping"} 1.0' in metrics


async def test_a_coordinator_that_does_not_hear_who_leads_ends(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        assert await stage.died() == []
        stage.election.over.set()
        with pytest.raises(TaskDied, match="coordinator observing returned"):
            await asyncio.wait_for(stage.coordinator.failed(), 30)
        [reason] = await stage.died()
        assert "so this process ends" in reason


async def test_a_coordinator_that_can_not_campaign_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def campaign(_self: object, _candidate: Leader) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(SoleElection, "campaign", campaign)
    stage = Stage(DataFolder.open(tmp_path / "data"))
    with pytest.raises(RuntimeError, match="a mistake"):
        await stage.coordinator.start()
    await stage.coordinator.stop(0.5)
