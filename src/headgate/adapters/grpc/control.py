"""The control stream over gRPC: one bidirectional stream of opaque bytes per node, which gRPC only
frames and multiplexes. What is said on it, and when, is adapters/control_stream.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from headgate.adapters.control_stream import StreamSession, serve_pipe
from headgate.adapters.machine import THIS_MACHINE
from headgate.model.control import Hello
from headgate.ports.control import Serve

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
STREAM_ENDED = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What gRPC raises when the other end is gone: a call's status, which is no BaseError, what a
servicer's context says, and what either says of a stream that had ended before."""


class GrpcPipe:
    """Implements adapters.control_stream.NodePipe, and a coordinator's Pipe, on gRPC's end of it:
    a call or a servicer's context."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def read(self) -> bytes | None:
        try:
            data = await self._stream.read()
        except STREAM_ENDED as error:
            raise ConnectionResetError(str(error)) from error
        return None if data is grpc.aio.EOF else data

    async def write(self, data: bytes) -> None:
        try:
            await self._stream.write(data)
        except STREAM_ENDED as error:
            raise ConnectionResetError(str(error)) from error

    async def done_writing(self) -> None:
        try:
            await self._stream.done_writing()
        except STREAM_ENDED as error:
            raise ConnectionResetError(str(error)) from error


@asynccontextmanager
async def dial(address: str) -> AsyncIterator[GrpcPipe]:
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        yield GrpcPipe(channel.stream_stream(METHOD)())


class GrpcControlSession(StreamSession):
    """A node's side; implements ports.control.ControlSession."""

    def __init__(self, addresses: str, hello: Callable[[], Hello]) -> None:
        super().__init__(addresses, hello, dial, jitter=THIS_MACHINE.jitter)


class GrpcControlServer:
    """Implements ports.control.ControlListener."""

    def __init__(self) -> None:
        self._serve: Serve | None = None
        self._server: grpc.aio.Server | None = None
        self._large = asyncio.Lock()

    async def start(self, serve: Serve, host: str, ports: list[int]) -> list[int]:
        self._serve = serve
        options = [*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)]
        options += [
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 2_000),
            ("grpc.http2.max_ping_strikes", 0),
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
        await serve_pipe(GrpcPipe(context), self._serve, self._large)
