"""A router goes on with what it noted while nobody tells it what to read. Without a Spark: whoever
asks for the windows is the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from headgate.adapters.embedded.notes import FileRouterNotes
from headgate.client.http import HttpClient
from headgate.model import control
from headgate.model.api import Health
from headgate.model.event import PartitionRef
from headgate.model.notes import RouterMemory
from headgate.model.topology import Owner, Topology
from headgate.ports.control import ControlSession, HelloSource
from headgate.spark import router as module
from headgate.spark.router import NO_WINDOW, NOTHING_NOTED
from headgate.spark.windows import WindowPlan
from headgate.telemetry import LogEvent
from tests.spark.test_router_dying import Stage
from tests.waiting import until

P, Q = PartitionRef("flights", 0), PartitionRef("flights", 1)
NOTED = RouterMemory(7, control.Assign(3, (Owner(P, "router-1", 4),)), Topology(9))


class Forsaken(Stage):
    """What the coordinator does when the router calls is up to the test."""

    def __init__(self, folder: Path, answer: Callable[[Stage], None]) -> None:
        super().__init__(folder)
        self._answer = answer

    def _open(self, hello: HelloSource) -> ControlSession:
        session = self.coordinator.open(hello)
        self._answer(self)
        return session

    async def window(self) -> WindowPlan:
        """The next one; the double's empty one doesn't count."""
        self.router._last_ended_s = 0.0
        request: Any = None
        plan = await self.router._next_window(request)
        return msgspec.json.decode(plan.body, type=WindowPlan)

    async def reasons(self) -> list[str]:
        reasons = (await self.client.get("/health", Health)).reasons
        return [reason for reason in reasons if reason == NOTHING_NOTED or "nobody" in reason]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWAY_S", "ASSIGNMENT_WAIT_S", "WATCH_S"):
        monkeypatch.setattr(module, name, 0.05)


@asynccontextmanager
async def staged(folder: Path, answer: Callable[[Stage], None]) -> AsyncIterator[Forsaken]:
    stage = Forsaken(folder, answer)
    starting = asyncio.ensure_future(stage.router.start())
    try:
        await until(lambda: stage.router.url)
        async with HttpClient(stage.router.url) as stage.client:
            yield stage
            await asyncio.wait_for(starting, 10)
    finally:
        starting.cancel()
        stage.router._running = None
        await stage.router.stop()


def notes(folder: Path) -> FileRouterNotes:
    return FileRouterNotes(folder / "notes")


def is_away(stage: Stage) -> None:
    stage.coordinator.session.cut()


def assigns(*owners: Owner) -> Callable[[Stage], None]:
    return lambda stage: stage.coordinator.say(control.Assign(4, owners))


async def test_it_reads_what_it_did_before_under_the_next_number(tmp_path: Path) -> None:
    notes(tmp_path).remember(NOTED)
    with structlog.testing.capture_logs() as logs:
        async with staged(tmp_path, is_away) as stage:
            await until(lambda: stage.router._assignment)
            plan = await stage.window()
    assert (plan.window, [lane.owns for lane in plan.lanes]) == (8, [NOTED.assignment.sources])
    assert LogEvent.GOES_ON_ALONE in [one["event"] for one in logs]


async def test_it_does_so_too_when_it_was_welcomed_and_left(tmp_path: Path) -> None:
    notes(tmp_path).remember(NOTED)
    async with staged(tmp_path, lambda stage: None) as stage:
        assert (await stage.window()).lanes == ()
        assert notes(tmp_path).recall().assignment == NOTED.assignment, "nobody has said otherwise"
        is_away(stage)
        keeping = asyncio.ensure_future(stage.router.failed())
        await until(lambda: stage.router._assignment)
        keeping.cancel()
        assert [lane.owns for lane in (await stage.window()).lanes] == [NOTED.assignment.sources]


async def test_it_says_that_it_has_noted_nothing(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with staged(tmp_path, is_away) as stage:
            await until(lambda: LogEvent.WAITS_FOR_COORDINATOR in [one["event"] for one in logs])
            assert await stage.reasons() == [NOTHING_NOTED]
            stage.coordinator.connect()
            stage.coordinator.say(control.Assign(1, ()))


async def test_it_is_ready_when_lanes_read_what_is_its_own(tmp_path: Path) -> None:
    async with staged(tmp_path, assigns(Owner(P, "router-1", 1))) as stage:
        await until(lambda: stage.router._assignment)
        assert (await stage.window()).lanes
        assert stage.router._state == "starting"
        stage.coordinator.say(control.AllRead())
        await until(lambda: stage.router._state == "ready")


async def test_it_is_ready_when_nobody_is_there_to_say_so(tmp_path: Path) -> None:
    async with staged(tmp_path, assigns(Owner(P, "router-1", 1))) as stage:
        await until(lambda: stage.router._assignment)
        is_away(stage)
        await until(lambda: stage.router._state == "ready")


async def test_what_it_is_assigned_is_noted_before_a_window_knows_of_it(tmp_path: Path) -> None:
    one, other = Owner(P, "router-1", 1), Owner(Q, "router-1", 2)
    async with staged(tmp_path, assigns(one)) as stage:
        await until(lambda: stage.router._assignment)
        await stage.window()
        stage.coordinator.say(control.Assign(5, (one, other)))
        await until(lambda: notes(tmp_path).recall().assignment.sources == (one, other))
        assert await stage.reasons() == []
        is_away(stage)
        assert await stage.reasons() == [f"nobody reads {Q}: {NO_WINDOW}"]
