"""An application as granian calls it, with a server that behaves as granian's may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from headgate.adapters.http.asgi import AsgiApp
from headgate.answering import HttpApp
from headgate.model.http import Request, Route, StreamResponse

SCOPE = {
    "type": "http",
    "method": "GET",
    "path": "/endless",
    "raw_path": b"/endless",
    "query_string": b"",
    "headers": [],
    "client": ("127.0.0.1", 1),
}
MANY = 100_000


async def test_a_stream_that_waits_for_nothing_ends_when_its_client_has_left() -> None:
    """What is sent to somebody who has left is taken at once."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < MANY:
            sent += 1
            yield b"x"

    async def answer(_request: Request) -> StreamResponse:
        return StreamResponse(200, {}, endless())

    said = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Mapping[str, Any]:
        await asyncio.sleep(0)
        return next(said, {"type": "http.disconnect"})

    async def send(_message: Mapping[str, Any]) -> None:
        pass

    await AsgiApp(HttpApp([Route("GET", "/endless", answer)]))(SCOPE, receive, send)
    assert 0 < sent < MANY
