"""The control stream over gRPC: one bidirectional stream of opaque bytes per node, which gRPC only
frames and multiplexes. What is said on it, and when, is adapters/control_stream.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeGuard

import grpc
import structlog

from headgate.adapters.control_stream import StreamSession, serve_pipe
from headgate.adapters.delivery_wire import AUTHORIZATION
from headgate.adapters.machine import THIS_MACHINE
from headgate.decide.links.passes import PassKeeper, bearer, of_bearer
from headgate.decide.operations.auditing import role_line
from headgate.errors import Unauthorized
from headgate.model.control.to_coordinator import Hello
from headgate.ports.audit import AuditTrail, NoAuditTrail
from headgate.ports.control import Serve
from headgate.telemetry import LogLine

log = structlog.get_logger()

METHOD = "/headgate.Control/Session"
PING_EVERY_S = 5
PONG_WITHIN_S = 3
NOTICED_S = float(PING_EVERY_S + PONG_WITHIN_S)
"""Within that time a session that is cut off knows it."""
CHANNEL_OPTIONS = [
    ("grpc.keepalive_time_ms", PING_EVERY_S * 1_000),
    ("grpc.keepalive_timeout_ms", PONG_WITHIN_S * 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 256 << 20),
    # Each session has its own connection: a broken one must not be shared with its successor.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
NOT_OF_HERE = (
    "this coordinator asks for the cluster token, and it is missing or another one: set "
    "security.cluster.tokens as the coordinator has"
)
HANDSHAKE_S = 10
"""For so long a connection may take to become one of HTTP/2."""
UNUSED_S = 60
"""For so long it may be without a session."""
PEERS_MAX = 1_000
"""Of those that show no pass, that the log is told about."""
STREAM_ENDED = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What gRPC raises when the other end is gone: a call's status, which is no BaseError, what a
servicer's context says, and what either says of a stream that had ended before."""


class GrpcPipe:
    """Implements adapters.control_stream.NodePipe, and a coordinator's Pipe, on gRPC's end of it:
    a call or a servicer's context. `on_refused` hears why the other end lets nobody in who shows
    what we do."""

    def __init__(self, stream: Any, on_refused: Callable[[str], None] | None = None) -> None:
        self._stream = stream
        self._on_refused = on_refused

    async def read(self) -> bytes | None:
        try:
            data = await self._stream.read()
        except STREAM_ENDED as error:
            raise self._ended(error) from error
        return None if data is grpc.aio.EOF else data

    async def write(self, data: bytes) -> None:
        try:
            await self._stream.write(data)
        except STREAM_ENDED as error:
            raise self._ended(error) from error

    async def done_writing(self) -> None:
        try:
            await self._stream.done_writing()
        except STREAM_ENDED as error:
            raise self._ended(error) from error

    def _ended(self, error: BaseException) -> ConnectionResetError:
        if self._on_refused is not None and _is_refusal(error):
            self._on_refused(error.details() or "")
        return ConnectionResetError(str(error))


def _is_refusal(error: BaseException) -> TypeGuard[grpc.aio.AioRpcError]:
    if not isinstance(error, grpc.aio.AioRpcError):
        return False
    return error.code() is grpc.StatusCode.UNAUTHENTICATED


@asynccontextmanager
async def dial(
    address: str, *, shown: str = "", on_refused: Callable[[str], None] | None = None
) -> AsyncIterator[GrpcPipe]:
    metadata = ((AUTHORIZATION, bearer(shown)),) if shown else None
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        yield GrpcPipe(channel.stream_stream(METHOD)(metadata=metadata), on_refused)


class GrpcControlSession(StreamSession):
    """A node's side; implements ports.control.ControlSession. `shown` is its pass.

    A coordinator that doesn't take the pass is as good as away, so that lanes and routers go on
    with what they have while an operator mends it; the log says so once.
    """

    def __init__(self, addresses: str, hello: Callable[[], Hello], *, shown: str = "") -> None:
        self._is_refused = False
        super().__init__(
            addresses,
            hello,
            partial(dial, shown=shown, on_refused=self._refused),
            jitter=THIS_MACHINE.jitter,
        )

    def _refused(self, reason: str) -> None:
        if not self._is_refused:
            self._is_refused = True
            log.error(LogLine.PASS_REFUSED, by="coordinator", reason=reason)


class GrpcControlServer:
    """Implements ports.control.ControlListener. `keeper` knows what nodes have to show: a caller
    without a pass that counts is sent away before a word of it is read, which stands in `audit`."""

    def __init__(self, keeper: PassKeeper | None = None, audit: AuditTrail | None = None) -> None:
        self._keeper = keeper or PassKeeper()
        self._audit = audit or NoAuditTrail()
        self._told: set[str] = set()
        self._serve: Serve | None = None
        self._server: grpc.aio.Server | None = None
        self._large = asyncio.Lock()

    async def start(self, serve: Serve, host: str, ports: list[int]) -> list[int]:
        self._serve = serve
        options = [*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)]
        options += [
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 2_000),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_S * 1_000)),
            ("grpc.max_connection_idle_ms", round(UNUSED_S * 1_000)),
        ]
        server = grpc.aio.server(options=options)
        handler = grpc.method_handlers_generic_handler(
            "headgate.Control", {"Session": grpc.stream_stream_rpc_method_handler(self._session)}
        )
        server.add_generic_rpc_handlers((handler,))
        bound = []
        for port in ports:
            try:
                bound.append(server.add_insecure_port(f"{host}:{port}"))
            except RuntimeError as error:
                raise OSError(f"can't listen on {host}:{port}") from error
        await server.start()
        self._server = server
        return bound

    async def stop(self, grace_s: float) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)

    async def _session(self, _request: Any, context: Any) -> None:
        assert self._serve is not None, "it has started"
        caller = None
        if self._keeper.asks:
            caller = self._keeper.caller(_shown(context))
            if caller is None:
                self._tell(context.peer())
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, NOT_OF_HERE)
        await serve_pipe(
            GrpcPipe(context),
            self._serve,
            self._large,
            caller=caller,
            on_other_role=partial(self._tell_role, context.peer(), caller or ""),
        )

    def _tell(self, peer: str) -> None:
        """Log a refusal once per machine, from any of its ports."""
        host = peer.rpartition(":")[0]
        self._audit.note(role_line("control stream", Unauthorized(NOT_OF_HERE), address=host))
        if host not in self._told and len(self._told) < PEERS_MAX:
            self._told.add(host)
            log.warning(LogLine.TOKEN_REFUSED, peer=host, at="control stream")

    def _tell_role(self, peer: str, caller: str, error: Unauthorized) -> None:
        host = peer.rpartition(":")[0]
        self._audit.note(role_line("control stream", error, role=caller, address=host))


def _shown(context: Any) -> str:
    given = dict(context.invocation_metadata() or ()).get(AUTHORIZATION, "")
    return of_bearer(given) if isinstance(given, str) else ""
