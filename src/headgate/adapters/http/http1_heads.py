"""The heads of plain requests: which handler may answer them in a thread, and how long they are.

A client that keeps its connection sends the same head again and again, up to the length of the
body. So a head is read by the same parser as everywhere else, once, and then looked up.

Invariant: what is called plain, the event loop would read in just the same way. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import httptools

from headgate import errors
from headgate.adapters.http.http1_exchange import Exchange
from headgate.adapters.http.messages import BlockingHandler, Request, Route

HEADS_KEPT = 256
END_OF_HEAD = b"\r\n\r\n"

FindRoute = Callable[[Request], Route]


@dataclass(frozen=True, slots=True)
class Plain:
    """A request that may be answered in a thread, once all `length` bytes of it are there."""

    answer: BlockingHandler
    request: Request
    head_bytes: int
    length: int


class Heads:
    def __init__(self, find_route: FindRoute, *, max_bytes: int) -> None:
        self._find_route = find_route
        self._max_bytes = max_bytes
        self._known: dict[bytes, Plain | None] = {}

    def of(self, received: bytes) -> Plain | None:
        """What begins with `received`; None for all that isn't plain, or not there whole."""
        end = received.find(END_OF_HEAD)
        if end < 0:
            return None
        head = received[: end + len(END_OF_HEAD)]
        try:
            plain = self._known[head]
        except KeyError:
            plain = self._read(head)
            if len(self._known) >= HEADS_KEPT:
                self._known.clear()
            self._known[head] = plain
        return plain if plain is not None and plain.length <= len(received) else None

    def _read(self, head: bytes) -> Plain | None:
        listener = _Listener()
        parser = httptools.HttpRequestParser(listener)
        try:
            parser.feed_data(head)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return None
        exchange = listener.exchange
        declared = exchange.declared_bytes
        if (
            not declared
            or len(head) + declared > self._max_bytes
            or not exchange.has_host
            or exchange.expects_continue
            or not parser.should_keep_alive()
            or parser.get_http_version() != "1.1"
        ):
            return None
        exchange.method = parser.get_method().decode("latin-1")
        try:
            request = exchange.request()
            route = self._find_route(request)
        except (ValueError, errors.HeadgateError):
            return None
        # A page is told more in the head of an answer than a thread sends.
        if route.blocking is None or request.headers.get("origin"):
            return None
        return Plain(route.blocking, request, len(head), len(head) + declared)


class _Listener:
    """What the parser calls."""

    def __init__(self) -> None:
        self.exchange = Exchange(lambda _exchange: None)

    def on_url(self, part: bytes) -> None:
        self.exchange.url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.exchange.add_header(name, value)
