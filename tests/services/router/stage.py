"""A router with all around it in the test's hands, on virtual time: its lanes, the coordinator, its
notes and whoever asks how it fares. Without a socket, a thread or Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from headgate.adapters.memory.control import MemoryControlSession
from headgate.adapters.memory.http import MemoryHttpCalls, MemoryWeb
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.adapters.memory.notes import MemoryRouterNotes
from headgate.lane.plain import PlainWindows
from headgate.metrics.roles import RouterMetrics
from headgate.model.api import Health
from headgate.model.control import from_coordinator
from headgate.model.control.reports import RouterReport
from headgate.model.event import PartitionRef
from headgate.model.http import Request, Response
from headgate.model.lanes import LaneSettings, LaneSpec, LaneTally
from headgate.model.notes import RouterMemory
from headgate.model.topology import Owner
from headgate.ports.control import HelloSource
from headgate.ports.http import App
from headgate.services.router.plans import RouterSettings
from headgate.services.router.service import Router, RouterPorts
from tests.services.ingest.doubles import ScriptedCoordinator
from tests.virtual_time import run_virtual

P, Q = PartitionRef("flights", 0), PartitionRef("flights", 1)
MINE = Owner(P, "router-1", 1)
WALL_S = 1_800_000_000.0
"""When the clock of these tests begins."""
LANE = LaneSettings(window_s=120.0)
NOTHING = RouterMemory()


def on_virtual_time(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        run_virtual(scenario())

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


def wall_s() -> float:
    return WALL_S + asyncio.get_running_loop().time()


class ScriptedLane:
    """Implements lane.lives.Living; gives its tally, fails and ends when the test says so."""

    def __init__(self, spec: LaneSpec) -> None:
        self.spec = spec
        self.lives = True
        self._tally: asyncio.Future[LaneTally] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.Event()
        self._began_s = wall_s()

    async def run(self) -> None:
        try:
            await self._ending.wait()
        except asyncio.CancelledError:
            self._tally.cancel()
            raise
        finally:
            self.lives = False

    async def tally(self) -> LaneTally:
        return await asyncio.shield(self._tally)

    async def close(self) -> None: ...

    def returns(
        self, reason: str = "time", *, began_late_s: float = 0.0, fenced: bool = False
    ) -> None:
        """Its window is over. It goes on: nobody has taken over yet."""
        self._tally.set_result(
            LaneTally(
                lane=self.spec.lane,
                window=self.spec.window,
                pid=1,
                reason=reason,
                fenced=fenced,
                read=0,
                matched=0,
                delivered=0,
                started_s=self._began_s + began_late_s,
                ended_s=wall_s(),
            )
        )

    def fails(self, reason: str = "a lane died") -> None:
        self._tally.set_exception(RuntimeError(reason))
        self._ending.set()


class Lookout:
    """Implements ports.http.HttpListener; whoever asks is the test."""

    def __init__(self) -> None:
        self._app: App | None = None
        self._stopped = asyncio.Event()

    async def start(self, app: App, host: str, port: int, *, setting: str = "") -> int:
        self._app = app
        return port

    async def failed(self) -> None:
        await self._stopped.wait()

    async def stop(self, timeout_s: float) -> None:
        self._stopped.set()

    async def get(self, path: str) -> bytes:
        async def nothing() -> dict[str, str]:
            return {"type": "http.disconnect"}

        assert self._app is not None
        answer = await self._app.answer(Request("GET", path, receive=nothing))
        assert isinstance(answer, Response)
        return answer.body


class FaultyNotes(MemoryRouterNotes):
    """Writing raises `failing` while that is set, and waits while `gate` is there and not open; a
    window gets no number while `stuck` is set, which is raised instead."""

    def __init__(self, memory: RouterMemory) -> None:
        super().__init__(memory)
        self.failing: Exception | None = None
        self.stuck: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def remember(self, memory: RouterMemory) -> None:
        await self._checked()
        await super().remember(memory)

    async def next_window(self, memory: RouterMemory) -> int:
        await self._checked()
        if self.stuck is not None:
            raise self.stuck
        return await super().next_window(memory)

    async def _checked(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.failing is not None:
            raise self.failing


class Stage:
    """`answer` is what the coordinator does when the router calls."""

    def __init__(
        self, answer: Callable[[Stage], None], noted: RouterMemory, settings: LaneSettings
    ) -> None:
        self.coordinator = ScriptedCoordinator()
        self.lanes: list[ScriptedLane] = []
        self.notes = FaultyNotes(noted)
        self.windows = PlainWindows(self._open_lane)
        self.lookout = Lookout()
        self._answer = answer
        self.router = Router(
            RouterSettings(
                node_id="router-1",
                incarnation="a",
                coordinator="nowhere:1",
                slots=2,
                data=Path("nowhere"),
                lane=settings,
                http=("nowhere", 1),
            ),
            RouterPorts(
                windows=self.windows,
                connect=self._connect,
                notes=self.notes,
                listener=self.lookout,
                calls=MemoryHttpCalls(MemoryWeb()),
                machine=ScriptedMachine(
                    begins_ms=round(WALL_S * 1_000), clock=asyncio.get_running_loop().time
                ),
            ),
            RouterMetrics(),
        )

    def _open_lane(
        self, spec: LaneSpec
    ) -> tuple[ScriptedLane, Callable[[], Coroutine[Any, Any, None]]]:
        self.lanes.append(lane := ScriptedLane(spec))
        return lane, lane.close

    def _connect(self, hello: HelloSource) -> MemoryControlSession:
        session = self.coordinator.open(hello)
        self._answer(self)
        return session

    # --- what the test does ----------------------------------------------------------------------

    def leave(self) -> None:
        """The coordinator goes away."""
        self.coordinator.session.cut()

    async def opened(self, count: int = 1) -> ScriptedLane:
        """Waits until so many lanes were opened in all; returns the last one."""
        await until(lambda: len(self.lanes) >= count)
        return self.lanes[count - 1]

    # --- what the test sees ----------------------------------------------------------------------

    @property
    def said(self) -> list[str]:
        """The states that the router has reported, each with its window; no two alike in a row."""
        reports = [one for one in self.coordinator.sent if isinstance(one, RouterReport)]
        words = [f"{one.state} {one.window}" for one in reports]
        return [word for at, word in enumerate(words) if at == 0 or words[at - 1] != word]

    async def health(self) -> Health:
        return msgspec.json.decode(await self.lookout.get("/health"), type=Health)

    async def reasons(self, *words: str) -> list[str]:
        """What /health says with one of these words."""
        said = (await self.health()).reasons
        return [reason for reason in said if any(word in reason for word in words)]


def is_away(stage: Stage) -> None:
    stage.leave()


def says_nothing(stage: Stage) -> None:
    """It welcomes the router, and that is all."""


def assigns(*owners: Owner) -> Callable[[Stage], None]:
    return lambda stage: stage.coordinator.say(from_coordinator.Assign(4, owners))


def assigns_mine(stage: Stage) -> None:
    assigns(MINE)(stage)


async def until(condition: Callable[[], object], timeout_s: float = 200.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition is somebody else's state
            await asyncio.sleep(0.01)


@asynccontextmanager
async def starting(
    answer: Callable[[Stage], None] = assigns_mine,
    *,
    noted: RouterMemory = NOTHING,
    settings: LaneSettings = LANE,
) -> AsyncIterator[Stage]:
    """A router that starts; it must be ready before the block ends, or soon."""
    stage = Stage(answer, noted, settings)
    start = asyncio.ensure_future(stage.router.start())
    try:
        yield stage
        assert await asyncio.wait_for(start, 100) == "plain lanes"
    finally:
        start.cancel()
        await stage.router.stop()


@asynccontextmanager
async def ready(
    answer: Callable[[Stage], None] = assigns_mine, *, settings: LaneSettings = LANE
) -> AsyncIterator[Stage]:
    """A router that is ready and has a window open, if there is anything to read."""
    async with starting(answer, settings=settings) as stage:
        await until(lambda: {"starting 1", "ready 1"}.intersection(stage.said))
        stage.coordinator.say(from_coordinator.AllRead())
        await until(lambda: "ready 1" in stage.said)
        yield stage
