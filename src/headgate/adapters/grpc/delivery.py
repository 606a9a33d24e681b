"""Batches over gRPC: streams to each gateway that stay open, with one batch under way on each.

A stream serves one call of `deliver` at a time and goes back to its gateway's idle ones when the
answer is there. One that failed, or whose caller left, is cancelled and never used again: an answer
that comes late can't be taken for the next one's. Bound: as many streams to a gateway as there are
calls at the same time, and connections to at most `GATEWAYS_MAX` gateways.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import grpc

from headgate.adapters.delivery_outcome import Refusal, UnderWay, no_answer, refused
from headgate.adapters.delivery_wire import (
    AUTHORIZATION,
    MAX_BATCH_BYTES,
    NODE_HEADER,
    Admit,
    Outgoing,
    encode_lines,
)
from headgate.adapters.grpc.streamer import DELIVER, SERVICE, ack_of, encode, read_ack
from headgate.decide.links.passes import bearer
from headgate.errors import HeadgateError, OperatorError, PortInUse, Unauthorized
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch
from headgate.ports.transport import Accept, Meanwhile

GATEWAYS_MAX = 1_024
OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MAX_BATCH_BYTES),
    ("grpc.max_send_message_length", MAX_BATCH_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A gateway that is back should be found soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # How long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
)
SERVER_OPTIONS: Sequence[tuple[str, int]] = (
    *OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    # Against clients that connect and say nothing, or say what HTTP/2 begins with and deliver
    # nothing; a lane's connection always has a stream of its own.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 60_000),
)


class _Gateway:
    """The connection to one gateway, and its idle streams."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Sequence[tuple[str, str]]) -> None:
        self.channel = channel
        self._metadata = metadata
        self._idle: list[Any] = []
        self._method: Any = channel.stream_stream(f"/{SERVICE}/{DELIVER}")

    async def exchange(self, data: bytes, meanwhile: Meanwhile | None) -> Any:
        """One batch out, one answer in; grpc.aio.EOF when the gateway ended the stream."""
        stream = self._stream()
        try:
            await stream.write(data)
            if meanwhile is not None:
                meanwhile()
            answer = await stream.read()
        except BaseException:
            stream.cancel()
            raise
        if answer is not grpc.aio.EOF:
            self._idle.append(stream)
        return answer

    def _stream(self) -> Any:
        while self._idle:
            stream = self._idle.pop()
            if not stream.done():
                return stream
        return self._method(metadata=self._metadata)


class GrpcDeliveryTransport:
    """Implements ports.transport.DeliveryTransport for grpc:// and grpcs:// addresses.

    `token` is what it shows to gateways, `authority` the certificate (PEM) that vouches for them.
    """

    def __init__(self, node_id: str, *, token: str = "", authority: bytes = b"") -> None:
        self._metadata = [(NODE_HEADER, node_id)]
        if token:
            self._metadata.append((AUTHORIZATION, bearer(token)))
        self._authority = authority or None
        self._gateways: dict[str, _Gateway] = {}
        self._outgoing = Outgoing(lambda batch: encode(encode_lines(batch)))
        self._under_way = UnderWay()

    def prepare(self, url: str, batch: DeliveryBatch) -> None:
        self._outgoing.prepare(url, batch)

    async def deliver(
        self,
        url: str,
        batch: DeliveryBatch,
        *,
        timeout_s: float,
        meanwhile: Meanwhile | None = None,
    ) -> DeliveryAnswer:
        data = self._outgoing.encoded(url, batch)
        if len(data) > MAX_BATCH_BYTES:
            raise refused(url, Refusal(413, f"it has more than {MAX_BATCH_BYTES:,} bytes"))
        gateway = self._gateways.get(url) or await self._open(url)
        try:
            async with self._under_way.within(url, timeout_s):
                answer = await gateway.exchange(data, meanwhile)
        except grpc.aio.AioRpcError as error:
            raise _translated(url, error) from error
        except (asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            raise no_answer(url, "the stream has ended") from error
        except asyncio.CancelledError:
            # What ends a stream from our side may also come as a cancellation that no caller asked
            # for.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise no_answer(url, "the stream was cut off") from None
        if answer is grpc.aio.EOF:
            raise no_answer(url, "it ended the stream")
        return read_ack(url, answer, batch)

    async def close(self) -> None:
        self._under_way.end()
        gateways = list(self._gateways.values())
        self._gateways.clear()
        for gateway in gateways:
            await gateway.channel.close()

    async def _open(self, url: str) -> _Gateway:
        address = urlsplit(url)
        channel = (
            grpc.aio.secure_channel(
                address.netloc,
                grpc.ssl_channel_credentials(root_certificates=self._authority),
                options=OPTIONS,
            )
            if address.scheme == "grpcs"
            else grpc.aio.insecure_channel(address.netloc, options=OPTIONS)
        )
        gateway = self._gateways[url] = _Gateway(channel, self._metadata)
        if len(self._gateways) > GATEWAYS_MAX:
            oldest = next(iter(self._gateways))
            await self._gateways.pop(oldest).channel.close()
        return gateway


def _translated(url: str, error: grpc.aio.AioRpcError) -> HeadgateError:
    """None of these is for good: a gateway refuses a batch in its answer, and anybody in between
    may say RESOURCE_EXHAUSTED for reasons of its own."""
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return refused(url, Refusal(401, ""))
    return no_answer(url, error.details() or error.code().name)


class GrpcDeliveryServer:
    """A gateway's end. Start it once, stop it once."""

    def __init__(self, accept: Accept, admit: Admit) -> None:
        self._accept = accept
        self._admit = admit
        self._server: grpc.aio.Server | None = None

    async def start(
        self, host: str, port: int, *, setting: str, certificate: bytes = b"", key: bytes = b""
    ) -> int:
        """Listen and return the bound port; with a certificate and its key (PEM) over TLS.

        `setting` is the config key of the port.
        """
        server = grpc.aio.server(options=SERVER_OPTIONS)
        handler: Any = grpc.stream_stream_rpc_method_handler(self._deliver)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {DELIVER: handler}),)
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = (
                server.add_secure_port(address, _server_credentials(certificate, key))
                if certificate
                else server.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise PortInUse(
                f"cannot listen on {address}; stop what listens there or set {setting}",
                host=host,
                port=port,
            ) from error
        if not bound:
            raise OperatorError(f"cannot listen on {address}; choose another address")
        await server.start()
        self._server = server
        return bound

    async def stop(self) -> None:
        """Ends all streams at once: a batch is taken in one step, so none is half done."""
        if self._server is not None:
            await self._server.stop(None)

    async def _deliver(self, _batches: Any, context: Any) -> None:
        given = dict(context.invocation_metadata() or ())
        try:
            self._admit(
                str(given.get(AUTHORIZATION, "")), str(given.get(NODE_HEADER) or context.peer())
            )
        except Unauthorized as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)
        while (data := await context.read()) is not grpc.aio.EOF:
            await context.write(await ack_of(data, self._accept))


def _server_credentials(certificate: bytes, key: bytes) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials([(key, certificate)])
