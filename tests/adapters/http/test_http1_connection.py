"""What a client may do to an HTTP/1.1 connection: pieces, pipelines, nonsense, silence, leaving."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from headgate.adapters.http.http1_limits import Http1Limits
from headgate.adapters.http.http1_server import Http1Server
from headgate.answering import HttpApp
from headgate.model.http import Request, Response, Route, StreamResponse, json_response
from tests.adapters.http.wire import LOOPBACK, Wire

BODY_LIMIT = 200_000


async def size(request: Request) -> Response:
    return json_response({"bytes": len(await request.body(BODY_LIMIT))})


async def path(request: Request) -> Response:
    return json_response([request.path, request.raw_path, request.query_string])


async def countdown(_request: Request) -> StreamResponse:
    async def chunks() -> AsyncIterator[bytes]:
        for number in (b"3", b"", b"2", b"1"):
            yield number

    return StreamResponse(200, {"content-type": "text/plain"}, chunks())


class Gate:
    """A handler that waits, and says whether it was cancelled."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.calls = 0

    async def handle(self, _request: Request) -> Response:
        self.calls += 1
        self.entered.set()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return json_response({"call": self.calls})


Dial = Callable[[], AbstractAsyncContextManager[Wire]]


@asynccontextmanager
async def serving(gate: Gate | None = None, **limits: Any) -> AsyncIterator[Dial]:
    server = Http1Server(Http1Limits(**limits))
    gate = gate or Gate()
    routes = [
        Route("POST", "/size", size),
        Route("GET", "/path/{name}", path),
        Route("GET", "/countdown", countdown),
        Route("GET", "/gate", gate.handle),
    ]
    port = await server.start(HttpApp(routes), LOOPBACK, 0)

    @asynccontextmanager
    async def dial() -> AsyncIterator[Wire]:
        wire = await Wire.dial(port)
        try:
            yield wire
        finally:
            await wire.close()

    try:
        yield dial
    finally:
        await server.stop(1.0)


def post(body: bytes, *fields: str) -> bytes:
    lines = ["POST /size HTTP/1.1", "host: x", "content-type: application/json", *fields]
    if not any(field.lower().startswith("transfer-encoding") for field in fields):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def get(target: str, *fields: str) -> bytes:
    return "\r\n".join([f"GET {target} HTTP/1.1", "host: x", *fields, "", ""]).encode()


@pytest.mark.parametrize("step", [1, 7, 1_000_000], ids=["bytes", "pieces", "whole"])
async def test_a_request_may_arrive_in_any_pieces(step: int) -> None:
    async with serving() as dial, dial() as wire:
        sent = post(b"x" * 100) + get("/path/a%20b?c=%20d#e")
        for at in range(0, len(sent), step):
            wire.send(sent[at : at + step])
            await asyncio.sleep(0)
        assert json.loads((await wire.answer())[2]) == {"bytes": 100}
        assert json.loads((await wire.answer())[2]) == ["/path/a b", "/path/a%20b", "c=%20d"]


async def test_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    gate = Gate()
    async with serving(gate) as dial, dial() as wire:
        wire.send(get("/gate") + post(b"x" * 5) + get("/gate"))
        await asyncio.wait_for(gate.entered.wait(), 30)
        assert gate.calls == 1
        gate.opened.set()
        bodies = [json.loads((await wire.answer())[2]) for _ in range(3)]
    assert bodies == [{"call": 1}, {"bytes": 5}, {"call": 2}]


@pytest.mark.parametrize("length", [0, 10, 150_000])
async def test_chunked_bodies_of_any_size_are_read(length: int) -> None:
    async with serving() as dial, dial() as wire:
        chunk = b"%x\r\n%b\r\n" % (length, b"x" * length) if length else b""
        wire.send(post(chunk + b"0\r\nx-trailer: y\r\n\r\n", "transfer-encoding: chunked"))
        assert json.loads((await wire.answer())[2]) == {"bytes": length}
        wire.send(get("/path/again"))
        assert (await wire.answer())[0] == 200


async def test_a_client_that_asks_is_told_to_send_its_body() -> None:
    async with serving() as dial, dial() as wire:
        head, _, body = post(b"x" * 50, "expect: 100-continue").partition(b"\r\n\r\n")
        wire.send(head + b"\r\n\r\n")
        assert (await wire.answer())[0] == 100
        wire.send(body)
        assert json.loads((await wire.answer())[2]) == {"bytes": 50}


async def test_a_body_that_is_refused_at_its_head_is_never_asked_for() -> None:
    async with serving() as dial, dial() as wire:
        wire.send(
            b"POST /size HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
            b"content-type: application/json\r\ncontent-length: 999999999\r\n\r\n"
        )
        status, fields, _ = await wire.answer()
        assert (status, fields["connection"]) == (413, "close")


async def test_the_answer_to_a_body_that_is_too_large_survives_the_rest_of_it() -> None:
    async with serving() as dial, dial() as wire:
        await wire.send_all(post(b"x" * 5_000_000))
        status, fields, body = await wire.answer()
        assert (status, fields["connection"]) == (413, "close")
        assert b"too_large" in body


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"nonsense\r\n\r\n", 400, id="no-request"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="http/2"),
        pytest.param(b"GET /path/a HTTP/1.1\r\n\r\n", 400, id="no-host"),
        pytest.param(b"GET nowhere HTTP/1.1\r\nhost: x\r\n\r\n", 400, id="no-address"),
        pytest.param(get("/path/a", "x" * 70_000 + ": y"), 431, id="long-head"),
        pytest.param(get("/" + "x" * 70_000)[:-2], 431, id="long-target-without-end"),
        pytest.param(
            post(b"", "content-length: 5", "transfer-encoding: chunked"), 400, id="two-lengths"
        ),
        pytest.param(
            post(b"zz\r\n", "transfer-encoding: chunked"), 400, id="broken-chunk-of-a-request"
        ),
        pytest.param(
            post(b"ab", "connection: upgrade", "upgrade: h2c"), 400, id="upgrade-with-a-body"
        ),
    ],
)
async def test_what_is_no_request_is_told_so_and_ends_the_connection(
    sent: bytes, status: int
) -> None:
    async with serving() as dial, dial() as wire:
        wire.send(get("/path/before") + sent)
        assert (await wire.answer())[0] == 200
        answered, fields, body = await wire.answer()
        assert (answered, set(json.loads(body)["error"])) == (
            status,
            {"code", "message", "details"},
        )
        if fields.get("connection") == "close":
            assert await wire.rest() == b""


async def test_an_offer_to_speak_something_else_is_passed_over() -> None:
    async with serving() as dial, dial() as wire:
        wire.send(get("/path/a", "connection: upgrade", "upgrade: h2c"))
        status, fields, _ = await wire.answer()
        assert (status, fields["connection"]) == (200, "close")


async def test_a_head_request_has_no_body() -> None:
    async with serving() as dial, dial() as wire:
        wire.send(b"HEAD /path/a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = await wire.rest()
        assert answer.startswith(b"HTTP/1.1 405 ")
        assert answer.endswith(b"\r\n\r\n")


async def test_streams_are_chunked_and_plain_for_http_1_0() -> None:
    async with serving() as dial:
        async with dial() as wire:
            wire.send(get("/countdown", "connection: close"))
            assert (await wire.rest()).endswith(b"\r\n\r\n1\r\n3\r\n1\r\n2\r\n1\r\n1\r\n0\r\n\r\n")
        async with dial() as wire:
            wire.send(b"GET /countdown HTTP/1.0\r\n\r\n")
            assert (await wire.rest()).endswith(b"\r\n\r\n321")


async def test_a_client_that_leaves_cancels_its_handler() -> None:
    gate = Gate()
    async with serving(gate) as dial:
        async with dial() as wire:
            wire.send(get("/gate"))
            await asyncio.wait_for(gate.entered.wait(), 30)
        await asyncio.wait_for(gate.cancelled.wait(), 30)


@pytest.mark.parametrize(
    ("sent", "limit", "start"),
    [
        pytest.param(b"", "idle_s", b"", id="idle"),
        pytest.param(b"GET /path", "head_s", b"HTTP/1.1 408 ", id="half-a-head"),
        pytest.param(post(b"x" * 10)[:-5], "stall_s", b"HTTP/1.1 408 ", id="half-a-body"),
        pytest.param(
            post(b"x" * 100_000)[:-5], "stall_s", b"HTTP/1.1 408 ", id="half-a-large-body"
        ),
    ],
)
async def test_a_client_that_falls_silent_is_let_go(sent: bytes, limit: str, start: bytes) -> None:
    limits: dict[str, Any] = {limit: 0.01, "linger_s": 0.01}
    async with serving(**limits) as dial, dial() as wire:
        wire.send(sent)
        answer = await wire.rest()
        assert answer.startswith(start)
        assert bool(answer) == bool(start)


async def test_a_handler_may_take_longer_than_any_client() -> None:
    gate = Gate()
    async with serving(gate, idle_s=0.01, head_s=0.01, stall_s=0.01) as dial, dial() as wire:
        wire.send(get("/gate"))
        await asyncio.sleep(1.2)  # Past the next look at the deadlines.
        gate.opened.set()
        assert (await wire.answer())[0] == 200


async def test_one_connection_too_many_is_told_to_come_back() -> None:
    async with serving(connections=1) as dial, dial() as first:
        first.send(get("/path/a"))
        assert (await first.answer())[0] == 200
        async with dial() as second:
            status, fields, _ = await second.answer()
            assert (status, fields["retry-after"]) == (503, "1")
        first.send(get("/path/b"))
        assert (await first.answer())[0] == 200
