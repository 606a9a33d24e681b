"""The router's shell: plans windows, listens to the coordinator, reports, watches and stops.

It plans each window from the newest assignment when it is asked for one, and looks after the
processes that run them: what failed is begun again; when there is nothing left to run windows on,
the process ends (the supervisor brings it back, under a new epoch). On stop it asks for the
window's end, waits until the lanes have settled and returned their tallies, and only then stops
what runs them.

While the coordinator is away, windows stay open and nothing is overdue.

It knows nothing of what windows run on: ports.windows. Its life is a table:
decide.lane.router_life.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import structlog

from headgate.answering import HttpApp
from headgate.decide.http.web_pages import WebPages
from headgate.decide.lane.router_life import LIFE, Event, State, is_stopping, word
from headgate.decide.operations.health import RouterView
from headgate.decide.states import Life
from headgate.metrics.roles import RouterMetrics
from headgate.model.access import ApiToken
from headgate.model.addresses import reachable
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import RouterReport
from headgate.model.lanes import LaneTally, WindowPlan
from headgate.model.settings_api import SettingInfo
from headgate.ports.http import HttpCalls, HttpListener
from headgate.ports.machine import Machine
from headgate.ports.notes import RouterNotes
from headgate.ports.windows import Windows
from headgate.services.principals import KnownPrincipals
from headgate.services.router.bearings import Bearings
from headgate.services.router.current import CurrentWindow
from headgate.services.router.news import News
from headgate.services.router.plans import (
    NOTHING_NOTED,
    RouterSettings,
    plan_window,
    unread_alone,
)
from headgate.services.router.stream import Connect, Stream
from headgate.services.router.vitals import RouterVitals
from headgate.services.settings import SettingRoutes
from headgate.tasks import Crew, first_of
from headgate.telemetry import LogLine

log = structlog.get_logger()

HOLD_S = 2.0
"""How long a request for a window is held open while there is nothing to run."""
WATCH_S = 0.25
ASSIGNMENT_WAIT_S = 2.0
"""With something to read, the first window has lanes at once; without, it only warms up."""
AWAY_S = 5.0
"""For so long a coordinator that doesn't answer may only be slow."""
LANES_WAIT_S = 60.0
"""For lanes to read what is there to be read; after that /health says who doesn't."""
OVERDUE = "its window should have ended; a lane doesn't return"


@dataclass(frozen=True, slots=True)
class RouterPorts:
    """What a router needs from outside: where its windows run, the stream to the coordinator, its
    notes, its HTTP server, its HTTP client, and the machine."""

    windows: Windows
    connect: Connect
    notes: RouterNotes
    listener: HttpListener
    calls: HttpCalls
    machine: Machine
    principals: KnownPrincipals | None = None
    settings: tuple[SettingInfo, ...] = ()
    """What it runs with, to be told on request."""


class Router:
    """`start`, then `failed` keeps windows running until `stop` is called. Implements
    ports.windows.Plans."""

    def __init__(
        self, settings: RouterSettings, ports: RouterPorts, metrics: RouterMetrics
    ) -> None:
        self._settings = settings
        self._ports = ports
        self._life = Life(LIFE)
        self._news = News()
        self._bearings = Bearings(ports.notes)
        self._current = CurrentWindow(
            metrics, length_s=settings.lane.window_s, patience=settings.patience
        )
        self._stream = Stream(ports.connect)
        self._vitals = RouterVitals(
            metrics,
            self._view,
            lambda: self._stream.coordinator_url,
            ports.calls,
            headers=settings.passes.headers("coordinator"),
        )
        self._loop = asyncio.get_running_loop()
        self._crew = Crew("router")
        self._stops = asyncio.Lock()
        self._restart = asyncio.Event()
        self.url = ""

    # --- starting --------------------------------------------------------------------------------

    async def start(self) -> str:
        """Returns what windows run on, when lanes read what is the router's, or could without
        delay; while there is neither a coordinator nor anything to go on with, it waits."""
        await self._serve()
        place = await self._ports.windows.launch()
        self._life.meets(Event.LAUNCHED)
        self._crew.need("control", self._listen(self._stream.open(self._hello)))
        self._crew.need("plans", self._ports.windows.failed())
        self._crew.need("http", self._ports.listener.failed())
        await self._assigned()
        self._life.meets(Event.TOLD)
        await self._ports.windows.begin(self)
        await self._lanes_read()
        await self._report()
        self._ports.windows.settled_in()
        return place

    async def _serve(self) -> None:
        host, wanted = self._settings.http
        advertised = self._settings.advertised_host
        pages = WebPages.of(host, advertised=advertised, origins=self._settings.origins)
        shown = SettingRoutes(self._settings.node_id, "router", self._ports.settings)
        table = [*self._vitals.table(), *shown.table()]
        app = HttpApp(table, pages, self._ports.principals)
        port = await self._ports.listener.start(app, host, wanted, setting="router.http_port")
        self.url = f"http://{reachable(host, port, advertised=advertised)}"

    async def _assigned(self) -> None:
        """Wait until it is clear what to read, with or without the coordinator."""
        bearings, is_connected = self._bearings, self._stream.is_connected
        bearings.recall()
        await self._news.until(is_connected, AWAY_S)
        if not is_connected() and not bearings.could_go_on:
            log.error(LogLine.WAITS_FOR_COORDINATOR, reason=NOTHING_NOTED)
            while not is_connected():
                await self._news.until(is_connected, WATCH_S)
        await self._news.until(lambda: bearings.assignment is not None, ASSIGNMENT_WAIT_S)
        self._go_on_alone()

    def _go_on_alone(self) -> None:
        if not self._stream.is_connected() and self._bearings.go_on_alone():
            self._news.tell()

    async def _lanes_read(self) -> None:
        """Wait until a window has begun, and until lanes read, as far as there is anything to read
        and a coordinator to say so."""
        life, fault = self._life, None
        while life.state is State.OPENING and fault is None:
            await self._news.until(lambda: life.state is not State.OPENING, WATCH_S)
            fault = await self._ports.windows.fault()
        deadline_s = self._loop.time() + LANES_WAIT_S
        while self._waits_for_lanes() and fault is None and self._loop.time() < deadline_s:
            await self._news.until(lambda: life.state is not State.OPEN, WATCH_S)
            fault = await self._ports.windows.fault()
        if life.state is not State.READY:
            life.meets(Event.WAITED)

    def _waits_for_lanes(self) -> bool:
        is_possible = self._bearings.has_something_to_read() and self._stream.is_connected()
        return is_possible and self._life.state is State.OPEN

    # --- watching --------------------------------------------------------------------------------

    @property
    def is_to_restart(self) -> bool:
        """Whether an operator wants this process to begin anew."""
        return self._restart.is_set()

    async def failed(self) -> None:
        """Keep windows running; raises WindowsDied when there is nothing left to run them on, or
        what else it can't do without. Returns when it is to begin anew."""
        await first_of(self._keep_running(), self._crew.failed(), self._restart.wait())

    async def _keep_running(self) -> None:
        while not self._is_stopping():
            await asyncio.sleep(WATCH_S)
            fault = await self._ports.windows.fault()
            self._stream.look()
            self._go_on_alone()
            if fault is None and self._is_overdue():
                fault = "a lane did not return"
            if fault is not None:
                self._current.failed(fault, now_s=self._loop.time())
                await self._ports.windows.begin(self)

    def _is_overdue(self) -> bool:
        return self._current.is_overdue(
            now_s=self._loop.time(), connected_s=self._stream.connected_s
        )

    # --- stopping --------------------------------------------------------------------------------

    def _is_stopping(self) -> bool:
        return is_stopping(self._life.state)

    async def stop(self, *, returns: bool = False) -> None:
        """End the window, wait for its tallies, then stop what runs it; bounded at every step.
        The router's partitions go to others then, unless it `returns`. A `start` that is under way
        must have been cancelled before. Doing it twice is fine: the second call waits for the
        first."""
        async with self._stops:
            if self._life.state is not State.STOPPED:
                await self._stop(returns=returns)

    async def _stop(self, *, returns: bool) -> None:
        self._life.meets(Event.STOP)
        ports, current, lane = self._ports, self._current, self._settings.lane
        self._crew.dismiss()
        await self._ask_for_the_end()
        deadline_s = self._loop.time() + lane.flush_timeout_s + lane.checkpoint_timeout_s
        while current.plan and not ports.windows.is_dead and self._loop.time() < deadline_s:
            await self._news.until(lambda: current.plan is None, WATCH_S)
        await ports.windows.stop()
        await self._stream.close(returns=returns)
        await self._crew.close()
        await ports.windows.close()
        await ports.listener.stop(1.0)
        if ports.principals is not None:
            await ports.principals.close()
        await ports.calls.close()
        self._life.meets(Event.ENDED)

    async def _ask_for_the_end(self) -> None:
        """Asked again after a broken stream: lanes hear of it from the coordinator alone."""
        await self._stream.send(
            to_coordinator.EndMyWindow(self._bearings.window, "the router stops")
        )

    # --- windows ---------------------------------------------------------------------------------

    async def next_plan(self) -> WindowPlan | None:
        bearings, current = self._bearings, self._current
        hold_s = 0.0 if current.is_first else HOLD_S
        await self._news.until(bearings.has_something_to_read, hold_s)
        pause_s = current.pause_s(bearings.assignment)
        await self._news.until(lambda: not current.pause_s(bearings.assignment), pause_s)
        is_cold = current.is_cold(self._ports.machine.wall_s())
        is_wanted = bearings.has_something_to_read() or is_cold
        if self._is_stopping() or not is_wanted:
            return None
        assignment = bearings.assignment
        await bearings.number_window(assignment)
        if self._is_stopping():  # since then
            return None
        plan = plan_window(self._settings, assignment, bearings.window)
        current.opened(plan, now_s=self._loop.time())
        if plan.lanes:
            self._life.meets(Event.BEGUN)
        self._news.tell()
        await self._report()
        return plan

    async def returned(self, tallies: Sequence[LaneTally]) -> None:
        self._current.returned(tallies, wall_s=self._ports.machine.wall_s())
        self._life.meets(Event.BEGUN)
        self._news.tell()
        await self._report()

    # --- the coordinator -------------------------------------------------------------------------

    def _hello(self) -> to_coordinator.Hello:
        settings, bearings = self._settings, self._bearings
        return to_coordinator.Hello(
            role="router",
            node_id=settings.node_id,
            incarnation=settings.incarnation,
            url=self.url,
            pid=self._ports.machine.pid(),
            assignment=bearings.assignment.number if bearings.assignment else 0,
            owns=bearings.sources,
            generation=bearings.topology.generation,
            weight=settings.weight,
        )

    async def _listen(self, messages: AsyncIterator[from_coordinator.FromCoordinator]) -> None:
        async for message in messages:
            match message:
                case from_coordinator.Welcome():
                    await self._welcomed(message)
                case from_coordinator.Assign():
                    self._bearings.assign(message)
                    self._news.tell()
                    await self._bearings.note(message)
                case from_coordinator.PushTopology(topology):
                    self._bearings.apply(topology)
                    await self._stream.send(to_coordinator.AckTopology(topology.generation))
                case from_coordinator.AllRead():
                    self._life.meets(Event.ALL_READ)
                    self._news.tell()
                case from_coordinator.EndWindow(reason, _, number):
                    window = number or self._bearings.window
                    self._current.told_to_end(window, now_s=self._loop.time())
                    log.info(LogLine.WINDOW_ENDS, window=window, reason=reason)
                case from_coordinator.PushTokens(tokens, revision):
                    self._learn(tokens, revision)
                case from_coordinator.Restart():
                    self._restart.set()
                case from_coordinator.Refused(reason):
                    log.warning(LogLine.REFUSED, reason=reason)
                case _:
                    pass

    async def _welcomed(self, welcome: from_coordinator.Welcome) -> None:
        self._stream.welcomed(welcome.url)
        self._news.tell()
        if self._is_stopping():
            await self._ask_for_the_end()
        if welcome.learning:
            principals = self._ports.principals
            known = ((), 0) if principals is None else principals.told
            await self._stream.send(to_coordinator.Recall(self._bearings.topology, *known))
        self._learn(welcome.tokens, welcome.tokens_revision)
        await self._report()

    def _learn(self, tokens: tuple[ApiToken, ...], revision: int) -> None:
        if self._ports.principals is not None:
            self._ports.principals.learn(tokens, revision)

    async def _report(self) -> None:
        said, change_ms = word(self._life.state), round(self._current.change_ms, 1)
        await self._stream.send(RouterReport(said, self._bearings.window, change_ms))

    # --- how it fares ----------------------------------------------------------------------------

    def _view(self) -> RouterView:
        connected = self._stream.is_connected()
        unread = [] if connected else unread_alone(self._bearings.assignment, self._current.plan)
        return RouterView(
            word(self._life.state),
            connected=connected,
            sources=frozenset(owner.ref for owner in self._bearings.sources),
            window=self._bearings.window,
            lanes=len(self._current.plan.lanes) if self._current.plan else 0,
            trouble=OVERDUE if self._is_overdue() else self._current.trouble,
            waiting=(*self._ports.notes.waiting(), *unread),
        )
