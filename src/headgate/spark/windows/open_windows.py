"""Open windows on Spark: a router's lanes are the tasks of one streaming query.

It has three parts: the query with its JVM (query.py), the server at which Spark fetches the plan of
the next window (plan_server.py), and what both leave behind on the disk.

Invariant: the event loop never waits for the JVM. Whatever asks it does so in a thread of its own,
and a JVM that gives no answer in time is as good as dead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import structlog

from headgate.adapters.scratch import Scratch
from headgate.config import inherited_environment
from headgate.metrics.roles import RouterMetrics
from headgate.model.lanes import LaneSettings, LaneTally
from headgate.ports.windows import Plans, WindowsDied
from headgate.spark.starting.archiving import make_archive
from headgate.spark.starting.java import Java
from headgate.spark.starting.session import archive_for, build_session, check_master
from headgate.spark.windows.plan_server import PlanServer
from headgate.spark.windows.progress import ProgressListener
from headgate.spark.windows.query import WindowQuery, in_thread
from headgate.spark.windows.source import window_options
from headgate.tasks import Crew
from headgate.telemetry import LogLine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger()

T = TypeVar("T")

JVM_TIMEOUT_S = 30.0
SPARK_STOP_S = 10.0
NOTE_TIMEOUT_S = 10.0
"""For the router to take note of tallies."""


class JvmDied(WindowsDied):
    """The Spark driver's JVM ended under us; the process must be started again."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    app_name: str
    master: str
    slots: int
    driver_memory: str
    scratch: Path
    """Where its temporary files are, in a folder of their own beside those of other routers."""
    run_lane: str
    warm_lane: str
    """These two name, as package.module:function, what a task calls."""
    lane: LaneSettings = field(default_factory=LaneSettings)
    """What every lane gets, whatever its plan says: plans are kept on Spark's disk, and settings
    hold passwords."""
    class_archive: Literal["make", "use", "off"] = "use"
    """Whether Spark starts from an archive of its classes, and has a missing one made."""
    settings: dict[str, str] = field(default_factory=dict)
    """More of Spark's own."""


class SparkWindows:
    """Implements ports.windows.Windows."""

    def __init__(self, settings: SparkSettings, java: Java, metrics: RouterMetrics) -> None:
        check_master(settings.master, settings.slots)
        self._settings = settings
        self._java = java
        self._server = PlanServer()
        self._plan_url = ""
        self._has_begun = False
        self._scratch = Scratch(settings.scratch)
        self._query = WindowQuery(
            self._build_session,
            scratch=self._scratch.path,
            options=window_options(
                run_lane=settings.run_lane,
                warm_lane=settings.warm_lane,
                secret=self._server.secret,
                lane=settings.lane,
            ),
            on_window=self._window_returned,
            listener=ProgressListener(metrics),
        )
        self._loop = asyncio.get_running_loop()
        self._crew = Crew("router")

    async def launch(self) -> str:
        self._plan_url = await self._server.start()
        await in_thread(self._query.start_spark)
        log.info(LogLine.SPARK_STARTED, master=self._settings.master, java=str(self._java.home))
        return self._settings.master

    async def begin(self, plans: Plans) -> None:
        if self._has_begun:
            self._server.plans = None
            await self._answered(self._restart_query)
            self._server.plans = plans
        else:
            self._server.plans, self._has_begun = plans, True
            await in_thread(self._start_query)

    async def fault(self) -> str | None:
        if self.is_dead:
            raise JvmDied("the Spark driver's JVM ended; the router must be started again")
        return await self._answered(self._query.fault)

    @property
    def is_dead(self) -> bool:
        return self._query.jvm_is_dead()

    async def failed(self) -> None:
        await self._server.failed()

    def settled_in(self) -> None:
        if self._settings.class_archive == "make":
            environ = inherited_environment()
            archive = archive_for(self._settings.master, self._java, environ)
            if archive is not None:
                self._crew.start("class archive", make_archive(archive, environ))

    async def stop(self) -> None:
        self._server.plans = None
        if self._query.has_spark and not self.is_dead:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(SPARK_STOP_S):
                    await in_thread(self._query.stop)

    async def close(self) -> None:
        await self._crew.close()
        await self._server.stop()
        self._scratch.remove()

    # --- Spark -----------------------------------------------------------------------------------

    async def _answered(self, ask: Callable[[], T]) -> T:
        """The JVM's answer; one that gives none for so long is as good as dead."""
        try:
            async with asyncio.timeout(JVM_TIMEOUT_S):
                return await in_thread(ask)
        except TimeoutError:
            raise JvmDied("the Spark driver's JVM doesn't answer any more") from None

    def _start_query(self) -> None:
        self._query.start(self._plan_url)

    def _restart_query(self) -> None:
        self._query.abandon()
        self._start_query()

    def _build_session(self) -> SparkSession:
        settings = self._settings
        return build_session(
            app_name=settings.app_name,
            master=settings.master,
            java=self._java,
            scratch=self._scratch.path,
            driver_memory=settings.driver_memory,
            only_plans=True,
            from_archive=settings.class_archive != "off",
            settings=settings.settings,
        )

    def _window_returned(self, tallies: Sequence[LaneTally]) -> None:
        """In Spark's thread, which goes on when the router has taken note."""
        noted = asyncio.run_coroutine_threadsafe(self._note(tallies), self._loop)
        noted.result(NOTE_TIMEOUT_S)

    async def _note(self, tallies: Sequence[LaneTally]) -> None:
        if self._server.plans is not None:
            await self._server.plans.returned(tallies)
