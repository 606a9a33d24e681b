"""A coordinator process: it listens, campaigns, and for as long as it leads, decides.

Where there are several, the others keep their streams short: they name the leader and hang up. A
leader that loses its leadership, or its store, or fails in a decision, gives the leadership back,
forgets what it knew and campaigns again, after a pause that grows with every failure in a row and
is bounded; /health says what happened. Where there is only one, a store that only an operator can
mend ends the process instead, for its supervisor to see.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from headgate.answering import HttpApp
from headgate.decide.coordination.cluster import Cluster
from headgate.decide.coordination.failures import TermFailures
from headgate.decide.coordination.members.members import Balance, Timing
from headgate.decide.coordination.registry.quotas import Quotas
from headgate.decide.http.web_pages import WebPages
from headgate.decide.links.passes import PassKeeper
from headgate.decide.operations.supervision import RestartPolicy
from headgate.errors import Fenced, HeadgateError, NotNow, OperatorError, PortInUse
from headgate.model.addresses import ANY_HOST
from headgate.model.control.from_coordinator import NotLeader, Refused
from headgate.model.control.to_coordinator import Hello
from headgate.model.event import PartitionRef
from headgate.model.leader import Leader
from headgate.model.settings_api import SettingInfo
from headgate.model.stored import StoredState
from headgate.ports.audit import AuditTrail, NoAuditTrail
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.control import ControlListener, ControlStream
from headgate.ports.coordination import CoordinationStore
from headgate.ports.election import Election, Leadership
from headgate.ports.http import HttpListener
from headgate.ports.letters import LetterStore
from headgate.ports.log import LogReader
from headgate.ports.machine import Machine
from headgate.services.coordinator.evidence import EvidenceRoutes
from headgate.services.coordinator.groups import GroupRoutes
from headgate.services.coordinator.letters import LetterRoutes
from headgate.services.coordinator.routes import CoordinatorRoutes
from headgate.services.coordinator.sweeping import sweep_letters
from headgate.services.coordinator.term import Term
from headgate.services.principals import KnownPrincipals
from headgate.tasks import Crew, first_of
from headgate.telemetry import LogLine

log = structlog.get_logger()

STOP_TIMEOUT_S = 10.0
"""Longest wait for the end of a term; an election that can't be told then waits for the lease."""
AGAIN_S = 1.0
"""Between the end of a term that didn't fail and the next campaign."""
PATIENCE = RestartPolicy(initial_s=1.0, max_s=15.0, stable_s=60.0)
"""Between a term that failed and the next campaign."""
REASON_CHARS = 300
"""Of an error that isn't written for people; the log has all of it."""
KEY_BYTES = 32
NO_STREAMS = "clients that need a token ask GET /v1/topology, at a gateway"
KEPT_OUT = "its messages have ended several terms of the coordinator; see the coordinator's log"


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """`ports` are the gRPC ports: routers and ingest nodes on the first, gateways on the second.

    `advertised_host` is how others reach this coordinator, where that isn't `host`. `alone` says
    that there is no other that could take over; `origins` are those of web pages that may call it.
    `keeper` knows what nodes have to show.
    """

    node_id: str
    host: str
    ports: tuple[int, int]
    http_port: int
    timing: Timing
    default_partitions: int
    balance: Balance = field(default_factory=Balance)
    quotas: Quotas = field(default_factory=Quotas)
    advertised_host: str = ""
    origins: tuple[str, ...] = ()
    keeper: PassKeeper = field(default_factory=PassKeeper)
    alone: bool = True
    dead_letters_max_age_s: float = 7 * 86_400.0
    patience: RestartPolicy = PATIENCE


@dataclass(frozen=True, slots=True)
class CoordinatorPorts:
    """What a coordinator needs from outside; a term opens its store under its leadership. `http` is
    where it is asked and told what to do, by anybody where there are no `principals`."""

    election: Election
    open_store: Callable[[Leadership], CoordinationStore]
    checkpoints: CheckpointStore
    reader: LogReader
    letters: LetterStore
    http: HttpListener
    control: ControlListener
    machine: Machine
    principals: KnownPrincipals | None = None
    audit: AuditTrail = field(default_factory=NoAuditTrail)
    leave_key: Callable[[str, str], None] | None = None
    """Leaves the coordinator's address, and a key that makes its holder an administrator there,
    where only users find it that may do everything on this machine anyhow."""
    settings: tuple[SettingInfo, ...] = ()
    """What it runs with, to be told on request."""


class Coordinator:
    """`start`, then serve until `stop`; `failed` ends when it can't go on."""

    def __init__(self, settings: CoordinatorSettings, ports: CoordinatorPorts) -> None:
        self._settings = settings
        self._ports = ports
        self._streams: dict[int, ControlStream] = {}
        self._next_session = 1
        self._failures = TermFailures(settings.patience)
        self._began_s = 0.0
        self._routes = CoordinatorRoutes(
            node_id=settings.node_id,
            default_partitions=settings.default_partitions,
            term=self._leading,
            failures=self._failures,
            machine=ports.machine,
            principals=ports.principals,
            settings=ports.settings,
            letters=LetterRoutes(
                ports.letters,
                check_leads=self._leading,
                on_revived=self._letters_revived,
                is_target=self._is_target,
                machine=ports.machine,
            ),
            evidence=EvidenceRoutes(self._leading, ports.letters, ports.machine),
            groups=GroupRoutes(self._leading, ports.checkpoints, ports.reader),
        )
        self._term: Term | None = None
        self._leader: Leader | None = None
        self._crew = Crew("coordinator")
        self._settled = asyncio.Event()

    def _is_target(self, name: str) -> bool:
        return self._leading().cluster.groups.is_target_name(name)

    async def _letters_revived(self, refs: frozenset[PartitionRef]) -> None:
        term = self._leading()
        await term.apply(lambda _: term.cluster.letters_revived(refs))

    @property
    def client_address(self) -> str:
        """Where clients open control streams; empty before the start."""
        return self._routes.client_address

    async def start(self) -> str:
        """Returns the address of its HTTP interface, once it leads or knows who does."""
        settings = self._settings
        host = settings.advertised_host or settings.host
        pages = WebPages.of(
            settings.host, advertised=settings.advertised_host, origins=settings.origins
        )
        http_port = await self._ports.http.start(
            HttpApp(
                self._routes.table(),
                pages,
                self._ports.principals,
                settings.keeper,
                self._ports.audit,
            ),
            settings.host,
            settings.http_port,
            setting="coordinator.http_port",
        )
        try:
            _, client_port = await self._ports.control.start(
                self._serve, settings.host, list(settings.ports)
            )
        except OSError as error:
            raise PortInUse(
                f"one of the ports {settings.ports} on {settings.host} is in use; stop what "
                "listens there or set coordinator.router_port and coordinator.consumer_port"
            ) from error
        self._routes.url = url = f"http://{host}:{http_port}"
        # Nobody can connect to the address that stands for all of a machine's.
        control = "" if host in ANY_HOST else f"{host}:{client_port}"
        if not settings.keeper.asks:  # clients have no pass, and needn't try without one
            self._routes.client_address = control
        candidate = Leader(settings.node_id, url, control)
        if self._ports.principals is not None:
            self._ports.principals.forget(self._not_leading)
        await self._leave_key(url)
        self._crew.need("http", self._ports.http.failed())
        self._crew.need("leading", self._lead(candidate))
        self._crew.need("observing", self._observe())
        await first_of(self._settled.wait(), self._crew.failed())
        return url

    async def _leave_key(self, url: str) -> None:
        principals, leave = self._ports.principals, self._ports.leave_key
        if principals is not None and leave is not None:
            key = self._ports.machine.token(KEY_BYTES)
            principals.trust_locally(key)
            await self._ports.machine.offload(partial(leave, url, key))

    async def failed(self) -> None:
        """Waits for as long as the coordinator works; raises what keeps it from doing so."""
        await self._crew.failed()

    is_to_restart = False
    """A coordinator is never told to restart: it owns nothing that would have to wait for it."""

    async def stop(self, grace_s: float = 2.0, *, returns: bool = False) -> None:
        """Carry out what was decided, give the leadership back, leave; bounded at every step. One
        that `returns` does no more: another may lead meanwhile."""
        del returns
        self._routes.vitals.stopping = True
        self._crew.cancel()
        self._hang_all()
        await self._crew.close(timeout_s=STOP_TIMEOUT_S)
        await self._ports.control.stop(grace_s)
        await self._ports.http.stop(grace_s)
        if self._ports.principals is not None:
            await self._ports.principals.close()
        await self._ports.checkpoints.close()
        await self._ports.reader.close()
        await self._ports.letters.close()

    # --- leading -------------------------------------------------------------------------------

    async def _lead(self, candidate: Leader) -> None:
        while True:
            leadership = await self._ports.election.campaign(candidate)
            await asyncio.sleep(await self._one_term(leadership))

    async def _one_term(self, leadership: Leadership) -> float:
        """Lead until it is over; returns how long to wait before the next campaign."""
        ports = self._ports
        term = Term(
            leadership,
            ports.open_store(leadership),
            ports.checkpoints,
            ports.letters,
            ports.reader,
            ports.machine,
            self._streams,
        )
        self._began_s = ports.machine.monotonic_s()
        try:
            await self._lead_until_over(term, leadership)
        except Fenced as error:
            if self._settings.alone:
                raise
            log.error(LogLine.LEADERSHIP_LOST, reason=error.message)
        except Exception as error:
            if self._settings.alone and isinstance(error, OperatorError):
                raise
            return self._failed(term, error)
        finally:
            self._term = None
            if ports.principals is not None:
                ports.principals.forget(self._not_leading)
            self._hang_all()
            await term.end()
        return AGAIN_S

    async def _lead_until_over(self, term: Term, leadership: Leadership) -> None:
        await term.begin(self._new_cluster)
        self._term = term
        if (principals := self._ports.principals) is not None:
            principals.learn(tuple(term.cluster.tokens.values()), term.cluster.tokens_revision)
        log.info(LogLine.LEADS, revision=leadership.revision, boot=term.cluster.stored.boot)
        self._settled.set()
        letters, max_age_s = self._ports.letters, self._settings.dead_letters_max_age_s
        async with Crew("coordinator") as crew:
            sweep = partial(
                sweep_letters,
                letters,
                max_age_s=max_age_s,
                left_behind=term.left_behind,
                swept=term.letters_swept,
                machine=self._ports.machine,
            )
            crew.keep("sweeping", sweep)
            await term.over()

    def _failed(self, term: Term, error: Exception) -> float:
        """A term ended by an error; returns how long to wait before the next campaign."""
        now_s = self._ports.machine.monotonic_s()
        reason = error.message if isinstance(error, HeadgateError) else repr(error)[:REASON_CHARS]
        by, ran_s = term.ended_by, now_s - self._began_s
        pause_s = self._failures.failed(reason, by=by, ran_s=ran_s, now_s=now_s)
        log.error(
            LogLine.TERM_FAILED,
            reason=reason,
            said_by="" if by is None else f"{by.role} {by.node_id}",
            failures=self._failures.count,
            again_in_s=pause_s,
            exc_info=error,
        )
        return pause_s

    async def _observe(self) -> None:
        async for leader in self._ports.election.observe():
            self._leader = leader
            if leader is not None and leader.node_id != self._settings.node_id:
                self._settled.set()

    def _new_cluster(self, stored: StoredState, now_ms: int) -> Cluster:
        settings = self._settings
        return Cluster(
            stored,
            settings.timing,
            settings.node_id,
            now_ms,
            balance=settings.balance,
            quotas=settings.quotas,
            url=self._routes.url,
        )

    def _leading(self) -> Term:
        if self._term is not None and not self._term.is_over:
            return self._term
        raise self._not_leading()

    def _not_leading(self) -> NotNow:
        leader = self._leader
        if leader is not None and leader.node_id == self._settings.node_id:
            leader = None  # until another one is: its term is over, or hasn't begun
        where = "" if leader is None else f"; ask {leader.url}"
        return NotNow(
            f"this coordinator doesn't lead{where}", leader="" if leader is None else leader.url
        )

    # --- streams -------------------------------------------------------------------------------

    async def _serve(self, stream: ControlStream, hello: Hello) -> None:
        term = self._term
        if hello.role == "client" and self._ports.principals is not None:
            stream.send(Refused(NO_STREAMS))
            stream.hang()
            await stream.write_until_hung()
            return
        if term is None or term.is_over or self._is_kept_out(hello):
            self._turn_away(stream, hello)
            await stream.write_until_hung()
            return
        session, self._next_session = self._next_session, self._next_session + 1
        self._streams[session] = stream
        bound = log.bind(node=hello.node_id, node_role=hello.role, session=session)
        bound.info(LogLine.CONNECTED, window=hello.window, attempt=hello.attempt)
        try:
            with contextlib.suppress(HeadgateError):  # the term is over, and says why
                await term.serve(session, stream, hello)
        finally:
            del self._streams[session]
            bound.info(LogLine.DISCONNECTED)

    def _is_kept_out(self, hello: Hello) -> bool:
        ran_s = self._ports.machine.monotonic_s() - self._began_s
        return self._failures.keeps_out(hello, ran_s=ran_s)

    def _turn_away(self, stream: ControlStream, hello: Hello) -> None:
        if hello.role not in ("lane", "client") and self._is_kept_out(hello):
            stream.send(Refused(KEPT_OUT))
        else:  # a lane goes on with what it has, as it does without a coordinator
            stream.send(NotLeader("" if self._leader is None else self._leader.control))
        stream.hang()

    def _hang_all(self) -> None:
        for stream in self._streams.values():
            stream.hang()
