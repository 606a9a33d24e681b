"""Where a gateway takes deliveries: one listener, of the protocol that the configuration names.

Invariant: what `start` returns is the address to announce; its scheme says how to deliver there.
A sender without the right token gets one sentence, the log gets one line per peer, and the audit
trail gets every one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from headgate.adapters.delivery_outcome import taken
from headgate.adapters.http.delivery import delivery_routes
from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.decide.http.web_pages import WebPages, is_loopback
from headgate.decide.links.concealing import without_credentials
from headgate.decide.links.passes import Caller, PassKeeper, of_bearer
from headgate.decide.operations.auditing import role_line
from headgate.errors import HeadgateError, InvalidConfig, OperatorError, Unauthorized
from headgate.model.addresses import reachable
from headgate.model.delivery import Batch, DeliveryAnswer
from headgate.ports.audit import AuditTrail, NoAuditTrail
from headgate.ports.transport import Accept, DeliveryListener
from headgate.telemetry import LogLine

log = structlog.get_logger()

PORT_SETTING = "gateway.client_port"
LANES: tuple[Caller, ...] = ("lane",)
"""The roles that deliver."""
PEERS_MAX = 1_000
"""Peers that the log is told about."""


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """`keeper` knows what lanes have to show; where it asks for nothing, that is `token`, which is
    also the one of NATS. `certificate` and `key` are the files of a server that speaks TLS;
    `authority` is the one that vouches for NATS. A port of 0 takes any free one."""

    protocol: str = "http"
    host: str = "127.0.0.1"
    port: int = 0
    advertised_host: str = ""
    keeper: PassKeeper = field(default_factory=PassKeeper)
    token: str = ""
    certificate: str = ""
    key: str = ""
    authority: str = ""
    nats: str = ""
    nats_prefix: str = "headgate.deliver"
    audit: AuditTrail = field(default_factory=NoAuditTrail, compare=False)

    @property
    def secure(self) -> bool:
        return bool(self.certificate)

    @property
    def guard(self) -> Guard:
        """Of a listener that lanes reach without a server in between."""
        keeper = self.keeper if self.keeper.asks else PassKeeper.of_secret(self.token, LANES)
        return Guard(keeper, self.audit)


def listener_for(
    options: ListenerOptions, node_id: str, accept: Accept, *, incarnation: str
) -> DeliveryListener:
    accept = _answering(accept)
    match options.protocol:
        case "grpc":
            return GrpcListener(options, accept)
        case "nats":
            return NatsListener(options, node_id, accept, incarnation=incarnation)
    return HttpListener(options, accept)


def _answering(accept: Accept) -> Accept:
    """Whatever goes wrong is an answer: a sender that gets none waits for its timeout."""

    async def answer(batch: Batch) -> DeliveryAnswer:
        try:
            return await taken(accept, batch)
        except HeadgateError:
            raise
        except Exception as error:
            log.exception(LogLine.UNEXPECTED)
            raise HeadgateError("something went wrong at the gateway; its log says what") from error

    return answer


class HttpListener:
    def __init__(self, options: ListenerOptions, accept: Accept) -> None:
        self._options = options
        # Lanes are no web pages: none may deliver, whatever its origin.
        pages = WebPages.of(options.host, advertised=options.advertised_host)
        self._app = HttpApp(delivery_routes(accept, options.guard), pages)
        files = [Path(file) for file, _ in tls_files(options)]
        self._server = HttpServer(*files)

    async def start(self) -> str:
        options = self._options
        warn_if_open(options)
        for file, setting in tls_files(options):
            read_file(file, setting)
        port = await self._server.start(self._app, options.host, options.port, setting=PORT_SETTING)
        return f"{'https' if options.secure else 'http'}://{_address(options, port)}"

    async def stop(self, timeout_s: float) -> None:
        await self._server.stop(timeout_s)

    async def failed(self) -> None:
        await self._server.failed()


class GrpcListener:
    def __init__(self, options: ListenerOptions, accept: Accept) -> None:
        from headgate.adapters.grpc.delivery import GrpcDeliveryServer

        self._options = options
        self._server = GrpcDeliveryServer(accept, options.guard)

    async def start(self) -> str:
        options = self._options
        warn_if_open(options)
        files = [read_file(file, setting) for file, setting in tls_files(options)]
        certificate, key = files or (b"", b"")
        port = await self._server.start(
            options.host, options.port, setting=PORT_SETTING, certificate=certificate, key=key
        )
        return f"{'grpcs' if options.secure else 'grpc'}://{_address(options, port)}"

    async def stop(self, _timeout_s: float) -> None:
        await self._server.stop()

    async def failed(self) -> None:
        await asyncio.Event().wait()  # gRPC's server ends when it is told to, and no sooner


class NatsListener:
    """NATS itself checks its token and speaks TLS: both are of the connection to it. A lane's pass
    comes with every batch, because every client of NATS may send to a subject.

    A subject, unlike a port, may have several listeners, so it names the process: another one of
    the same name, which the coordinator refuses or has given up, knows none of the subscribers here
    and would say that nobody wants a record, which settles it.
    """

    def __init__(
        self, options: ListenerOptions, node_id: str, accept: Accept, *, incarnation: str
    ) -> None:
        try:
            from headgate.adapters.nats.delivery import NatsDeliveryServer
        except ImportError as error:
            raise InvalidConfig(
                "routing.delivery.protocol nats needs nats-py, which isn't installed: "
                f"run pip install 'headgate[nats]' ({error})",
                key="routing.delivery.protocol",
            ) from error
        self._options = options
        self._subject = f"{options.nats_prefix}.{node_id}.{incarnation}"
        self._server = NatsDeliveryServer(
            accept,
            options.nats,
            name=node_id,
            token=options.token,
            authority=options.authority,
            admit=Guard(options.keeper, options.audit) if options.keeper.asks else None,
        )

    async def start(self) -> str:
        try:
            return await self._server.start(self._subject, self._lost)
        except TimeoutError as error:
            where = without_credentials(self._options.nats)
            raise OperatorError(f"NATS at {where} doesn't answer") from error

    async def stop(self, _timeout_s: float) -> None:
        await self._server.stop()

    async def failed(self) -> None:
        await self._server.failed()

    def _lost(self, error: HeadgateError) -> None:
        log.warning(LogLine.TRANSPORT_LOST, error=error.message)


class Guard:
    """Lets in lanes; where nothing is asked, everybody."""

    def __init__(self, keeper: PassKeeper, audit: AuditTrail | None = None) -> None:
        self._keeper = keeper
        self._audit = audit or NoAuditTrail()
        self._told: set[str] = set()

    @property
    def asks(self) -> bool:
        return self._keeper.asks

    def __call__(self, given: str, peer: str) -> None:
        if self._keeper.admits(of_bearer(given), LANES):
            return
        if peer not in self._told and len(self._told) < PEERS_MAX:
            self._told.add(peer)
            log.warning(LogLine.TOKEN_REFUSED, peer=peer, given=bool(given))
        error = Unauthorized(
            "the token is missing or wrong: set security.cluster.tokens as this gateway has (or "
            "transport.token, without a cluster token)"
        )
        role = self._keeper.caller(of_bearer(given)) or ""
        self._audit.note(role_line("delivery", error, role=role, address=peer))
        raise error


def warn_if_open(options: ListenerOptions) -> None:
    if not options.guard.asks and not is_loopback(options.host):
        log.warning(
            LogLine.TRANSPORT_OPEN,
            address=options.host,
            hint="anybody who reaches gateway.client_address can deliver: set "
            "security.cluster.tokens",
        )


def tls_files(options: ListenerOptions) -> list[tuple[str, str]]:
    """Each file with the setting that names it, the certificate first."""
    if not options.secure:
        return []
    return [(options.certificate, "transport.tls_certificate"), (options.key, "transport.tls_key")]


def read_file(name: str, setting: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise OperatorError(f"can't read {setting} {name}: {error.strerror}") from error


def _address(options: ListenerOptions, port: int) -> str:
    return reachable(options.host, port, advertised=options.advertised_host)
