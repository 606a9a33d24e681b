"""A gateway: the public address of the system, and where lanes deliver to.

Three listeners (public HTTP with SSE, `connections` of subscribers and consumers, one for lanes)
and one stream to the coordinator. Invariants: while the coordinator is away, connected subscribers
go on; a stop tells every subscriber to come back elsewhere, and ends within its timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from headgate import errors
from headgate.answering import HttpApp
from headgate.decide.feed.recent_ids import RecentIds
from headgate.decide.feed.redelivered import Redelivered
from headgate.decide.http.web_pages import WebPages
from headgate.decide.limits.holdings import Holdings
from headgate.decide.links.passes import Passes
from headgate.decide.operations.health import DISCONNECTED, judged
from headgate.decide.produce import passing_on
from headgate.decide.produce.room import Room
from headgate.metrics.roles import GatewayMetrics
from headgate.model.addresses import reachable
from headgate.model.api import Health
from headgate.model.control.reports import GatewayReport
from headgate.model.control.to_coordinator import Hello
from headgate.model.settings_api import SettingInfo
from headgate.model.web_files import WebFiles
from headgate.ports.audit import AuditTrail, NoAuditTrail
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.connection import ConnectionListener
from headgate.ports.control import ControlSession, HelloSource
from headgate.ports.http import HttpCalls, HttpListener
from headgate.ports.letters import LetterStore
from headgate.ports.log import LogReader
from headgate.ports.machine import Machine
from headgate.ports.transport import Accept, DeliveryListener
from headgate.release import release
from headgate.services.gateway.control import Control
from headgate.services.gateway.delivery import Deliveries
from headgate.services.gateway.evidence import GatewayEvidence
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.groups.consumers import Consumers
from headgate.services.gateway.groups.letters import GroupLetters
from headgate.services.gateway.hearing import Hearing
from headgate.services.gateway.public.asking import ASK_TIMEOUT_S, Asking
from headgate.services.gateway.public.browsing import Browsing
from headgate.services.gateway.public.explaining import Explaining
from headgate.services.gateway.public.forwarding import Forwarder
from headgate.services.gateway.public.leader_calls import LeaderCalls
from headgate.services.gateway.public.routes import PublicRoutes
from headgate.services.gateway.public.settings import PublicSettings
from headgate.services.gateway.rights import Rights
from headgate.services.gateway.subscriptions.registering import Registering
from headgate.services.gateway.subscriptions.slowness import slowest_of
from headgate.services.gateway.subscriptions.subscriptions import Bounds, Subscriptions
from headgate.services.gateway.telling import Telling
from headgate.services.gateway.websocket import PATH as SUBSCRIBE_PATH
from headgate.services.gateway.websocket import WebSocketServer
from headgate.services.principals import KnownPrincipals
from headgate.services.settings import SettingRoutes
from headgate.tasks import Crew, deaths, first_of
from headgate.telemetry import LogLine

log = structlog.get_logger()

STALLED_S = 1.0
"""A connection that takes nothing for so long takes nothing more before the end."""
LAST_WORDS_S = 1.0
"""What is left for goodbyes when a stop has used up its time."""


@dataclass(frozen=True, slots=True)
class DedupOptions:
    """How long, and how many, event ids are remembered."""

    enabled: bool = True
    cache_size: int = 10_000
    ttl_s: float = 180.0


@dataclass(frozen=True, slots=True)
class EvidenceOptions:
    """How much is remembered of deliveries, and for how long."""

    size: int = 20_000
    age_s: float = 600.0


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Ports of 0 take any free one. `advertised_host` is how others reach this gateway where its
    listening addresses don't say so; `origins` are those of web pages that may call it."""

    node_id: str
    incarnation: str
    coordinator_url: str
    host: str = "127.0.0.1"
    port: int = 0
    ws_port: int = 0
    advertised_host: str = ""
    origins: tuple[str, ...] = ()
    passes: Passes = field(default_factory=Passes)
    """What it shows to other roles."""
    masked: tuple[str, ...] = ()
    """Paths of values that people who look at records aren't shown."""
    demo: str = ""
    """Where the demo that runs this system takes what its page asks for."""
    bounds: Bounds = field(default_factory=Bounds)
    consumers: ConsumerBounds = field(default_factory=ConsumerBounds)
    dedup: DedupOptions = field(default_factory=DedupOptions)
    evidence: EvidenceOptions = field(default_factory=EvidenceOptions)
    body_limit_bytes: int = 64 * 1024 * 1024
    waiting_bytes: int = 256 * 1024 * 1024
    keep_alive_s: float = 15.0
    report_every_s: float = 1.0
    stop_timeout_s: float = 5.0


class Gateway:
    """Start it once, stop it once; `failed` ends only when the gateway can't go on. `http` is where
    it serves the public, `calls` how it passes that on, `open_listener` makes what lanes deliver
    to. Without `letters` consumer groups never give anything up, without `web_files` browsers find
    no page, and without `principals` nobody has to say who they are."""

    def __init__(
        self,
        options: GatewayOptions,
        *,
        reader: LogReader,
        checkpoints: CheckpointStore,
        open_session: Callable[[HelloSource], ControlSession],
        http: HttpListener,
        calls: HttpCalls,
        open_listener: Callable[[Accept], DeliveryListener],
        connections: ConnectionListener,
        machine: Machine,
        letters: LetterStore | None = None,
        web_files: WebFiles | None = None,
        principals: KnownPrincipals | None = None,
        audit: AuditTrail | None = None,
        settings: tuple[SettingInfo, ...] = (),
    ) -> None:
        self._options = options
        self._audit = audit or NoAuditTrail()
        self._principals = principals
        self._reader = reader
        self._open_session = open_session
        self._machine = machine
        self._started_s = machine.monotonic_s()
        self._metrics = GatewayMetrics()
        self._stopping = False
        self._turn = itertools.count()
        self._control = Control()
        crew = Crew("gateway")
        registering = Registering(self._control, crew)
        evidence = GatewayEvidence(
            options.node_id,
            size=options.evidence.size,
            age_s=options.evidence.age_s,
            machine=machine,
        )
        self._subscriptions = Subscriptions(
            options.node_id,
            options.bounds,
            self._control,
            registering,
            crew=crew,
            reader=reader,
            settled=checkpoints.list,
            metrics=self._metrics,
            evidence=evidence,
            machine=machine,
        )
        dedup = options.dedup
        recent = RecentIds(capacity=dedup.cache_size, ttl_s=dedup.ttl_s) if dedup.enabled else None
        self._deliveries = Deliveries(
            options.node_id,
            self._subscriptions,
            incarnation=options.incarnation,
            recent=recent,
            redelivered=Redelivered(capacity=dedup.cache_size, ttl_s=dedup.ttl_s),
            evidence=evidence,
            machine=machine,
        )
        self._calls = calls
        self._room = Room(options.waiting_bytes, setting="gateway.waiting_memory")
        forwarder = Forwarder(
            calls,
            body_limit_bytes=options.body_limit_bytes,
            room=self._room,
            passes=options.passes,
        )
        self._routes = PublicRoutes(
            self._subscriptions,
            forwarder,
            coordinator_url=self._coordinator_url,
            ingest_urls=self._ingest_urls,
            knows=lambda name: self._control.topology.topic(name) is not None,
            is_unheard=lambda: self._control.is_unheard,
            health=self._health,
            metrics=self._metrics,
            collect=self._collect,
            browsing=Browsing(
                reader,
                topology=lambda: self._control.topology,
                machine=machine,
                masked=options.masked,
            ),
            settings=PublicSettings(
                SettingRoutes(options.node_id, "gateway", settings),
                forwarder,
                LeaderCalls(forwarder, self._coordinator_url, timeout_s=ASK_TIMEOUT_S),
                topology=lambda: self._control.topology,
            ),
            crew=crew,
            machine=machine,
            explaining=Explaining(
                reader,
                Asking(
                    LeaderCalls(forwarder, self._coordinator_url, timeout_s=ASK_TIMEOUT_S),
                    machine=machine,
                ),
                topology=lambda: self._control.topology,
                machine=machine,
                masked=options.masked,
            ),
            version=release(),
            keep_alive_s=options.keep_alive_s,
            web_files=web_files or {},
            demo=options.demo,
        )
        self._public = http
        self._listener = open_listener(self._deliveries.take)
        self._checkpoints = checkpoints
        self._letters = None
        if letters is not None:
            self._letters = GroupLetters(letters, self._subscriptions.catch_up, evidence, machine)
        self._consumers = Consumers(
            self._subscriptions,
            self._control,
            checkpoints,
            options.consumers,
            self._letters,
            machine=machine,
        )
        telling = Telling(evidence, self._subscriptions, self._consumers)
        self._hearing = Hearing(
            self._control,
            registering,
            self._subscriptions,
            self._consumers,
            telling,
            principals,
        )
        self._rights = None if principals is None else Rights(principals)
        self._websocket = WebSocketServer(
            connections, self._subscriptions, self._consumers, self._rights, self._audit
        )
        self._routes.rights = self._routes.watching.rights = self._rights
        self._session: ControlSession | None = None
        self._crew = Crew("gateway")
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
        self._crew.need("control", self._hearing.listen(self._session))
        self._crew.need("public listener", self._public.failed())
        self._crew.need("delivery listener", self._listener.failed())
        self._crew.keep("report", self._report)
        if self._rights is not None:
            self._crew.keep("rights", self._rights.keep_looking)
        self._crew.keep("saving of positions", self._consumers.keep_saving)
        if self._letters is not None:
            self._crew.keep("letters of groups", self._consumers.keep_sending_again)
        log.info(LogLine.READY, url=self.url, ws_url=self.ws_url, node=options.node_id)
        return self.url

    async def _listen(self) -> None:
        options = self._options
        app = HttpApp(self._routes.table(), self._pages(), self._principals, audit=self._audit)
        port = await self._public.start(app, options.host, options.port, setting="public.port")
        ws_port = await self._websocket.start(
            options.host, options.ws_port, self._pages(port), setting="public.ws_port"
        )
        self.url = f"http://{self._reachable(port)}"
        self.ws_url = f"ws://{self._reachable(ws_port)}{SUBSCRIBE_PATH}"
        self.delivery_url = await self._listener.start()
        self._routes.ws_url = self.ws_url

    @property
    def is_to_restart(self) -> bool:
        """Whether an operator wants this process to begin anew."""
        return self._hearing.restart.is_set()

    @property
    def holdings(self) -> Holdings:
        """What each principal and address holds here of what is limited."""
        return self._subscriptions.holdings

    async def failed(self) -> None:
        """Waits for as long as the gateway can go on, and raises what keeps it from doing so;
        returns when it is to begin anew."""
        await first_of(self._crew.failed(), self._hearing.restart.wait())

    async def stop(self, *, returns: bool = False) -> None:
        """Take nothing more, send what waits, tell every subscriber, then leave, for good or until
        it `returns`."""
        loop, timeout_s = asyncio.get_running_loop(), self._options.stop_timeout_s
        deadline_s = loop.time() + timeout_s
        self._crew.dismiss()
        self._stopping = self._deliveries.stopping = True
        self._deliveries.pass_on()
        self._subscriptions.stop_intake()
        self._routes.watching.end()
        reason = errors.NotNow("this gateway is going away; connect again", reason="going_away")
        await asyncio.gather(self._consumers.stop(timeout_s), self._flush(timeout_s))
        self._subscriptions.close_all(reason)
        self._websocket.close_all(reason)
        await self._stop_listening(max(LAST_WORDS_S, deadline_s - loop.time()))
        await self._crew.close()
        await self._subscriptions.crew.close(grace_s=LAST_WORDS_S)
        if self._principals is not None:
            await self._principals.close()
        if self._session is not None:
            await self._session.close(returns=returns)
        await self._calls.close()
        await self._reader.close()
        await self._checkpoints.close()
        if self._letters is not None:
            await self._letters.close()

    async def _flush(self, timeout_s: float) -> None:
        """Returns when nothing waits any more, or nobody takes anything."""
        totals = self._subscriptions.totals
        totals.emptied = emptied = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                sent = -1
                while totals.depth and totals.sent != sent:
                    sent = totals.sent
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(STALLED_S):
                            await emptied.wait()

    async def _stop_listening(self, timeout_s: float) -> None:
        await asyncio.gather(
            self._websocket.stop(timeout_s),
            self._public.stop(timeout_s),
            self._listener.stop(timeout_s),
        )

    # --- the coordinator -------------------------------------------------------------------------

    def hello(self) -> Hello:
        return Hello(
            role="gateway",
            node_id=self._options.node_id,
            incarnation=self._options.incarnation,
            url=self.delivery_url,
            ws_url=self.ws_url,
            public_url=self.url,
            pid=self._machine.pid(),
            generation=self._control.topology.generation,
            tells=True,
        )

    async def _report(self) -> None:
        while True:
            subscriptions, totals = self._subscriptions, self._subscriptions.totals
            slowest = slowest_of(subscriptions)
            await self._control.send(
                GatewayReport(
                    len(subscriptions), totals.depth, totals.sent, subscriptions.held, slowest
                )
            )
            await asyncio.sleep(self._options.report_every_s)

    # --- answers ---------------------------------------------------------------------------------

    def _coordinator_url(self) -> str:
        return self._control.coordinator_url or self._options.coordinator_url

    def _ingest_urls(self, topic_name: str, body: bytes) -> list[str]:
        """In the order in which they are asked to take a produce request."""
        topology, turn = self._control.topology, next(self._turn)
        urls = [node.url for node in topology.of_role("ingest") if node.url]
        topic = topology.topic(topic_name)
        if topic is None or topic.placement == "keyed":
            return passing_on.in_turn(urls, turn)
        nodes = {owner.node_id for owner in topology.logs if owner.ref.topic == topic_name}
        takers = [node.url for node in topology.of_role("ingest") if node.id in nodes and node.url]
        others = [url for url in urls if url not in takers]
        return [url for some in (takers, others) for url in passing_on.by_request(some, body, turn)]

    def _health(self) -> Health:
        budget = self._subscriptions.budget
        reasons = deaths.reasons() + ([] if self._control.connected else [DISCONNECTED])
        if budget.taken_bytes >= budget.limit_bytes:
            reasons.append("the memory for what waits is full: subscribers are too slow")
        return judged(
            role="gateway",
            version=release(),
            uptime_s=self._machine.monotonic_s() - self._started_s,
            reasons=reasons,
            stopping=self._stopping,
        )

    def _collect(self) -> None:
        """Bring the metrics up to date, before they are shown."""
        metrics, totals = self._metrics, self._subscriptions.totals
        metrics.show(self._health(), deaths.counts())
        metrics.connected.tell(float(self._control.connected))
        metrics.subscribers.tell(len(self._subscriptions))
        for verdict, count in self._deliveries.verdicts.items():
            metrics.received.tell(count, verdict)
        metrics.sent.tell(totals.sent)
        metrics.replayed.tell(self._subscriptions.catch_up.records)
        metrics.dropped.tell(totals.dropped)
        metrics.repeats_dropped.tell(self._deliveries.repeats)
        metrics.remembered.tell(self._deliveries.remembered)
        for reason, count in totals.resyncs.items():
            metrics.resyncs.tell(count, reason)
        metrics.waiting.tell(totals.depth)
        metrics.waiting_bytes.tell(self._subscriptions.budget.taken_bytes)
        metrics.passed_on_bytes.tell(self._room.taken_bytes)
        metrics.unacknowledged.tell(sum(one.unacknowledged for one in self._subscriptions))

    def _pages(self, *ports: int) -> WebPages:
        options = self._options
        return WebPages.of(
            options.host,
            advertised=options.advertised_host,
            origins=options.origins,
            ports=ports,
        )

    def _reachable(self, port: int) -> str:
        options = self._options
        return reachable(options.host, port, advertised=options.advertised_host)
