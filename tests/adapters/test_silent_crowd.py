"""Many who connect and say nothing, or next to nothing: they are cut off, and cost nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from headgate import errors
from headgate.adapters.http.http1_limits import Http1Limits
from headgate.adapters.http.http1_server import Http1Server
from headgate.adapters.picows.server import PicowsListener
from headgate.answering import HttpApp
from headgate.model.http import Request, Response, Route
from headgate.ports.connection import Peer, Reception, Visit

LOOPBACK = "127.0.0.1"
CROWD = 300
WAIT_S = 30.0
SAID = {
    "nothing": b"",
    "a letter": b"G",
    "half a head": b"GET /v1/subscribe HTTP/1.1\r\nHost: a\r\n",
}


@asynccontextmanager
async def ingest_node() -> AsyncIterator[int]:
    async def fine(_request: Request) -> Response:
        return Response(204)

    server = Http1Server(Http1Limits(idle_s=0.2, head_s=0.2))
    yield await server.start(HttpApp([Route("GET", "/health", fine)]), LOOPBACK, 0)
    await server.stop(1.0)


@asynccontextmanager
async def websockets() -> AsyncIterator[int]:
    def admit(visit: Visit) -> Peer:
        raise errors.NotFound(f"there is no {visit.path}")

    listener = PicowsListener(handshake_timeout_s=0.2)
    yield await listener.start(Reception(admit, "v1", 1_000), LOOPBACK, 0)
    listener.stop()


async def answered(port: int) -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    status = await reader.readline()
    writer.close()
    return status.split(b" ")[1]


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
@pytest.mark.parametrize(
    ("serving", "status"),
    [(ingest_node, b"204"), (websockets, b"404")],
    ids=["ingest", "websocket"],
)
async def test_a_crowd_that_says_nothing_is_cut_off_while_others_are_answered(
    serving: Callable[[], AbstractAsyncContextManager[int]], status: bytes, said: bytes
) -> None:
    async with asyncio.timeout(WAIT_S), serving() as port:
        crowd = [await asyncio.open_connection(LOOPBACK, port) for _ in range(CROWD)]
        for _, writer in crowd:
            writer.write(said)
        assert await answered(port) == status
        for reader, writer in crowd:
            await reader.read(-1)  # until it is closed
            writer.close()
        assert await answered(port) == status
