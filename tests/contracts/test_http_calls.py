"""The contracts of HTTP, on the network and in memory: whoever listens, and whoever calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from headgate import errors
from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.http1_server import Http1Server
from headgate.adapters.http.server import HttpServer
from headgate.adapters.memory.http import MemoryHttpCalls, MemoryHttpListener, MemoryWeb
from headgate.answering import HttpApp
from headgate.model.http import Request, Response, Route, StreamResponse, json_response
from headgate.ports.http import HttpCalls, HttpListener

HOST = "127.0.0.1"
WAIT_S = 30.0


@dataclass
class Network:
    """One pair of adapters: what is listened with, and what is called with."""

    kind: str
    web: MemoryWeb
    stack: AsyncExitStack

    def listener(self) -> HttpListener:
        match self.kind:
            case "granian":
                return HttpServer()
            case "http1":
                return Http1Server()
        return MemoryHttpListener(self.web)

    def calls(self) -> HttpCalls:
        calls = MemoryHttpCalls(self.web) if self.kind == "memory" else PooledCalls()
        self.stack.push_async_callback(calls.close)
        return calls

    async def serve(self, *routes: Route) -> tuple[HttpListener, str]:
        listener = self.listener()
        port = await listener.start(HttpApp(routes), HOST, 0)
        self.stack.push_async_callback(listener.stop, 0.2)
        return listener, f"http://{HOST}:{port}"


@pytest.fixture(params=["granian", "http1", "memory"])
async def network(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    async with AsyncExitStack() as stack:
        yield Network(request.param, MemoryWeb(), stack)


class Handler:
    """Begins to answer, and goes on when it is told to."""

    def __init__(self) -> None:
        self.entered, self.go_on, self.gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Response:
        self.entered.set()
        try:
            # granian leaves a handler alone whose client has gone, and tells it.
            going = asyncio.ensure_future(self.go_on.wait())
            leaving = asyncio.ensure_future(request.disconnected())
            await asyncio.wait([going, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            going.cancel()
            leaving.cancel()
            if not self.go_on.is_set():
                self.gone.set()
        return Response(200, b"done")

    @property
    def route(self) -> Route:
        return Route("POST", "/wait", self)


async def mirror(request: Request) -> Response:
    return json_response(
        {
            "method": request.method,
            "path": request.path,
            "raw_path": request.raw_path,
            "query": request.query,
            "name": request.params["name"],
            "own": request.headers.get("X-Own"),
            "body": (await request.body(1_000)).decode(),
        },
        207,
        {"X-Answer": "yes"},
    )


async def test_a_call_is_answered_by_who_listens_there(network: Network) -> None:
    _, url = await network.serve(Route("POST", "/v1/{name}/x", mirror))
    answer = await network.calls().send(
        "POST",
        f"{url}/v1/a%20b/x?q=%2F&r=1",
        timeout_s=WAIT_S,
        headers=[("x-own", "1")],
        body=b"all of it",
    )
    assert (answer.status, answer.content_type) == (207, "application/json")
    assert answer.headers["x-answer"] == "yes"
    assert answer.headers["content-type"] == "application/json"
    assert answer.body == (
        b'{"method":"POST","path":"/v1/a b/x","raw_path":"/v1/a%20b/x","query":{"q":"/","r":"1"},'
        b'"name":"a b","own":"1","body":"all of it"}'
    )


async def elsewhere(_request: Request) -> Response:
    return Response(307, headers={"location": "/there"})


async def test_whatever_is_answered_is_an_answer(network: Network) -> None:
    _, url = await network.serve(Route("GET", "/here", elsewhere))
    calls = network.calls()
    moved = await calls.send("GET", f"{url}/here", timeout_s=WAIT_S)
    assert (moved.status, moved.headers["location"]) == (307, "/there")
    assert (await calls.send("GET", f"{url}/nowhere", timeout_s=WAIT_S)).status == 404
    assert (await calls.send("POST", f"{url}/here", timeout_s=WAIT_S)).headers["allow"] == "GET"


async def chunks() -> AsyncIterator[bytes]:
    yield b"one "
    yield b"two"


async def stream(_request: Request) -> StreamResponse:
    return StreamResponse(200, {"Content-Type": "text/plain"}, chunks())


async def test_an_answer_in_pieces_arrives_whole(network: Network) -> None:
    _, url = await network.serve(Route("GET", "/pieces", stream))
    answer = await network.calls().send("GET", f"{url}/pieces", timeout_s=WAIT_S)
    assert (answer.body, answer.content_type) == (b"one two", "text/plain")


async def test_nothing_is_sent_where_nobody_listens(network: Network) -> None:
    listener, url = await network.serve()
    await listener.stop(0.2)
    with pytest.raises(errors.PeerUnreachable):
        await network.calls().send("POST", f"{url}/wait", timeout_s=WAIT_S, body=b"{}")


async def test_a_connection_that_ends_after_the_request_has_left_is_of_unknown_outcome() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.close()

    calls = PooledCalls()
    async with await asyncio.start_server(hang_up, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(errors.OutcomeUnknown):
            await calls.send("POST", f"http://{HOST}:{port}/", timeout_s=WAIT_S, body=b"{}")
    await calls.close()


async def test_an_answer_that_takes_too_long_is_a_timeout(network: Network) -> None:
    handler = Handler()
    _, url = await network.serve(handler.route)
    with pytest.raises(errors.Timeout):
        await network.calls().send("POST", f"{url}/wait", timeout_s=0.1, body=b"{}")
    assert handler.entered.is_set()


async def test_the_other_side_sees_a_client_that_was_cancelled_go(network: Network) -> None:
    handler = Handler()
    _, url = await network.serve(handler.route)
    calling = asyncio.create_task(
        network.calls().send("POST", f"{url}/wait", timeout_s=1.0, body=b"{}")
    )
    async with asyncio.timeout(WAIT_S):
        await handler.entered.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await handler.gone.wait()


async def test_a_call_that_is_under_way_when_all_are_given_up_fails(network: Network) -> None:
    handler = Handler()
    _, url = await network.serve(handler.route)
    calls = network.calls()
    calling = asyncio.create_task(calls.send("POST", f"{url}/wait", timeout_s=WAIT_S, body=b"{}"))
    async with asyncio.timeout(WAIT_S):
        await handler.entered.wait()
        await calls.close()
        with pytest.raises(errors.NotNow):
            await calling


async def test_a_stop_lets_answers_leave(network: Network) -> None:
    handler = Handler()
    listener, url = await network.serve(handler.route)
    calling = asyncio.create_task(
        network.calls().send("POST", f"{url}/wait", timeout_s=WAIT_S, body=b"{}")
    )
    async with asyncio.timeout(WAIT_S):
        await handler.entered.wait()
        stopping = asyncio.create_task(listener.stop(WAIT_S))
        await asyncio.sleep(0)
        handler.go_on.set()
        assert (await calling).body == b"done"
        await stopping


async def test_a_stop_cuts_off_what_takes_longer(network: Network) -> None:
    handler = Handler()
    listener, url = await network.serve(handler.route)
    calling = asyncio.create_task(
        network.calls().send("POST", f"{url}/wait", timeout_s=WAIT_S, body=b"{}")
    )
    async with asyncio.timeout(WAIT_S):
        await handler.entered.wait()
        await listener.stop(0.05)
        try:
            assert (await calling).status == 500
        except errors.OutcomeUnknown:
            pass


async def test_a_stop_ends_streams_at_once(network: Network) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"."
                begun.set()
                await asyncio.Event().wait()
        finally:
            ended.set()

    async def answer(_request: Request) -> StreamResponse:
        return StreamResponse(200, {}, endless())

    listener, url = await network.serve(Route("GET", "/dots", answer))
    calling = asyncio.create_task(network.calls().send("GET", f"{url}/dots", timeout_s=WAIT_S))
    async with asyncio.timeout(WAIT_S / 2):
        await begun.wait()
        await listener.stop(WAIT_S)
        await ended.wait()
        await asyncio.wait([calling])


async def test_an_address_is_taken_until_its_listener_stops(network: Network) -> None:
    first, url = await network.serve()
    port = int(url.rpartition(":")[2])
    second = network.listener()
    with pytest.raises(errors.PortInUse, match=r"some\.port"):
        await second.start(HttpApp([]), HOST, port, setting="some.port")
    await first.stop(0.2)
    assert await second.start(HttpApp([]), HOST, port) == port
    await second.stop(0.2)


async def test_one_that_was_never_started_is_stopped_at_once(network: Network) -> None:
    await network.listener().stop(WAIT_S)


async def test_an_answer_that_is_larger_than_it_may_be_is_none_and_isnt_read() -> None:
    async with AsyncExitStack() as stack:
        network = Network("granian", MemoryWeb(), stack)
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            while True:
                sent += 64 * 1024
                yield b"k" * 64 * 1024

        async def answer(_request: Request) -> StreamResponse:
            return StreamResponse(200, {"content-type": "application/json"}, endless())

        async def small(_request: Request) -> Response:
            return json_response({"keys": []})

        _, url = await network.serve(Route("GET", "/keys", answer), Route("GET", "/small", small))
        calls = PooledCalls(connect_timeout_s=WAIT_S, max_answer_bytes=256 * 1024)
        stack.push_async_callback(calls.close)
        with pytest.raises(errors.TooLarge):
            await calls.send("GET", f"{url}/keys", timeout_s=WAIT_S)
        assert sent < 64 * 1024 * 1024
        found = await calls.send("GET", f"{url}/small", timeout_s=WAIT_S)
        assert (found.status, found.body) == (200, b'{"keys":[]}')
