"""An ingest node: takes produce requests over HTTP and appends them to the partitions it owns.

The coordinator says which those are; the node opens them, then acknowledges. While the coordinator
is away, it goes on with the last topology. Invariants: an answer with a `seq` means that the record
is on disk; a stop finishes or answers everything that was accepted; a topology is acknowledged
after it was applied, never before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from headgate.answering import HttpApp
from headgate.decide.http.web_pages import WebPages
from headgate.decide.links.passes import Passes, PassKeeper
from headgate.decide.operations.health import http_status
from headgate.errors import HeadgateError
from headgate.metrics.roles import IngestMetrics
from headgate.model.access import ApiToken
from headgate.model.addresses import reachable
from headgate.model.api import Health, ProduceAnswer, ProduceRequest, ProduceResult
from headgate.model.control.from_coordinator import (
    FromCoordinator,
    PushTokens,
    PushTopology,
    Refused,
    Restart,
    Welcome,
)
from headgate.model.control.reports import ConnectorReports, IngestReport
from headgate.model.control.to_coordinator import AckTopology, EpochTooLow, Hello, Recall
from headgate.model.http import JSON, Request, Response, Route, json_response
from headgate.model.settings_api import SettingInfo
from headgate.model.topology import Topology
from headgate.ports.audit import AuditTrail, NoAuditTrail
from headgate.ports.control import ControlSession, HelloSource
from headgate.ports.http import HttpCalls, HttpListener
from headgate.ports.log import LogReader, LogWriter, Retention
from headgate.ports.machine import Machine
from headgate.ports.origin import OpenOrigin
from headgate.services.ingest.connectors.options import IntakeOptions
from headgate.services.ingest.connectors.origin_checks import OriginChecks
from headgate.services.ingest.connectors.readers import Intakes
from headgate.services.ingest.connectors.taking_in import TakingIn
from headgate.services.ingest.produce.peers import ProducePeers
from headgate.services.ingest.produce.shares import ProduceRates, Share, Shares
from headgate.services.ingest.produce.writing import Writing, WritingOptions
from headgate.services.ingest.retention import RetentionLoop, RetentionOptions
from headgate.services.ingest.settled import Settled, SettledPositions
from headgate.services.ingest.vitals import Vitals
from headgate.services.principals import KnownPrincipals
from headgate.services.settings import SettingRoutes
from headgate.tasks import Crew, deaths, first_of
from headgate.telemetry import LogLine

log = structlog.get_logger()

LAST_ANSWERS_S = 1.0
"""What is left for answers on their way when a stop has used up its time."""


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """`advertised_host` is how other nodes reach this one, where that isn't `host`; `origins` are
    those of web pages that may call it."""

    node_id: str
    incarnation: str
    host: str = "127.0.0.1"
    port: int = 0
    port_setting: str = ""
    advertised_host: str = ""
    origins: tuple[str, ...] = ()
    keeper: PassKeeper = field(default_factory=PassKeeper)
    """Knows what other roles have to show."""
    passes: Passes = field(default_factory=Passes)
    rates: ProduceRates = field(default_factory=ProduceRates)
    weight: float = 1.0
    report_every_s: float = 1.0
    stop_timeout_s: float = 10.0
    writing: WritingOptions = field(default_factory=WritingOptions)
    intake: IntakeOptions = field(default_factory=IntakeOptions)
    retention: Retention = field(default_factory=Retention)
    retain_every_s: float = 60.0


class Ingest:
    """Start it once, stop it once; `failed` ends only when the node can't go on. `http` is where it
    is called, `calls` how it calls other nodes, `open_origin` how it reaches what connectors
    read."""

    def __init__(
        self,
        options: IngestOptions,
        *,
        writer: LogWriter,
        reader: LogReader,
        open_session: Callable[[HelloSource], ControlSession],
        settled: SettledPositions,
        http: HttpListener,
        calls: HttpCalls,
        open_origin: OpenOrigin,
        machine: Machine,
        principals: KnownPrincipals | None = None,
        audit: AuditTrail | None = None,
        settings: tuple[SettingInfo, ...] = (),
    ) -> None:
        self._options = options
        self._audit = audit or NoAuditTrail()
        self._shares = Shares(options.rates, options.keeper)
        self._principals = principals
        self._shown = SettingRoutes(options.node_id, "ingest", settings)
        self._origins = OriginChecks(open_origin)
        self._writer = writer
        self._reader = reader
        self._open_session = open_session
        self._machine = machine
        self._now_s = machine.monotonic_s
        self._settled = Settled(settled)
        self._calls = calls
        self._writing = Writing(
            options.writing,
            node_id=options.node_id,
            writer=writer,
            reader=reader,
            settled=self._settled,
            peers=ProducePeers(calls, options.passes.headers("ingest")),
            machine=machine,
        )
        self._partitions = self._writing.partitions
        self._taking_in = TakingIn(
            self._partitions,
            self._writing.appends,
            calls,
            headers=options.passes.headers("ingest"),
        )
        self._intakes = Intakes(
            options.node_id,
            open_origin,
            partitions=self._partitions,
            taking_in=self._taking_in,
            reader=reader,
            machine=machine,
            options=options.intake,
        )
        self._metrics = IngestMetrics()
        self._vitals = Vitals(self._writing, self._settled, machine=machine)
        self._http = http
        self._session: ControlSession | None = None
        self._crew = Crew("ingest")
        self._unapplied: Topology | None = None
        self._applying = asyncio.Lock()
        self._restart = asyncio.Event()
        self.url = ""

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Listen, then connect to the coordinator; returns the address that was bound."""
        options = self._options
        pages = WebPages.of(
            options.host, advertised=options.advertised_host, origins=options.origins
        )
        port = await self._http.start(
            HttpApp(self.routes(), pages, self._principals, options.keeper, self._audit),
            options.host,
            options.port,
            setting=options.port_setting,
        )
        reached = reachable(options.host, port, advertised=options.advertised_host)
        self.url = f"http://{reached}"
        self._session = self._open_session(self._hello)
        self._crew.need("control", self._listen(self._session))
        self._crew.need("http", self._http.failed())
        self._crew.keep("report", partial(self._report, self._session))
        self._crew.keep("retention", self._retention().run)
        return self.url

    @property
    def is_to_restart(self) -> bool:
        """Whether an operator wants this process to begin anew."""
        return self._restart.is_set()

    async def failed(self) -> None:
        """Waits for as long as the node can go on, and raises what keeps it from doing so; returns
        when it is to begin anew."""
        await first_of(self._crew.failed(), self._restart.wait())

    async def stop(self, *, returns: bool = False) -> None:
        """Refuse what is new, finish what was accepted, give everything back, unless it
        `returns`."""
        timeout_s = self._options.stop_timeout_s
        deadline_s = self._now_s() + timeout_s
        self._vitals.stopping = True
        await self._intakes.stop()
        if not await self._writing.stop(timeout_s=timeout_s):
            log.warning(LogLine.APPEND_FAILED, reason=f"writes still open after {timeout_s:g} s")
        await self._http.stop(max(LAST_ANSWERS_S, deadline_s - self._now_s()))
        await self._crew.close()
        if self._principals is not None:
            await self._principals.close()
        if self._session is not None:
            await self._session.close(returns=returns)
        self._writing.close()
        await self._calls.close()
        await self._writer.close()
        await self._reader.close()

    def _retention(self) -> RetentionLoop:
        options = self._options
        return RetentionLoop(
            RetentionOptions(
                options.retention, options.retain_every_s, options.writing.idempotency_ttl_s
            ),
            writer=self._writer,
            partitions=self._partitions,
            settled=self._settled,
            machine=self._machine,
        )

    # --- the coordinator -------------------------------------------------------------------------

    def _hello(self) -> Hello:
        return Hello(
            role="ingest",
            node_id=self._options.node_id,
            incarnation=self._options.incarnation,
            url=self.url,
            pid=self._machine.pid(),
            owns=self._partitions.owns(),
            generation=self._partitions.generation,
            weight=self._options.weight,
            intakes=self._intakes.owned(),
        )

    async def _listen(self, session: ControlSession) -> None:
        async for message in session.messages():
            await self._on_message(session, message)

    async def _on_message(self, session: ControlSession, message: FromCoordinator) -> None:
        match message:
            case Welcome(learning=learning, tokens=tokens, tokens_revision=revision):
                if learning:
                    await session.send(Recall(self._partitions.topology, *self._tokens()))
                self._learn(tokens, revision)
                await session.send(self._extents())
            case PushTopology(topology=topology):
                self._unapplied = topology
                await self._apply(session)
            case PushTokens(tokens, revision):
                self._learn(tokens, revision)
            case Restart():
                self._restart.set()
            case Refused(reason=reason):
                # The session tries again: the node that has our name may be a former life of ours.
                log.warning(LogLine.REFUSED, reason=reason)
            case _:
                pass  # Meant for other roles.

    def _learn(self, tokens: tuple[ApiToken, ...], revision: int) -> None:
        if self._principals is not None:
            self._principals.learn(tokens, revision)

    def _tokens(self) -> tuple[tuple[ApiToken, ...], int]:
        return ((), 0) if self._principals is None else self._principals.told

    async def _apply(self, session: ControlSession) -> None:
        """Adopt the newest topology, then acknowledge; what fails is tried again with a report."""
        async with self._applying:
            topology, partitions = self._unapplied, self._partitions
            if topology is None:
                return
            is_open = await partitions.adopt(topology)
            await self._intakes.adopt(topology)
            undropped = tuple(sorted(partitions.undropped))
            if self._unapplied is topology and is_open and not undropped:
                self._unapplied = None
                log.info(LogLine.TOPOLOGY_APPLIED, generation=partitions.generation)
            await self._say_too_low(session)
            unopened = () if is_open else partitions.unopened()
            acknowledged = AckTopology(
                partitions.generation,
                undropped=undropped,
                unopened=unopened,
                sealed=partitions.sealed(),
            )
            await session.send(acknowledged)
            await session.send(self._extents())

    def _extents(self) -> IngestReport:
        return IngestReport(self._partitions.heads(), self._partitions.earliest())

    async def _say_too_low(self, session: ControlSession) -> None:
        for ref, epoch in self._partitions.too_low():
            await session.send(EpochTooLow(ref, epoch))
        for too_low in self._intakes.too_low():
            await session.send(too_low)

    async def _report(self, session: ControlSession) -> None:
        while True:
            await asyncio.sleep(self._options.report_every_s)
            await session.send(self._extents())
            if reports := self._intakes.reports():
                await session.send(ConnectorReports(reports))
            await self._vitals.look()
            async with self._applying:
                await self._partitions.open_again()
                await self._partitions.look_back()
            await self._say_too_low(session)
            if self._unapplied is not None:
                await self._apply(session)

    # --- HTTP ------------------------------------------------------------------------------------

    def routes(self) -> list[Route]:
        return [
            *self._taking_in.routes(),
            *self._origins.routes(),
            *self._shown.table(),
            Route(
                "POST",
                "/v1/topics/{name}/produce",
                self._answer_produce,
                summary="Append events to a topic.",
                request=ProduceRequest,
                response=ProduceAnswer,
                accepts=(JSON,),
            ),
            Route(
                "GET",
                "/health",
                self._show_health,
                summary="How this node is.",
                response=Health,
                also_status=503,
            ),
            Route(
                "GET",
                "/metrics",
                self._show_metrics,
                summary="Counters and timings, in Prometheus' text format.",
                response_content_type="text/plain",
            ),
        ]

    async def _answer_produce(self, request: Request) -> Response:
        started_s = self._now_s()
        try:
            share = self._shares.of(request)
            if not share.who:
                results = await self._writing.produce.handle(request)
            else:
                results = await self._within(share, request)
        except HeadgateError as error:
            self._metrics.produce_errors.labels(error.code).inc()
            raise
        finally:
            self._metrics.produce_latency.observe(self._now_s() - started_s)
        failed = [result.error.code for result in results if result.error is not None]
        self._metrics.appends.labels(request.params["name"]).inc(len(results) - len(failed))
        for code in failed:
            self._metrics.produce_errors.labels(code).inc()
        return json_response(ProduceAnswer(results))

    async def _within(self, share: Share, request: Request) -> list[ProduceResult]:
        """What is counted of a request counts from its arrival on, also if it fails."""
        shares, now_s = self._shares, self._now_s()
        shares.check(share, now_s)
        shares.take(share, now_s, events=1)
        counted = shares.counted(share, request, self._now_s)
        results = await self._writing.produce.handle(counted)
        shares.take(share, self._now_s(), events=len(results) - 1)
        return results

    def _health(self) -> Health:
        return self._vitals.health(
            connected=self._session is not None and self._session.connected,
            unapplied=self._unapplied is not None,
        )

    async def _show_health(self, _request: Request) -> Response:
        health = self._health()
        return json_response(health, http_status(health))

    async def _show_metrics(self, _request: Request) -> Response:
        metrics = self._metrics
        metrics.show(self._health(), deaths.counts())
        metrics.connected.tell(float(self._session is not None and self._session.connected))
        metrics.waiting.tell(self._writing.appends.events_waiting)
        metrics.waiting_bytes.tell(self._writing.appends.room.taken_bytes)
        metrics.head.forget()
        for ref, head in self._partitions.heads():
            metrics.head.tell(head, ref.topic, str(ref.partition))
        return Response(200, metrics.exposed(), metrics.content_type)
