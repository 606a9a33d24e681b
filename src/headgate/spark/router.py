"""The router's main process: keeps one streaming query of open windows running.

It holds the stream to the coordinator, plans each window from the newest assignment when Spark asks
for one, and looks after the query: a query that ended is started again, a dead JVM ends the
process (the supervisor brings it back, under a new epoch). On stop it asks for the window's end,
waits until the lanes have settled and returned their receipts, and only then stops Spark.

While the coordinator is away, windows stay open and nothing is overdue. A router that starts then
goes on with what it noted when it planned its last window: the same epochs, and window numbers
above all that it gave out before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import msgspec
import structlog

from headgate.adapters.http.app import HttpApp, Request, Response, Route
from headgate.adapters.http.server import HttpServer
from headgate.config import inherited_environment
from headgate.decide.health import RouterView
from headgate.decide.notes import nobody_reads
from headgate.decide.web_pages import WebPages
from headgate.decide.windows import OpenWindow, overdue_s
from headgate.errors import HeadgateError, StorageFailed
from headgate.lane.spec import LaneReceipt
from headgate.metrics.roles import RouterMetrics
from headgate.model import control
from headgate.model.notes import RouterMemory
from headgate.model.topology import Topology
from headgate.ports.control import ControlSession
from headgate.ports.notes import RouterNotes
from headgate.spark.archiving import make_archive
from headgate.spark.java import Java
from headgate.spark.plans import RouterSettings, plan_window
from headgate.spark.progress import ProgressListener
from headgate.spark.query import WindowQuery, in_thread
from headgate.spark.session import archive_for, build_session, check_master
from headgate.spark.vitals import RouterVitals
from headgate.spark.windows import PLAN_PATH, WindowPlan
from headgate.tasks import Crew, first_of
from headgate.telemetry import LogEvent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger()

T = TypeVar("T")

HOLD_S = 2.0
"""How long a request for a window is held open while there is nothing to run."""
WARM_EVERY_S = 40.0
"""Spark ends Python workers after 60 s without a task; starting them anew takes seconds."""
WATCH_S = 0.25
JVM_TIMEOUT_S = 30.0
SPARK_STOP_S = 10.0
ASSIGNMENT_WAIT_S = 2.0
"""With something to read, the first window has lanes at once; without, it only warms up."""
AWAY_S = 5.0
"""For so long a coordinator that doesn't answer may only be slow."""
LANES_WAIT_S = 60.0
"""For lanes to read what is there to be read; after that /health says who doesn't."""
QUERY_RESTARTS_MAX = 20
"""Without a window of lanes that went well in between; after that the process begins anew."""
NOTHING_NOTED = (
    "it has noted nothing that it could go on with, and waits for the coordinator to tell it what "
    "to read; start the coordinator"
)


NO_WINDOW = (
    "the coordinator went away before the window could end that was open when it was assigned; "
    "start the coordinator"
)


class JvmDied(HeadgateError):
    """The Spark driver's JVM ended under us; the process must be started again."""


class Router:
    """`start`, then `failed` keeps the query running until `stop` is called."""

    def __init__(
        self,
        settings: RouterSettings,
        java: Java,
        connect: Callable[[Callable[[], control.Hello]], ControlSession],
        notes: RouterNotes,
    ) -> None:
        check_master(settings.master, settings.slots)
        self._settings = settings
        self._java = java
        self._connect = connect
        self._notes = notes
        self._session: ControlSession | None = None
        self._http = HttpServer()
        self._plan_url = ""
        self._public = HttpServer()
        self._metrics = RouterMetrics()
        self._vitals = RouterVitals(self._metrics, self._view, lambda: self._coordinator_url)
        self._coordinator_url = ""
        self._trouble = ""
        self.url = ""
        self._assignment: control.Assign | None = None
        self._topology = Topology(0)
        self._window = 0
        self._memory = RouterMemory()
        """What it knew when it started."""
        self._noting = asyncio.Lock()
        self._running: WindowPlan | None = None
        self._open = OpenWindow(0.0, 0.0)
        self._connected_s: float | None = None
        """Since when the coordinator is there, as far as anybody has looked."""
        self._last_ended_s = 0.0
        self._change_ms = 0.0
        self._state = "starting"
        self._all_read = False
        """Everything that is its own, as the coordinator said at least once."""
        self._stopping = False
        self._restarts = 0
        """Since lanes came back last."""
        self._news = asyncio.Condition()
        self._query = WindowQuery(
            self._build_session,
            scratch=settings.scratch,
            options={"run_lane": settings.run_lane, "warm_lane": settings.warm_lane},
            on_window=self._window_returned,
            listener=ProgressListener(self._metrics),
        )
        self._loop = asyncio.get_running_loop()
        self._crew = Crew("router")

    async def start(self) -> str:
        """Returns the master when Spark runs and lanes read what is the router's, or could without
        delay; while there is neither a coordinator nor anything to go on with, it waits."""
        app = HttpApp([Route("GET", PLAN_PATH, self._next_window)], WebPages.of("127.0.0.1"))
        port = await self._http.start(app, "127.0.0.1", 0)
        self._plan_url = f"http://127.0.0.1:{port}{PLAN_PATH}"
        host, wanted = self._settings.http
        pages = WebPages.of(host, origins=self._settings.origins)
        public_port = await self._public.start(
            HttpApp(self._vitals.table(), pages), host, wanted, setting="router.http_port"
        )
        self.url = f"http://{host}:{public_port}"
        shutil.rmtree(self._settings.scratch, ignore_errors=True)
        await in_thread(self._query.start_spark)
        log.info(LogEvent.SPARK_STARTED, master=self._settings.master, java=str(self._java.home))
        # Only now: launching the JVM forks, and a fork amid gRPC's threads doesn't survive.
        self._session = self._connect(self._hello)
        self._crew.need("control", self._listen(self._session))
        self._crew.need("plans", self._http.failed())
        self._crew.need("http", self._public.failed())
        await self._assigned()
        await in_thread(self._start_query)
        while not self._has_begun() and not await self._answered(self._query.has_failed):
            await self._until(self._has_begun, WATCH_S)
        await self._lanes_read()
        self._state = "ready"
        await self._report()
        self._have_archive_made()
        return self._settings.master

    async def _assigned(self) -> None:
        """Wait until it is clear what to read, with or without the coordinator."""
        self._notes.tidy()
        self._memory = self._notes.recall()
        self._window = self._memory.window
        await self._until(self._is_connected, AWAY_S)
        if not self._is_connected() and not self._memory.assignment.sources:
            log.error(LogEvent.WAITS_FOR_COORDINATOR, reason=NOTHING_NOTED)
            while not self._is_connected():
                await self._until(self._is_connected, WATCH_S)
        await self._until(lambda: self._assignment is not None, ASSIGNMENT_WAIT_S)
        await self._go_on_alone()

    async def _go_on_alone(self) -> None:
        """Read what it did before, while nobody says what to read."""
        memory = self._memory
        if self._assignment is None and not self._is_connected() and memory.assignment.sources:
            sources = len(memory.assignment.sources)
            log.warning(LogEvent.GOES_ON_ALONE, window=self._window, sources=sources)
            async with self._news:
                self._assignment, self._topology = memory.assignment, memory.topology
                self._news.notify_all()

    async def _lanes_read(self) -> None:
        """Wait until they do, as far as there is anything to read and somebody to say so."""
        deadline_s = self._loop.time() + LANES_WAIT_S
        while await self._waits_for_lanes() and self._loop.time() < deadline_s:
            await self._until(lambda: self._all_read, WATCH_S)

    async def _waits_for_lanes(self) -> bool:
        is_possible = self._runnable() and self._is_connected() and not self._stopping
        if self._all_read or not is_possible:
            return False
        return not await self._answered(self._query.has_failed)

    def _is_connected(self) -> bool:
        return self._session is not None and self._session.connected

    async def failed(self) -> None:
        """Keep the query running; raises JvmDied when there is nothing left to run it on, or what
        else it can't do without."""
        await first_of(self._keep_query(), self._crew.failed())

    async def _keep_query(self) -> None:
        while not self._stopping:
            await asyncio.sleep(WATCH_S)
            if self._query.jvm_is_dead():
                raise JvmDied("the Spark driver's JVM ended; the router must be started again")
            failed = await self._answered(self._query.has_failed)
            self._look_at_the_stream()
            await self._go_on_alone()
            if not failed and not self._is_overdue():
                continue
            self._restarts += 1
            if self._restarts > QUERY_RESTARTS_MAX:
                raise JvmDied(f"the query failed {self._restarts} times in a row; giving up")
            reason = "a lane did not return"
            if failed:
                reason = await self._answered(self._query.error)
            log.error(LogEvent.QUERY_FAILED, restarts=self._restarts, error=reason)
            self._trouble = f"its query failed and was started again: {reason}"
            self._metrics.restarts.inc()
            await self._answered(self._restart_query)

    async def _answered(self, ask: Callable[[], T]) -> T:
        """The JVM's answer; one that gives none for so long is as good as dead."""
        try:
            async with asyncio.timeout(JVM_TIMEOUT_S):
                return await in_thread(ask)
        except TimeoutError:
            raise JvmDied("the Spark driver's JVM doesn't answer any more") from None

    def _is_overdue(self) -> bool:
        """True when a window should have returned its receipts long ago. Spark would wait for them
        for ever."""
        patience = self._settings.patience
        at_s = overdue_s(self._open, connected_s=self._connected_s, patience=patience)
        return self._running is not None and at_s is not None and self._loop.time() > at_s

    def _look_at_the_stream(self) -> None:
        """Only a welcome says since when it is there again."""
        if not self._is_connected():
            self._connected_s = None

    async def stop(self) -> None:
        """End the window, wait for its receipts, then stop Spark; bounded at every step."""
        self._stopping = True
        self._state = "stopping"
        self._crew.dismiss()
        if self._session is not None:
            await self._ask_for_the_end(self._session)
        lane = self._settings.lane
        deadline_s = self._loop.time() + lane.flush_timeout_s + lane.checkpoint_timeout_s
        while self._running and not self._query.jvm_is_dead() and self._loop.time() < deadline_s:
            await self._until(lambda: self._running is None, WATCH_S)
        if self._query.has_spark and not self._query.jvm_is_dead():
            with contextlib.suppress(Exception):
                async with asyncio.timeout(SPARK_STOP_S):
                    await in_thread(self._query.stop)
        if self._session is not None:
            await self._session.close()
        await self._crew.close()
        await self._http.stop(1.0)
        await self._public.stop(1.0)
        await self._vitals.close()
        shutil.rmtree(self._settings.scratch, ignore_errors=True)

    async def _ask_for_the_end(self, session: ControlSession) -> None:
        """Asked again after a broken stream: lanes hear of it from the coordinator alone."""
        await session.send(control.EndMyWindow(self._window, "the router stops"))

    # --- Spark -----------------------------------------------------------------------------------

    def _build_session(self) -> SparkSession:
        settings = self._settings
        return build_session(
            app_name=f"headgate-{settings.node_id}",
            master=settings.master,
            java=self._java,
            scratch=settings.scratch,
            driver_memory=settings.driver_memory,
            only_plans=True,
            from_archive=settings.class_archive != "off",
            settings=settings.spark_settings,
        )

    def _have_archive_made(self) -> None:
        if self._settings.class_archive == "make":
            environ = inherited_environment()
            archive = archive_for(self._settings.master, self._java, environ)
            if archive is not None:
                self._crew.start("class archive", make_archive(archive, environ))

    def _start_query(self) -> None:
        self._running = None
        self._query.start(self._plan_url)

    def _restart_query(self) -> None:
        self._query.abandon()
        self._start_query()

    def _window_returned(self, receipts: list[LaneReceipt]) -> None:
        """In Spark's thread, which goes on when the loop has taken note."""
        asyncio.run_coroutine_threadsafe(self._window_ended(receipts), self._loop).result(10)

    # --- windows ---------------------------------------------------------------------------------

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for news that make `condition` true, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait_for(condition)

    async def _next_window(self, _request: Request) -> Response:
        """The next plan; an empty answer means ask again."""
        await self._until(self._runnable, HOLD_S if self._last_ended_s else 0.0)
        cold = time.time() - self._last_ended_s >= WARM_EVERY_S
        if self._stopping or not (self._runnable() or cold):
            return Response(200, b"")
        assignment = self._assignment
        self._window = await self._numbered(assignment)
        if self._state == "stopping":  # since then
            return Response(200, b"")
        async with self._news:
            self._running = plan = plan_window(self._settings, assignment, self._window)
            self._open = OpenWindow(self._loop.time(), self._settings.lane.window_s)
            self._news.notify_all()
        await self._report()
        return Response(200, msgspec.json.encode(plan))

    async def _numbered(self, assignment: control.Assign | None) -> int:
        """The next window's number, noted before any lane of it can run: it must not come again."""
        memory = RouterMemory(self._window, assignment or self._memory.assignment, self._topology)
        try:
            async with self._noting:
                return await asyncio.to_thread(self._notes.next_window, memory)
        except StorageFailed as error:
            log.warning(LogEvent.NOTES_FAILED, error=error.message)
            return memory.window + 1

    async def _remember(self, assignment: control.Assign) -> None:
        """Whoever starts while the coordinator is away must know of it, if no window does yet."""
        memory = RouterMemory(self._window, assignment, self._topology)
        try:
            async with self._noting:
                await asyncio.to_thread(self._notes.remember, memory)
        except StorageFailed as error:
            log.warning(LogEvent.NOTES_FAILED, error=error.message)

    def _runnable(self) -> bool:
        return self._assignment is not None and bool(self._assignment.sources)

    def _has_begun(self) -> bool:
        """Lanes are on their way, or an empty window has warmed everything up for them."""
        return self._last_ended_s > 0 or bool(self._running and self._running.lanes)

    async def _window_ended(self, receipts: list[LaneReceipt]) -> None:
        if receipts:
            self._restarts = 0
            started_s = min(receipt.started_s for receipt in receipts)
            if self._last_ended_s:
                self._change_ms = (started_s - self._last_ended_s) * 1000
                self._metrics.window_latency.observe(max(0.0, started_s - self._last_ended_s))
            self._last_ended_s = max(receipt.ended_s for receipt in receipts)
        else:
            self._last_ended_s = time.time()
        self._metrics.windows.inc()
        self._trouble = ""
        for receipt in receipts:
            log.info(LogEvent.LANE_ENDED, **msgspec.structs.asdict(receipt))
        async with self._news:
            self._running = None
            self._news.notify_all()
        await self._report()

    # --- the coordinator -------------------------------------------------------------------------

    def _hello(self) -> control.Hello:
        assignment = self._assignment
        return control.Hello(
            role="router",
            node_id=self._settings.node_id,
            incarnation=self._settings.incarnation,
            url=self.url,
            pid=os.getpid(),
            assignment=assignment.number if assignment else 0,
            owns=assignment.sources if assignment else (),
            generation=self._topology.generation,
            weight=self._settings.weight,
        )

    async def _listen(self, session: ControlSession) -> None:
        async for message in session.messages():
            match message:
                case control.Welcome(learning=learning, url=url):
                    async with self._news:
                        self._coordinator_url, self._connected_s = url, self._loop.time()
                        self._news.notify_all()
                    if self._stopping:
                        await self._ask_for_the_end(session)
                    if learning:
                        await session.send(control.Recall(self._topology))
                    await self._report()
                case control.Assign():
                    async with self._news:
                        self._assignment = message
                        self._news.notify_all()
                    log.info(LogEvent.ASSIGNED, number=message.number, sources=len(message.sources))
                    await self._remember(message)
                case control.PushTopology(topology):
                    if topology.generation > self._topology.generation:
                        self._topology = topology
                    await session.send(control.AckTopology(topology.generation))
                case control.AllRead():
                    async with self._news:
                        self._all_read = True
                        self._news.notify_all()
                case control.EndWindow(reason):
                    self._open = replace(self._open, told_s=self._loop.time())
                    log.info(LogEvent.WINDOW_ENDS, window=self._window, reason=reason)
                case control.Refused(reason):
                    log.warning(LogEvent.REFUSED, reason=reason)
                case _:
                    pass

    def _view(self) -> RouterView:
        assignment, running = self._assignment, self._running
        overdue = "its window should have ended; a lane doesn't return"
        return RouterView(
            self._state,
            connected=self._is_connected(),
            sources=frozenset(owner.ref for owner in assignment.sources)
            if assignment
            else frozenset(),
            window=self._window,
            lanes=len(running.lanes) if running else 0,
            trouble=overdue if self._is_overdue() else self._trouble,
            waiting=(*self._notes.waiting(), *self._unplanned()),
        )

    def _unplanned(self) -> list[str]:
        """What no lane reads because nobody ends the window that doesn't know of it."""
        if self._is_connected():
            return []
        if self._assignment is None:
            return [NOTHING_NOTED]
        lanes = self._running.lanes if self._running is not None else ()
        planned = {owner for lane in lanes for owner in lane.owns}
        missing = [owner.ref for owner in self._assignment.sources if owner not in planned]
        return nobody_reads(dict.fromkeys(missing, NO_WINDOW)) if self._running else []

    async def _report(self) -> None:
        if self._session is not None:
            await self._session.send(
                control.RouterReport(self._state, self._window, round(self._change_ms, 1))
            )
