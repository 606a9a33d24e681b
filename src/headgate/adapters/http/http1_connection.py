"""One HTTP/1.1 connection: bytes in, requests to the application, answers out, in order.

    idle       nothing has arrived since the last answer
    receiving  a request has begun to arrive
    answering  its handler runs; what arrives meanwhile waits, and soon isn't read any more
    lingering  answered for the last time: what is still arriving is read and dropped for a while,
               so that the answer isn't lost in a reset

Invariants: one handler at a time; every wait for the client has a deadline, and every buffer a
bound; a client that goes away cancels its handler.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import httptools
import msgspec

from headgate import errors
from headgate.adapters.http.http1_exchange import BODILESS, Exchange, head_of, start_of
from headgate.adapters.http.http1_limits import Http1Limits
from headgate.model.http import Response, StreamResponse, error_response
from headgate.ports.http import App
from headgate.tasks import Crew

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(slots=True)
class Serving:
    """What all connections of a server share."""

    app: App
    limits: Http1Limits
    date: bytes = b""
    stopping: bool = False
    connections: set[Connection] = field(default_factory=set)
    crew: Crew = field(default_factory=partial(Crew, "http"))
    streams: set[asyncio.Task[None]] = field(default_factory=set)


class Connection(asyncio.Protocol):
    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._limits = serving.limits
        self._loop = asyncio.get_running_loop()
        # It calls the on_… methods below.
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport  # from `connection_made` on
        self._arriving: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._head_bytes = 0
        self._head_until_s = math.inf
        self._reading = True
        self._last = False
        self._lingering = False
        self._dropped_bytes = 0
        self._peer = ""
        self.deadline_s = math.inf

    # --- the transport ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._serving.connections.add(self)
        address = transport.get_extra_info("peername")
        self._peer = str(address[0]) if address else ""
        self._set_deadline()
        if len(self._serving.connections) > self._limits.connections:
            self._refuse(errors.Overloaded("too many connections are open; try again later"))
        elif self._serving.stopping:
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self._serving.connections.discard(self)
        self._waiting.clear()
        self._resume_writing()
        if self._current is not None:
            self._current.disconnect()
        if self._task is not None:
            self._task.cancel()

    def eof_received(self) -> None:
        """A client that closes its half has gone: nobody would read an answer."""

    def data_received(self, data: bytes) -> None:
        if self._last:
            self._drop(len(data))
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Nothing else is spoken here: a request without a body is answered as usual, for the
            # last time, because the parser can't say where the next one begins.
            self._last = True
            if self._waiting and self._waiting[-1].declared_bytes:
                self._waiting.pop()
                self._refuse(errors.InvalidRequest("this address speaks HTTP/1.1 only"))
        except httptools.HttpParserError as error:
            self._refuse(errors.InvalidRequest(f"this is not an HTTP/1.1 request: {error}"))
        if self._arriving is not None and not self._last:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes:
                self._refuse(_long_head(self._limits.head_bytes), 431)
        self._advance()

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()
        self._set_deadline()

    def resume_writing(self) -> None:
        self._resume_writing()
        self._advance()

    def _resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # --- the parser ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._arriving = Exchange(self._on_read)
        self._head_bytes = 0
        self._head_until_s = self._loop.time() + self._limits.head_s

    def on_url(self, part: bytes) -> None:
        assert self._arriving is not None
        self._arriving.url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers of a chunked body come here too, and nothing reads them.
        if self._arriving is not None:
            self._arriving.add_header(name, value)

    def on_headers_complete(self) -> None:
        exchange, self._arriving = self._arriving, None
        assert exchange is not None
        exchange.method = self._parser.get_method().decode("latin-1")
        exchange.keep_alive = self._parser.should_keep_alive()
        exchange.one_zero = self._parser.get_http_version() == "1.0"
        if len(exchange.url) + exchange.head_bytes > self._limits.head_bytes:
            exchange.refusal = _refusal(_long_head(self._limits.head_bytes), 431)
        elif not exchange.has_host and not exchange.one_zero:
            missing = errors.InvalidRequest("the request has no Host header: send one")
            exchange.refusal = error_response(missing)
        declared = exchange.declared_bytes
        exchange.ready = exchange.expects_continue or (
            declared > self._limits.buffer_bytes if declared is not None else True
        )
        self._waiting.append(exchange)

    def on_body(self, chunk: bytes) -> None:
        exchange = self._waiting[-1] if self._waiting else self._current
        assert exchange is not None
        exchange.add_body(chunk)

    def on_message_complete(self) -> None:
        exchange = self._waiting[-1] if self._waiting else self._current
        assert exchange is not None
        exchange.ready = True
        exchange.end_body()

    # --- requests and answers --------------------------------------------------------------------

    def _advance(self) -> None:
        """Start the next handler, if it may; read on, if there is room; move the deadline."""
        free = self._current is None and self._drained is None
        if free and self._waiting and self._waiting[0].ready and not self._transport.is_closing():
            self._current = self._waiting.popleft()
            self._task = self._serving.crew.start("answer", self._answer(self._current))
        self._set_reading()
        self._set_deadline()

    def _on_read(self, exchange: Exchange) -> None:
        """The handler waits for more of its body, or has taken what was there."""
        if exchange.expects_continue and not exchange.complete and not self._last:
            exchange.expects_continue = False
            self._transport.write(CONTINUE)
        self._set_reading()

    def _set_reading(self) -> None:
        held = self._current
        full = held is not None and held.buffered_bytes > self._limits.buffer_bytes
        behind = self._waiting and (held is not None or self._drained is not None)
        wanted = self._last or not (full or behind)
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    async def _answer(self, exchange: Exchange) -> None:
        try:
            answer = exchange.refusal or await self._answer_of(exchange)
            if isinstance(answer, StreamResponse):
                await self._stream(exchange, answer)
            else:
                self._write(exchange, answer)
        except asyncio.CancelledError:
            # The client has gone, or sends nonsense, or the server has waited long enough.
            if exchange.refusal is None or self._transport.is_closing():
                self._transport.abort()
            else:
                self._write(exchange, exchange.refusal)
        finally:
            self._current = self._task = None
            if not self._transport.is_closing():
                self._go_on(exchange)

    async def _answer_of(self, exchange: Exchange) -> Response | StreamResponse:
        try:
            request = exchange.request(self._peer)
        except ValueError as error:
            return error_response(errors.InvalidRequest(str(error)))
        return await self._serving.app.answer(request)

    def _go_on(self, exchange: Exchange) -> None:
        if not self._ends_with(exchange):
            self._advance()
        elif exchange.complete and exchange.refusal is None:
            self._transport.close()
        else:
            self._linger()

    def _ends_with(self, exchange: Exchange) -> bool:
        if exchange.refusal is not None or not exchange.keep_alive or not exchange.complete:
            return True
        return self._serving.stopping or (self._last and not self._waiting) or exchange.one_zero

    def _write(self, exchange: Exchange, answer: Response) -> None:
        head = head_of(answer, date=self._serving.date, close=self._ends_with(exchange))
        silent = exchange.method == "HEAD" or answer.status in BODILESS
        self._transport.write(head if silent else head + answer.body)

    async def _stream(self, exchange: Exchange, answer: StreamResponse) -> None:
        assert self._task is not None
        self._serving.streams.add(self._task)
        try:
            chunked = not exchange.one_zero
            headers = {**answer.headers} | ({"transfer-encoding": "chunked"} if chunked else {})
            close = b"connection: close\r\n" if self._ends_with(exchange) else b""
            head = start_of(answer.status, headers) + self._serving.date + close + b"\r\n"
            self._transport.write(head)
            await self._pump(answer.chunks, chunked=chunked)
        finally:
            self._serving.streams.discard(self._task)

    async def _pump(self, chunks: AsyncIterator[bytes], *, chunked: bool) -> None:
        try:
            async for chunk in chunks:
                if chunk:
                    self._transport.write(
                        b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk
                    )
                if self._drained is not None:
                    await self._drained
            if chunked:
                self._transport.write(b"0\r\n\r\n")
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()

    def _refuse(self, error: errors.HeadgateError, status: int | None = None) -> None:
        """Answer what is no request, after the requests before it, and end."""
        self._last = True
        self._arriving = None
        answer = _refusal(error, status)
        if self._current is not None and not self._current.complete:
            self._break_off(self._current, answer)
            return
        if self._waiting and not self._waiting[-1].complete:
            self._waiting.pop()
        exchange = Exchange(self._on_read)
        exchange.refusal, exchange.ready = answer, True
        self._waiting.append(exchange)
        self._advance()

    def _break_off(self, exchange: Exchange, answer: Response) -> None:
        """The rest of a request whose handler has started is never going to come."""
        assert self._task is not None
        if self._task not in self._serving.streams:
            exchange.refusal = answer
        self._task.cancel()

    # --- the end ---------------------------------------------------------------------------------

    def _linger(self) -> None:
        self._last = self._lingering = True
        self._waiting.clear()
        self.deadline_s = self._loop.time() + self._limits.linger_s
        self._transport.write_eof()
        self._set_reading()

    def _drop(self, count: int) -> None:
        self._dropped_bytes += count
        if self._dropped_bytes > self._limits.linger_bytes:
            self._transport.abort()

    def _set_deadline(self) -> None:
        if self._lingering:
            return
        if self._arriving is not None:
            self.deadline_s = self._head_until_s
        elif self._drained is not None or self._is_incomplete():
            self.deadline_s = self._loop.time() + self._limits.stall_s
        elif self._current is not None:
            self.deadline_s = math.inf
        else:
            self.deadline_s = self._loop.time() + self._limits.idle_s

    def _is_incomplete(self) -> bool:
        """More of a request has to come."""
        last = self._waiting[-1] if self._waiting else self._current
        return self._arriving is not None or (last is not None and not last.complete)

    def expire(self) -> None:
        """The client took too long."""
        if self._is_incomplete() and self._drained is None and not self._last:
            self._refuse(errors.Timeout("the request took too long to arrive; send it again"), 408)
        elif self._current is None:
            self._transport.close()
        else:
            self._transport.abort()

    def stop(self) -> None:
        """End now where nothing is under way, else after the answer."""
        if self._current is None and not self._waiting:
            self._transport.close()

    def finish(self) -> None:
        """End, whatever is under way; what was answered still leaves."""
        if self._current is None:
            self._transport.close()
        else:
            self._transport.abort()


def _refusal(error: errors.HeadgateError, status: int | None) -> Response:
    answer = error_response(error)
    return answer if status is None else msgspec.structs.replace(answer, status=status)


def _long_head(limit_bytes: int) -> errors.TooLarge:
    return errors.TooLarge(
        f"the head of the request is longer than {limit_bytes} bytes; shorten it",
        limit_bytes=limit_bytes,
    )
