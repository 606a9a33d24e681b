"""The application and either server together, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest
from pyreqwest.client import Client, ClientBuilder

from headgate import errors
from headgate.adapters.http.http1_server import Http1Server
from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.model.http import Request, Response, Route, StreamResponse, json_response

LOOPBACK = "127.0.0.1"
Kind = type[HttpServer] | type[Http1Server]


class Greeting(msgspec.Struct, forbid_unknown_fields=True):
    name: str


async def greet(request: Request) -> Response:
    body = await request.decode(Greeting, 1_000)
    return json_response({"hello": body.name, "from": request.params["place"]}, 201)


async def echo(request: Request) -> Response:
    return json_response(
        {"query": request.query, "header": request.headers.get("X-Thing"), "path": request.path}
    )


async def refuse(request: Request) -> Response:
    raise errors.UnknownTopic("there is no topic 'x'", topic="x")


async def later(request: Request) -> Response:
    raise errors.Overloaded("too much at once; try again")


async def decode_wrong(request: Request) -> Response:
    msgspec.json.decode(b"{", type=Greeting)
    return Response()


async def crash(request: Request) -> Response:
    raise ZeroDivisionError("secret detail")


ROUTES = [
    Route("POST", "/places/{place}/greet", greet),
    Route("GET", "/echo", echo),
    Route("GET", "/things/{name}", echo),
    Route("GET", "/refuse", refuse),
    Route("GET", "/later", later),
    Route("GET", "/decode", decode_wrong),
    Route("GET", "/crash", crash),
]


@contextlib.asynccontextmanager
async def serving(kind: Kind, routes: list[Route]) -> AsyncIterator[str]:
    server = kind()
    port = await server.start(HttpApp(routes), LOOPBACK, 0)
    try:
        yield f"http://{LOOPBACK}:{port}"
    finally:
        await server.stop(2.0)


CASES = [
    pytest.param((HttpServer, "http/1.1"), id="granian-http/1.1"),
    pytest.param((HttpServer, "http/2"), id="granian-http/2"),
    pytest.param((Http1Server, "http/1.1"), id="own-http/1.1"),
]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Kind, str]:
    chosen: tuple[Kind, str] = request.param
    return chosen


@pytest.fixture
def kind(case: tuple[Kind, str]) -> Kind:
    return case[0]


@pytest.fixture
async def client(case: tuple[Kind, str]) -> AsyncIterator[Client]:
    builder = ClientBuilder().timeout(timedelta(seconds=10))
    if case[1] == "http/2":
        builder = builder.http2_prior_knowledge()
    async with builder.build() as client:
        yield client


async def test_handler_gets_params_body_query_and_headers(client: Client, kind: Kind) -> None:
    async with serving(kind, ROUTES) as url:
        answer = (
            await client.post(f"{url}/places/oslo/greet")
            .header("content-type", "application/json")
            .body_bytes(b'{"name":"ada"}')
            .build()
            .send()
        )
        assert (answer.status, await answer.json()) == (201, {"hello": "ada", "from": "oslo"})
        answer = (
            await client.get(f"{url}/echo?a=1&b=%C3%A5&b=2&c=")
            .header("x-thing", "y")
            .build()
            .send()
        )
        assert await answer.json() == {
            "query": {"a": "1", "b": "2", "c": ""},
            "header": "y",
            "path": "/echo",
        }


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        pytest.param("GET", "/refuse", b"", 404, "unknown_topic", id="headgate error"),
        pytest.param("GET", "/later", b"", 503, "overloaded", id="not now"),
        pytest.param("GET", "/nowhere", b"", 404, "not_found", id="unknown path"),
        pytest.param("GET", "/things/", b"", 404, "not_found", id="empty parameter"),
        pytest.param("DELETE", "/echo", b"", 405, "method_not_allowed", id="wrong method"),
        pytest.param("POST", "/places/oslo/greet", b"{", 400, "invalid", id="broken json"),
        pytest.param("POST", "/places/oslo/greet", b'{"name":1}', 400, "invalid", id="wrong type"),
        pytest.param(
            "POST", "/places/oslo/greet", b'{"name":"a","x":1}', 400, "invalid", id="unknown field"
        ),
        pytest.param("POST", "/places/oslo/greet", b"x" * 1_001, 413, "too_large", id="too large"),
        pytest.param("GET", "/decode", b"", 400, "invalid", id="decode error in a handler"),
        pytest.param("GET", "/crash", b"", 500, "internal", id="bug"),
        pytest.param("GET", "/echo?a=%ff", b"", 400, "invalid", id="query that is not UTF-8"),
    ],
)
async def test_every_failure_has_the_documented_body(
    client: Client, kind: Kind, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    async with serving(kind, ROUTES) as url:
        message = client.request(method, url + path).header("content-type", "application/json")
        answer = await (message.body_bytes(body) if body else message).build().send()
        text = await answer.text()
    assert answer.status == status
    error = json.loads(text)["error"]
    assert error["code"] == code
    assert set(error) == {"code", "message", "details"}
    assert "Traceback" not in text
    assert "secret" not in text


async def test_wrong_method_names_the_allowed_ones_and_not_now_says_when(
    client: Client, kind: Kind
) -> None:
    async with serving(kind, ROUTES) as url:
        wrong = await client.delete(f"{url}/echo").build().send()
        busy = await client.get(f"{url}/later").build().send()
    assert wrong.get_header("allow") == "GET"
    assert busy.get_header("retry-after") == "1"


async def test_a_bug_is_logged_with_its_traceback(
    client: Client, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(kind, ROUTES) as url:
        await client.get(f"{url}/crash").build().send()
    assert any(
        record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records
    )


@pytest.mark.parametrize("kind", [HttpServer, Http1Server])
async def test_chunked_body_over_the_limit_is_refused_before_it_has_ended(kind: Kind) -> None:
    async with serving(kind, ROUTES) as url:
        reader, writer = await asyncio.open_connection(LOOPBACK, int(url.rsplit(":", 1)[1]))
        writer.write(b"POST /places/oslo/greet HTTP/1.1\r\nhost: x\r\n")
        writer.write(b"content-type: application/json\r\n")
        writer.write(b"transfer-encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 2_000 + b"\r\n")
        status_line = await asyncio.wait_for(reader.readline(), 30)
        writer.transport.abort()
    assert b" 413 " in status_line


async def refuse_in_the_middle(request: Request) -> Response:
    def no_more(size_bytes: int, is_whole: bool) -> None:  # as it is called
        if size_bytes > 100_000:
            raise errors.Overloaded("there is no room for that now")

    return Response(200, await request.body(100_000_000, arrived=no_more))


@pytest.mark.parametrize("kind", [HttpServer, Http1Server])
async def test_a_refusal_in_the_middle_of_a_body_reaches_who_still_sends(kind: Kind) -> None:
    async def refused(port: int) -> bytes:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"POST /take HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\n")
        for _ in range(80):
            writer.write(b"x" * 100_000)
            await writer.drain()
        status_line = await reader.readline()
        writer.transport.abort()
        return status_line

    async with serving(kind, [Route("POST", "/take", refuse_in_the_middle)]) as url:
        port = int(url.rsplit(":", 1)[1])
        answers = await asyncio.gather(*(refused(port) for _ in range(20)))
    assert [answer.split()[1] for answer in answers] == [b"503"] * 20


async def test_stream_ends_when_the_client_leaves(client: Client, kind: Kind) -> None:
    closed = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def handler(request: Request) -> StreamResponse:
        return StreamResponse(200, {"content-type": "text/plain"}, chunks())

    async with serving(kind, [Route("GET", "/stream", handler)]) as url:
        async with (
            client.get(f"{url}/stream").streamed_read_buffer_limit(0).build_streamed() as answer
        ):
            chunk = await answer.body_reader.read_chunk()
            assert chunk is not None
            assert bytes(chunk) == b"first"
            assert not closed.is_set()
        await asyncio.wait_for(closed.wait(), 30)


async def test_stalled_reader_stops_the_stream_instead_of_filling_the_memory(
    client: Client,
    kind: Kind,
) -> None:
    produced = 0
    chunk = b"x" * 65_536

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal produced
        while True:
            produced += len(chunk)
            assert produced < 64 * 1_024 * 1_024, "nothing holds the stream back"
            yield chunk

    async def handler(request: Request) -> StreamResponse:
        return StreamResponse(200, {}, chunks())

    async with (
        serving(kind, [Route("GET", "/stream", handler)]) as url,
        client.get(f"{url}/stream").streamed_read_buffer_limit(0).build_streamed() as answer,
    ):
        await answer.body_reader.read_chunk()
        before = -1
        async with asyncio.timeout(30):
            while produced != before:
                before = produced
                await asyncio.sleep(0.2)
        assert produced < 64 * 1_024 * 1_024


async def test_stop_ends_streams_and_frees_the_port(client: Client, kind: Kind) -> None:
    closed = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def handler(request: Request) -> StreamResponse:
        return StreamResponse(200, {}, chunks())

    server = kind()
    port = await server.start(HttpApp([Route("GET", "/stream", handler)]), LOOPBACK, 0)
    async with (
        client.get(f"http://{LOOPBACK}:{port}/stream")
        .streamed_read_buffer_limit(0)
        .build_streamed() as answer
    ):
        await answer.body_reader.read_chunk()
        await asyncio.wait_for(server.stop(1.0), 4)
        assert closed.is_set()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(LOOPBACK, port)
    second = kind()
    assert await second.start(HttpApp(ROUTES), LOOPBACK, port) == port
    await second.stop(1.0)


async def test_stop_is_bounded_by_its_timeout_when_a_handler_hangs(
    client: Client, kind: Kind
) -> None:
    entered = asyncio.Event()

    async def hang(request: Request) -> Response:
        entered.set()
        await asyncio.Event().wait()
        return Response()

    server = kind()
    port = await server.start(HttpApp([Route("GET", "/hang", hang)]), LOOPBACK, 0)
    call = asyncio.ensure_future(client.get(f"http://{LOOPBACK}:{port}/hang").build().send())
    await asyncio.wait_for(entered.wait(), 30)
    await asyncio.wait_for(server.stop(0.2), 3)
    with contextlib.suppress(Exception):
        await asyncio.wait_for(call, 3)


async def test_stop_lets_a_running_request_finish(client: Client, kind: Kind) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Response:
        entered.set()
        await release.wait()
        return json_response({"done": True})

    server = kind()
    port = await server.start(HttpApp([Route("GET", "/slow", slow)]), LOOPBACK, 0)
    call = asyncio.ensure_future(client.get(f"http://{LOOPBACK}:{port}/slow").build().send())
    await asyncio.wait_for(entered.wait(), 30)
    stopping = asyncio.ensure_future(server.stop(5.0))
    await asyncio.sleep(0)
    release.set()
    answer = await asyncio.wait_for(call, 30)
    assert await answer.json() == {"done": True}
    await asyncio.wait_for(stopping, 30)


@pytest.mark.parametrize("kind", [HttpServer, Http1Server])
async def test_port_in_use_is_one_sentence_that_names_the_setting(kind: Kind) -> None:
    with socket.socket() as taken:
        # Even a listener that shares its port is a port in use.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(errors.PortInUse) as caught:
            await kind().start(HttpApp(ROUTES), LOOPBACK, port, setting="public.port")
    assert str(caught.value) == (
        f"port {port} on 127.0.0.1 is in use; stop what listens there or set public.port"
    )


@pytest.mark.parametrize("kind", [HttpServer, Http1Server])
async def test_address_of_another_machine_is_an_operator_error(kind: Kind) -> None:
    with pytest.raises(errors.OperatorError, match=r"cannot listen on 192\.0\.2\.1:0"):
        await kind().start(HttpApp(ROUTES), "192.0.2.1", 0)


@pytest.mark.parametrize("kind", [HttpServer, Http1Server])
async def test_signal_handlers_and_logging_of_the_process_stay_as_they_were(kind: Kind) -> None:
    class Recorder(logging.Handler):
        closed = False

        def emit(self, record: logging.LogRecord) -> None:
            pass

        def close(self) -> None:
            self.closed = True
            super().close()

    recorder = Recorder()
    root = logging.getLogger()
    root.addHandler(recorder)
    try:
        handlers = list(root.handlers)
        signals = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        async with serving(kind, ROUTES):
            assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == (
                signals
            )
            assert root.handlers == handlers
            assert not recorder.closed
    finally:
        root.removeHandler(recorder)
