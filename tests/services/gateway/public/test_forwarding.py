"""Passing requests on to another role."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from pyreqwest.client import ClientBuilder

from headgate import errors
from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.decide.produce.room import Room
from headgate.model.http import Request, Response, Route, json_response
from headgate.services.gateway.public.forwarding import Forwarder

LOOPBACK = "127.0.0.1"
JSON_BODY = {"content-type": "application/json"}


async def mirror(request: Request) -> Response:
    return json_response(
        {
            "method": request.method,
            "raw_path": request.raw_path,
            "query": request.query_string,
            "body": (await request.body(1_000)).decode(),
            "headers": dict(request.headers.items()),
        },
        207,
        {"x-answer": "yes", "retry-after": "7"},
    )


@contextlib.asynccontextmanager
async def serving(*routes: Route) -> AsyncIterator[str]:
    server = HttpServer()
    port = await server.start(HttpApp(routes), LOOPBACK, 0)
    try:
        yield f"http://{LOOPBACK}:{port}"
    finally:
        await server.stop(0.5)


@contextlib.asynccontextmanager
async def front(base_url: str, *, timeout_s: float = 5.0) -> AsyncIterator[str]:
    calls = PooledCalls()
    forwarder = Forwarder(calls, body_limit_bytes=100, room=Room(1_000, setting="here"))

    async def pass_on(request: Request) -> Response:
        return await forwarder.forward(request, base_url, to="ingest", timeout_s=timeout_s)

    routes = [Route(method, "/v1/{name}/x", pass_on) for method in ("GET", "POST")]
    async with serving(*routes) as url:
        yield url
    await calls.close()


async def send(
    method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> Response:
    async with ClientBuilder().timeout(timedelta(seconds=10)).build() as client:
        message = client.request(method, url).headers(headers or JSON_BODY)
        answer = await (message.body_bytes(body) if body else message).build().send()
        return Response(
            answer.status, bytes(await answer.bytes()), headers=dict(answer.headers.items())
        )


async def test_request_and_answer_pass_unchanged_without_hop_by_hop_headers() -> None:
    routes = [Route(method, "/v1/{name}/x", mirror) for method in ("GET", "POST")]
    async with serving(*routes) as peer, front(peer) as url:
        answer = await send(
            "POST",
            f"{url}/v1/a%20b/x?q=%2F&r=1",
            b'{"a":1}',
            {"x-own": "1", "te": "trailers", **JSON_BODY},
        )
    seen = json.loads(answer.body)
    assert (seen["method"], seen["raw_path"], seen["query"]) == ("POST", "/v1/a%20b/x", "q=%2F&r=1")
    assert seen["body"] == '{"a":1}'
    assert seen["headers"]["x-own"] == "1"
    assert seen["headers"]["content-type"] == "application/json"
    assert "te" not in seen["headers"]
    assert answer.status == 207
    assert answer.headers["x-answer"] == "yes"
    assert answer.headers["retry-after"] == "7"


async def test_what_a_browser_says_of_its_page_is_judged_here_and_goes_no_further() -> None:
    """The peer listens under another address, where the page's own origin would be foreign."""
    async with serving(Route("GET", "/v1/{name}/x", mirror)) as peer, front(peer) as url:
        page = {"origin": url, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
        answer = await send("GET", f"{url}/v1/a/x", headers={**page, "last-event-id": "7"})
    seen = json.loads(answer.body)["headers"]
    assert answer.status == 207
    assert not page.keys() & seen.keys()
    assert seen["last-event-id"] == "7"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_nobody_listening_is_unreachable(method: str) -> None:
    async with front("http://127.0.0.1:9") as url:
        answer = await send(method, f"{url}/v1/a/x", b"{}" if method == "POST" else b"")
    assert answer.status == 503
    assert b'"unreachable"' in answer.body


@pytest.mark.parametrize(
    ("method", "code"),
    [
        pytest.param("GET", b'"unreachable"', id="a read can be repeated"),
        pytest.param("POST", b'"outcome_unknown"', id="a write may have happened"),
    ],
)
async def test_silent_peer_is_given_up_in_time(method: str, code: bytes) -> None:
    async def hang(_request: Request) -> Response:
        await asyncio.Event().wait()
        return Response()

    routes = [Route(one, "/v1/{name}/x", hang) for one in ("GET", "POST")]
    async with serving(*routes) as peer, front(peer, timeout_s=0.1) as url:
        answer = await send(method, f"{url}/v1/a/x", b"{}" if method == "POST" else b"")
    assert answer.status == 503
    assert code in answer.body


async def test_too_large_body_is_refused_before_it_is_passed_on() -> None:
    called = False

    async def never(_request: Request) -> Response:
        nonlocal called
        called = True
        return Response()

    async with serving(Route("POST", "/v1/{name}/x", never)) as peer, front(peer) as url:
        answer = await send("POST", f"{url}/v1/a/x", b"x" * 101)
    assert answer.status == errors.TooLarge.status
    assert not called


async def test_peer_is_not_waited_for_when_the_client_has_gone() -> None:
    entered, over = asyncio.Event(), asyncio.Event()

    async def hang(_request: Request) -> Response:
        entered.set()
        await asyncio.Event().wait()
        return Response()

    async with serving(Route("GET", "/v1/{name}/x", hang)) as peer:
        calls = PooledCalls()
        forwarder = Forwarder(calls, body_limit_bytes=100, room=Room(1_000, setting="here"))

        async def pass_on(request: Request) -> Response:
            try:
                return await forwarder.forward(request, peer, to="ingest", timeout_s=60.0)
            finally:
                over.set()

        async with serving(Route("GET", "/v1/{name}/x", pass_on)) as url:
            _, writer = await asyncio.open_connection(LOOPBACK, int(url.rsplit(":", 1)[1]))
            writer.write(b"GET /v1/a/x HTTP/1.1\r\nhost: x\r\n\r\n")
            await asyncio.wait_for(entered.wait(), 30)
            assert not over.is_set()
            writer.transport.abort()
            await asyncio.wait_for(over.wait(), 30)
        await calls.close()


@pytest.mark.parametrize(
    "path", ["/v1/..\\internal/x", "/v1/..%5cinternal/x", "/v1/%2e%2e/x", "/v1/./x", "/v1/../x"]
)
async def test_a_path_that_would_be_another_one_there_is_not_passed_on(path: str) -> None:
    reached: list[str] = []

    async def inside(request: Request) -> Response:
        reached.append(request.raw_path)
        return Response(204)

    there = [Route("GET", one, inside) for one in ("/internal/x", "/x", "/v1/x", "/v1/{name}/x")]
    async with serving(*there) as peer, front(peer) as url:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
    assert (answer.split(b" ")[1], reached) == (b"404", [])
