"""One request on an HTTP/1.1 connection, from its first byte to its handler, and the head of its
answer.

Invariant: body chunks are handed over once, in order; what is buffered is counted, so that the
connection can stop reading. Knows nothing of sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import httptools

from headgate.model.http import JSON, Headers, Request, Response

DISCONNECT: Mapping[str, Any] = {"type": "http.disconnect"}
BODILESS = (204, 304)

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_JSON_OK = b"HTTP/1.1 200 OK\r\ncontent-type: " + JSON.encode() + b"\r\ncontent-length: %d\r\n"


class Exchange:
    """`refusal` is the answer to what could not be read as a request: its connection ends with it.

    `ready`: its handler can start, because the body is complete or too large to be waited for.
    """

    __slots__ = (
        "_arrived",
        "_chunks",
        "_disconnected",
        "_handed_over",
        "_on_read",
        "buffered_bytes",
        "complete",
        "declared_bytes",
        "expects_continue",
        "has_host",
        "head_bytes",
        "keep_alive",
        "method",
        "one_zero",
        "pairs",
        "ready",
        "refusal",
        "url",
    )

    def __init__(self, on_read: Callable[[Exchange], None]) -> None:
        self.url = b""
        self.method = "GET"
        self.pairs: list[tuple[str, str]] = []
        self.declared_bytes: int | None = None
        self.has_host = False
        self.head_bytes = 0
        self.expects_continue = False
        self.keep_alive = False
        self.one_zero = False
        self.complete = False
        self.ready = False
        self.refusal: Response | None = None
        self.buffered_bytes = 0
        self._chunks: list[bytes] = []
        self._arrived: asyncio.Future[None] | None = None
        self._handed_over = False
        self._disconnected = False
        self._on_read = on_read

    def add_header(self, name: bytes, value: bytes) -> None:
        self.head_bytes += len(name) + len(value)
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.pairs.append((key, text))
        if key == "host":
            self.has_host = True
        elif key == "content-length":
            # The parser has checked that it is a number.
            self.declared_bytes = int(text)
        elif key == "transfer-encoding":
            self.declared_bytes = None
        elif key == "expect":
            self.expects_continue = text.lower() == "100-continue"

    def request(self, peer: str = "") -> Request:
        """What the handler sees; ValueError for a target that is no address."""
        raw_path, query = _target(self.url)
        headers = Headers.lowered(self.pairs)
        return Request.to(self.method, raw_path, query, self.receive, headers, peer)

    # --- the body --------------------------------------------------------------------------------

    def add_body(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.buffered_bytes += len(chunk)
        self.expects_continue = False
        self._wake()

    def end_body(self) -> None:
        self.complete = True
        self._wake()

    def disconnect(self) -> None:
        self._disconnected = True
        self._wake()

    async def receive(self) -> Mapping[str, Any]:
        """What has arrived since the last call, or the disconnect; ASGI's receive channel."""
        while not self._disconnected:
            if self._chunks or (self.complete and not self._handed_over):
                return self._taken()
            self._on_read(self)
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        return DISCONNECT

    def _taken(self) -> Mapping[str, Any]:
        chunks, self._chunks = self._chunks, []
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.buffered_bytes = 0
        self._handed_over = self.complete
        if not self.complete:
            self._on_read(self)
        return {"type": "http.request", "body": body, "more_body": not self.complete}

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)


def _target(url: bytes) -> tuple[str, str]:
    """Path and query, still percent-encoded, of an origin-form or absolute-form target."""
    if not url.startswith(b"/") or b"#" in url:
        try:
            parsed = httptools.parse_url(url)
        except httptools.HttpParserError as error:
            raise ValueError(f"{url[:100]!r} is no address") from error
        return (parsed.path or b"/").decode("latin-1"), (parsed.query or b"").decode("latin-1")
    path, _, query = url.partition(b"?")
    return path.decode("latin-1"), query.decode("latin-1")


def head_of(answer: Response, *, date: bytes, close: bool) -> bytes:
    """Everything of `answer` before its body."""
    if answer.status == 200 and answer.content_type == JSON and not answer.headers:
        start = _JSON_OK % len(answer.body)
    else:
        headers = dict(answer.headers)
        if answer.content_type:
            headers["content-type"] = answer.content_type
        if answer.status not in BODILESS:
            headers["content-length"] = str(len(answer.body))
        start = start_of(answer.status, headers)
    return start + date + (b"connection: close\r\n\r\n" if close else b"\r\n")


def start_of(status: int, headers: Mapping[str, str]) -> bytes:
    line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n".encode()
    return line + b"".join(
        f"{name.lower()}: {value}\r\n".encode("latin-1") for name, value in headers.items()
    )
