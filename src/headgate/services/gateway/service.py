"""A gateway: the public address of the system, and where lanes deliver to.

Three listeners (public HTTP with SSE, public WebSocket, internal HTTP for lanes) and one stream to
the coordinator. Invariants: while the coordinator is away, connected subscribers go on; a stop
tells every subscriber to come back elsewhere, and ends within its timeout.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import structlog
from prometheus_client import Counter

from headgate import errors
from headgate.adapters.http.app import HttpApp
from headgate.adapters.http.forward import Forwarder
from headgate.adapters.http.messages import Route
from headgate.adapters.http.server import HttpServer
from headgate.decide.recent_ids import RecentIds
from headgate.model.api import Health
from headgate.model.control import GatewayReport, Hello
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch
from headgate.ports.control import ControlSession, HelloSource
from headgate.ports.log import LogReader
from headgate.services.gateway.delivery import Deliveries
from headgate.services.gateway.routes import PublicRoutes
from headgate.services.gateway.subscriptions import Bounds, Subscriptions
from headgate.services.gateway.websocket import PATH as SUBSCRIBE_PATH
from headgate.services.gateway.websocket import PingTimes, WebSocketServer
from headgate.telemetry import LogEvent, Metrics

log = structlog.get_logger()

DELIVERY_PATH = "/internal/v1/streamer/events"
WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, never bound to


@dataclass(frozen=True, slots=True)
class DedupOptions:
    """How long, and how many, event ids are remembered."""

    enabled: bool = True
    cache_size: int = 10_000
    ttl_s: float = 180.0


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Ports of 0 take any free one. `advertised_host` is how others reach this gateway where the
    addresses it listens on don't say that."""

    node_id: str
    incarnation: str
    coordinator_url: str
    host: str = "127.0.0.1"
    port: int = 0
    ws_port: int = 0
    client_address: str = "127.0.0.1"
    client_port: int = 0
    advertised_host: str = ""
    bounds: Bounds = field(default_factory=Bounds)
    dedup: DedupOptions = field(default_factory=DedupOptions)
    pings: PingTimes = field(default_factory=PingTimes)
    body_limit_bytes: int = 64 * 1024 * 1024
    keep_alive_s: float = 15.0
    report_every_s: float = 1.0
    stop_timeout_s: float = 5.0


class Gateway:
    """Start it once, stop it once; `failed` ends only when the gateway can't go on."""

    def __init__(
        self,
        options: GatewayOptions,
        *,
        reader: LogReader,
        open_session: Callable[[HelloSource], ControlSession],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._open_session = open_session
        self._now_s = now_s
        self._started_s = now_s()
        self._metrics = Metrics()
        self._exposed: dict[str, int] = {}
        """What the counters stand at."""
        self._turn = itertools.count()
        self._subscriptions = Subscriptions(
            options.node_id, options.bounds, reader=reader, metrics=self._metrics, now_s=now_s
        )
        self._registration = self._subscriptions.registration
        dedup = options.dedup
        self._deliveries = Deliveries(
            options.node_id,
            self._subscriptions,
            recent=RecentIds(capacity=dedup.cache_size, ttl_s=dedup.ttl_s)
            if dedup.enabled
            else None,
            now_s=now_s,
        )
        self._forwarder = Forwarder(body_limit_bytes=options.body_limit_bytes)
        self._routes = PublicRoutes(
            self._subscriptions,
            self._forwarder,
            coordinator_url=lambda: self._registration.coordinator_url or options.coordinator_url,
            ingest_url=self._ingest_url,
            health=self._health,
            metrics=self._metrics,
            collect=self._collect,
            version=_version(),
            keep_alive_s=options.keep_alive_s,
        )
        self._public = HttpServer()
        self._internal = HttpServer()
        self._websocket = WebSocketServer(self._subscriptions, pings=options.pings)
        self._session: ControlSession | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.url = self.ws_url = self.delivery_url = ""

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Listen, then connect to the coordinator; returns the public address."""
        options = self._options
        try:
            await self._listen()
        except errors.HeadgateError:
            await self._stop_listening(0.0)
            raise
        self._session = self._open_session(self.hello)
        self._tasks = [
            asyncio.create_task(self._registration.listen(self._session), name="gateway control"),
            asyncio.create_task(self._report(), name="gateway report"),
        ]
        log.info(LogEvent.READY, url=self.url, ws_url=self.ws_url, node=options.node_id)
        return self.url

    async def _listen(self) -> None:
        options = self._options
        table = self._routes.table()
        port = await self._public.start(
            HttpApp(table), options.host, options.port, setting="public.port"
        )
        ws_port = await self._websocket.start(
            options.host, options.ws_port, setting="public.ws_port"
        )
        client_port = await self._internal.start(
            HttpApp(self._internal_routes()),
            options.client_address,
            options.client_port,
            setting="gateway.client_port",
        )
        self.url = f"http://{self._reachable(options.host)}:{port}"
        self.ws_url = f"ws://{self._reachable(options.host)}:{ws_port}{SUBSCRIBE_PATH}"
        self.delivery_url = f"http://{self._reachable(options.client_address)}:{client_port}"
        self._routes.ws_url = self.ws_url

    async def failed(self) -> None:
        """Waits for the end of the gateway's own tasks and raises what ended them, if anything."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():
                task.result()

    async def stop(self) -> None:
        """Tell every subscriber, then leave."""
        timeout_s = self._options.stop_timeout_s
        reason = errors.NotNow("this gateway is going away; connect again", reason="going_away")
        self._subscriptions.close_all(reason)
        self._websocket.close_all(reason)
        await self._stop_listening(timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        await self._forwarder.close()

    async def _stop_listening(self, timeout_s: float) -> None:
        await asyncio.gather(
            self._websocket.stop(timeout_s),
            self._public.stop(timeout_s),
            self._internal.stop(timeout_s),
        )

    # --- the coordinator -------------------------------------------------------------------------

    def hello(self) -> Hello:
        return Hello(
            role="gateway",
            node_id=self._options.node_id,
            incarnation=self._options.incarnation,
            url=self.delivery_url,
            ws_url=self.ws_url,
            pid=os.getpid(),
            generation=self._registration.topology.generation,
        )

    async def _report(self) -> None:
        while True:
            totals = self._subscriptions.totals
            await self._registration.send(
                GatewayReport(len(self._subscriptions), totals.depth, totals.sent)
            )
            await asyncio.sleep(self._options.report_every_s)

    # --- answers ---------------------------------------------------------------------------------

    def _internal_routes(self) -> list[Route]:
        return [
            Route(
                "POST",
                DELIVERY_PATH,
                self._deliveries.endpoint,
                "Deliver a batch.",
                DeliveryBatch,
                DeliveryAnswer,
                public=False,
            )
        ]

    def _ingest_url(self) -> str | None:
        """Ingest nodes take turns."""
        urls = [node.url for node in self._registration.topology.of_role("ingest") if node.url]
        return urls[next(self._turn) % len(urls)] if urls else None

    def _health(self) -> Health:
        return Health(
            status="healthy" if self._registration.connected else "degraded",
            role="gateway",
            version=_version(),
            uptime_s=round(self._now_s() - self._started_s, 3),
        )

    def _collect(self) -> None:
        """Bring the metrics up to date, when somebody looks."""
        metrics, totals = self._metrics, self._subscriptions.totals
        self._raise(metrics.deliveries_sent, "sent", totals.sent)
        self._raise(metrics.dropped, "dropped", totals.dropped)
        self._raise(metrics.repeats_dropped, "repeats", self._deliveries.repeats)
        for reason, count in totals.resyncs.items():
            self._raise(metrics.resyncs.labels(reason), f"resyncs {reason}", count)
        metrics.waiting.set(totals.depth)
        metrics.waiting_bytes.set(self._subscriptions.budget.taken_bytes)
        metrics.unacknowledged.set(sum(one.unacknowledged for one in self._subscriptions))

    def _raise(self, counter: Counter, name: str, total: int) -> None:
        counter.inc(total - self._exposed.get(name, 0))
        self._exposed[name] = total

    def _reachable(self, host: str) -> str:
        name = self._options.advertised_host or ("127.0.0.1" if host in WILDCARDS else host)
        return f"[{name}]" if ":" in name else name


def _version() -> str:
    try:
        return version("headgate")
    except PackageNotFoundError:
        return "0"
