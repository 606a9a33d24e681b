"""Subscribers over WebSocket, on picows.

Invariant: nothing is written while the transport says that its buffer is full; what waits stays in
the subscriber's bounded queue. Whatever a client sends besides control frames is refused, and a
connection that ends for any reason ends its subscription.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import structlog
from picows import (
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)

from headgate import errors
from headgate.adapters.http.messages import encode_json, error_body
from headgate.adapters.http.server import listen
from headgate.services.gateway.subscriber import Subscriber
from headgate.services.gateway.subscriptions import Subscriptions
from headgate.services.gateway.wire import error_message, subscribed_message
from headgate.telemetry import LogEvent

log = structlog.get_logger()

PATH = "/v1/subscribe"
WRITE_BUFFER_BYTES = 256 * 1024
MAX_FRAME_BYTES = 64 * 1024
MAX_REASON_BYTES = 120
PING_AFTER_IDLE_S = 30.0
PONG_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 5.0

Subscribe = Callable[[Mapping[str, str]], Awaitable[Subscriber]]
"""Turns the query parameters into a subscriber, or raises what is wrong with them."""


class WebSocketServer:
    def __init__(self, subscriptions: Subscriptions, subscribe: Subscribe) -> None:
        self.subscriptions = subscriptions
        self.subscribe = subscribe
        self._server: asyncio.Server | None = None
        self.connections: set[_Connection] = set()

    async def start(self, host: str, port: int, *, setting: str = "") -> int:
        listener = listen(host, port, setting=setting)
        bound: int = listener.getsockname()[1]
        self._server = await ws_create_server(
            self._accept,
            sock=listener,
            enable_auto_ping=True,
            auto_ping_idle_timeout=PING_AFTER_IDLE_S,
            auto_ping_reply_timeout=PONG_TIMEOUT_S,
            max_frame_size=MAX_FRAME_BYTES,
            logger_name="gateway",
        )
        return bound

    def _accept(self, request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        target = urlsplit(request.path.decode("latin-1"))
        if target.path != PATH:
            error = errors.NotFound(f"WebSocket subscribers connect to {PATH}, nothing else")
            body = encode_json({"error": error_body(error)})
            refusal = WSUpgradeResponse.create_error_response(
                404, body, {"content-type": "application/json"}
            )
            return WSUpgradeResponseWithListener(refusal, None)
        return _Connection(self, target.query)

    async def stop(self, timeout_s: float) -> None:
        """Stop listening and wait for the connections, which were told to end, to be gone."""
        if self._server is None:
            return
        self._server.close()
        waiting = [connection.gone for connection in self.connections]
        if waiting:
            await asyncio.wait(
                [asyncio.ensure_future(gone.wait()) for gone in waiting], timeout=timeout_s
            )
        for connection in tuple(self.connections):
            connection.abort()


class _Connection(WSListener):
    def __init__(self, server: WebSocketServer, query: str) -> None:
        super().__init__()
        self._server = server
        self._query = query
        self._transport: WSTransport | None = None
        self._subscriber: Subscriber | None = None
        self._opening: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._paused = False
        self._closing = False
        self.gone = asyncio.Event()

    # --- from picows -----------------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        transport.underlying_transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._server.connections.add(self)
        self._opening = asyncio.create_task(self._open(), name="subscribe over WebSocket")

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            with contextlib.suppress(Exception):
                transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif frame.msg_type in (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION):
            self._fail(errors.InvalidRequest("a subscriber sends nothing but control frames"))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._closing = True
        self._server.connections.discard(self)
        if self._opening is not None:
            self._opening.cancel()
        if self._subscriber is not None:
            self._leaving = asyncio.create_task(
                self._server.subscriptions.unsubscribe(self._subscriber)
            )
        self.gone.set()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    @property
    def unsent_bytes(self) -> int:
        """What the transport holds, because the client doesn't read."""
        if self._transport is None:
            return 0
        return self._transport.underlying_transport.get_write_buffer_size()

    # --- the subscription ------------------------------------------------------------------------

    async def _open(self) -> None:
        subscriptions = self._server.subscriptions
        try:
            subscriber = await self._server.subscribe(_parameters(self._query))
        except errors.HeadgateError as error:
            self._fail(error)
            return
        except Exception:
            log.exception(LogEvent.UNEXPECTED, query=self._query)
            self._fail(
                errors.HeadgateError("something went wrong here; the server's log says what")
            )
            return
        self._subscriber = subscriber
        self._send(subscribed_message(subscriber.id, subscriber.topic, subscriber.starts))
        subscriptions.begin(subscriber, self._flush)

    def _flush(self) -> None:
        """Write what waits for as long as the transport takes it."""
        subscriber = self._subscriber
        if subscriber is None or self._closing:
            return
        if subscriber.closing is not None:
            self._fail(subscriber.closing)
            return
        tail = subscriber.tail
        transport = self._transport
        if transport is None or transport.underlying_transport.is_closing():
            return
        while not self._paused and (item := subscriber.take()) is not None:
            self._send(item.value + tail)

    def _send(self, message: bytes) -> None:
        if self._transport is not None:
            self._transport.send(WSMsgType.TEXT, message)

    def _fail(self, error: errors.HeadgateError) -> None:
        """Say why, close, and don't wait long for a peer that doesn't read."""
        if self._closing or self._transport is None:
            return
        self._closing = True
        self._send(error_message(error))
        self._transport.send_close(_close_code(error), _reason(error))
        self._transport.disconnect()
        asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.disconnect(graceful=False)


def _parameters(query: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, errors="strict"))
    except ValueError as error:
        raise errors.InvalidRequest("the query string is not percent-encoded UTF-8") from error


def _close_code(error: errors.HeadgateError) -> Any:
    if error.details.get("reason") == "going_away":
        return WSCloseCode.GOING_AWAY
    if isinstance(error, errors.CallerError):
        return WSCloseCode.POLICY_VIOLATION
    if isinstance(error, errors.NotNow):
        return WSCloseCode.TRY_AGAIN_LATER
    return WSCloseCode.INTERNAL_ERROR


def _reason(error: errors.HeadgateError) -> bytes:
    return error.message.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
