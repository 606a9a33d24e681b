"""What a router's driver does in the background dies of a mistake: the driver ends, and /health
says why. Without Spark: its query is played by the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.embedded.notes import FileRouterNotes
from headgate.client.http import HttpClient
from headgate.lane.spec import LaneReceipt, LaneSettings
from headgate.model import control
from headgate.model.api import Health
from headgate.model.event import PartitionRef
from headgate.model.topology import Owner
from headgate.ports.control import ControlSession, HelloSource
from headgate.spark import router as router_module
from headgate.spark.java import Java
from headgate.spark.plans import RouterSettings
from headgate.spark.router import JvmDied, Router
from headgate.tasks import TaskDied
from tests.services.ingest_doubles import ScriptedCoordinator
from tests.waiting import until


class Query:
    """A query whose first window, an empty one, has come back."""

    has_spark = False

    def __init__(self, router: Router) -> None:
        self._router = router

    def start_spark(self) -> None: ...

    def start(self, _plan_url: str) -> None:
        self._router._window_returned([])

    def jvm_is_dead(self) -> bool:
        return False

    def has_failed(self) -> bool:
        return False


class FailingQuery(Query):
    """Fails soon, each time it is started; `windows` has what comes back before, from its end."""

    def __init__(self, router: Router, windows: list[list[LaneReceipt]]) -> None:
        super().__init__(router)
        self.windows = windows

    def start(self, _plan_url: str) -> None:
        self._router._window_returned(self.windows.pop())

    def abandon(self) -> None: ...

    def has_failed(self) -> bool:
        return True

    def error(self) -> str:
        return "a lane died"


class SilentQuery(Query):
    """Its JVM gives no answer before `answers`; its first window is under way, or comes back."""

    def __init__(self, router: Router, *, begins: bool) -> None:
        super().__init__(router)
        self._begins = begins
        self.answers = threading.Event()

    def start(self, plan_url: str) -> None:
        if self._begins:
            super().start(plan_url)

    def has_failed(self) -> bool:
        self.answers.wait(5)
        return True


class Stage:
    owns: tuple[Owner, ...] = ()
    """What it is assigned."""

    def __init__(self, folder: Path) -> None:
        self.coordinator = ScriptedCoordinator()
        settings = RouterSettings(
            node_id="router-1",
            incarnation="a",
            coordinator="nowhere:1",
            master="local[4,4]",
            slots=2,
            driver_memory="1g",
            data=folder,
            scratch=folder / "scratch",
            run_lane="",
            warm_lane="",
            lane=LaneSettings(),
        )
        notes = FileRouterNotes(folder / "notes")
        self.router = Router(settings, Java(folder, 17, "JAVA_HOME"), self._open, notes)
        query: Any = Query(self.router)
        self.router._query = query
        self.client: HttpClient

    def _open(self, hello: HelloSource) -> ControlSession:
        """The coordinator assigns it what it `owns`, at once."""
        session = self.coordinator.open(hello)
        self.coordinator.say(control.Assign(1, self.owns))
        return session

    async def died(self) -> list[str]:
        """What /health says of it."""
        reasons = (await self.client.get("/health", Health)).reasons
        return [reason for reason in reasons if "died" in reason]


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    stage = Stage(folder)
    try:
        await stage.router.start()
        async with HttpClient(stage.router.url) as stage.client:
            yield stage
    finally:
        await stage.router.stop()


async def test_a_router_that_can_not_listen_any_more_ends(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        assert await stage.died() == []
        stage.coordinator.say(control.PushTopology(None))  # type: ignore[arg-type]
        with pytest.raises(AttributeError):
            await asyncio.wait_for(stage.router.failed(), 10)
        [reason] = await stage.died()
        assert reason.startswith("router control died")
        assert "so this process ends" in reason
        metrics = (await stage.client.call("GET", "/metrics")).decode()
        assert 'headgate_task_deaths_total{task="router control"} 1.0' in metrics


async def test_a_router_whose_windows_nobody_can_ask_for_ends(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        plans: Any = stage.router._http._server
        plans.stop()
        with pytest.raises(TaskDied, match="http server returned"):
            await asyncio.wait_for(stage.router.failed(), 10)
        assert len(await stage.died()) == 2  # the server, and the router without it


async def test_a_router_that_is_stopped_has_not_failed(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        watching = asyncio.create_task(stage.router.failed())
        await stage.router.stop()
        await asyncio.wait_for(watching, 10)


async def test_only_failures_without_a_window_in_between_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router that has run for months has met more of them than it takes in a row."""
    monkeypatch.setattr(router_module, "QUERY_RESTARTS_MAX", 2)
    monkeypatch.setattr(router_module, "WATCH_S", 0.01)
    well = LaneReceipt(
        lane=0,
        window=1,
        pid=1,
        reason="time",
        fenced=False,
        read=0,
        matched=0,
        delivered=0,
        started_s=1.0,
        ended_s=2.0,
    )
    async with staged(tmp_path) as stage:
        windows: list[list[LaneReceipt]] = [[], [], [well], []]
        query: Any = FailingQuery(stage.router, windows)
        stage.router._query = query
        with pytest.raises(JvmDied, match="the query failed 3 times in a row"):
            await asyncio.wait_for(stage.router.failed(), 10)
        assert windows == []


@pytest.mark.parametrize("begins", [False, True], ids=["no window", "no lanes"])
async def test_a_router_whose_jvm_gives_no_answer_while_it_starts_does_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    monkeypatch.setattr(router_module, "JVM_TIMEOUT_S", 0.5)
    stage = Stage(tmp_path)
    stage.owns = (Owner(PartitionRef("flights", 0), "router-1", 1),)
    query: Any = SilentQuery(stage.router, begins=begins)
    stage.router._query = query
    starting = asyncio.create_task(stage.router.start())
    try:
        await until(lambda: stage.router.url)
        async with HttpClient(stage.router.url) as client:
            while not starting.done():
                await asyncio.wait_for(client.get("/health", Health), 0.4)
                await asyncio.sleep(0.01)
        with pytest.raises(JvmDied, match="doesn't answer any more"):
            await starting
    finally:
        query.answers.set()
        await stage.router.stop()
