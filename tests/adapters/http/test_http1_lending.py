"""A lone client's connection in a thread: the same answers, and the loop has it back in time."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.adapters.http import http1_lending
from headgate.adapters.http.app import HttpApp, Request, Response, Route, json_response
from headgate.adapters.http.http1_heads import Heads
from headgate.adapters.http.http1_lending import LONE_AFTER
from headgate.adapters.http.http1_limits import Http1Limits
from headgate.adapters.http.http1_server import Http1Server
from headgate.adapters.http.messages import Ready
from headgate.tasks import deaths
from tests.adapters.http.wire import LOOPBACK, Wire
from tests.waiting import until

BODY_LIMIT = 5_000_000
THREAD, LOOP = "lone client", "loop"


class Site:
    """Answers with where it was answered, and what came. `block` runs in the thread first."""

    def __init__(self, **limits: float) -> None:
        self.server = Http1Server(Http1Limits(**limits))  # type: ignore[arg-type]
        self.block: Callable[[Request, bytes], bool] = lambda _request, _body: True
        self.asked: list[tuple[str, bytes]] = []
        self.afterwards = threading.Event()
        self.port = 0

    async def start(self) -> None:
        routes = [
            Route("POST", "/echo/{name}", self._echo, blocking=self._echo_here),
            Route("POST", "/plain", self._echo),
            Route("GET", "/hello", self._hello),
        ]
        self.port = await self.server.start(HttpApp(routes), LOOPBACK, 0)

    async def _hello(self, _request: Request) -> Response:
        return json_response("hello")

    async def _echo(self, request: Request) -> Response:
        body = await request.body(BODY_LIMIT)
        self.asked.append((LOOP, body))
        return _echoed(LOOP, body)

    def _echo_here(self, request: Request, body: bytes, ready: Ready) -> None:
        self.asked.append((THREAD, body))
        if self.block(request, body):
            ready(_echoed(threading.current_thread().name, body))()
            self.afterwards.set()


def _echoed(where: str, body: bytes) -> Response:
    return json_response([where, body.decode("latin-1")])


@asynccontextmanager
async def running(**limits: float) -> AsyncIterator[Site]:
    site = Site(**limits)
    await site.start()
    try:
        yield site
    finally:
        await site.server.stop(1.0)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running() as started:
        yield started


def post(body: bytes, *fields: str, path: str = "/echo/a") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", *fields]
    if not any(field.startswith("transfer-encoding") for field in fields):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def ask(wire: Wire, body: bytes) -> str:
    """Where `body` was answered; nobody may confuse it with another."""
    wire.send(post(body))
    status, _, answer = await wire.answer()
    where, echoed = json.loads(answer)
    assert (status, echoed) == (200, body.decode("latin-1"))
    return str(where)


async def lone(site: Site) -> Wire:
    """A client whose connection a thread has."""
    wire = await Wire.dial(site.port)
    for number in range(LONE_AFTER):
        assert await ask(wire, b"%d" % number) == LOOP
    assert await ask(wire, b"x") == THREAD
    return wire


async def test_a_client_that_is_alone_is_answered_by_a_thread(site: Site) -> None:
    wire = await lone(site)
    assert [await ask(wire, b"%d" % number) for number in range(50)] == [THREAD] * 50
    await wire.close()


async def test_two_clients_are_answered_on_the_loop(site: Site) -> None:
    first, second = await Wire.dial(site.port), await Wire.dial(site.port)
    for _ in range(3 * LONE_AFTER):
        assert (await ask(first, b"1"), await ask(second, b"2")) == (LOOP, LOOP)
    await first.close()
    await second.close()


async def test_a_second_client_brings_the_first_ones_connection_back(site: Site) -> None:
    first, second = await lone(site), await Wire.dial(site.port)
    assert await ask(second, b"2") == LOOP
    await until(lambda: site.server.lent == 0)
    assert await ask(first, b"1") == LOOP
    await first.close()
    await second.close()


async def test_who_only_looks_disturbs_nobody(site: Site) -> None:
    wire, onlooker = await lone(site), await Wire.dial(site.port)
    onlooker.send(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await onlooker.answer())[2] == b'"hello"'
    assert await ask(wire, b"x") == THREAD
    await wire.close()
    await onlooker.close()


UNUSUAL = {
    "another-route": (b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n", 200, b'"hello"'),
    "no-short-way": (post(b"p", path="/plain"), 200, b'["loop","p"]'),
    "nowhere": (post(b"p", path="/nowhere"), 404, b"there is no /nowhere"),
    "wrong-method": (b"DELETE /hello HTTP/1.1\r\nhost: x\r\n\r\n", 405, b"does not take DELETE"),
    "chunks": (
        post(b"3\r\nabc\r\n0\r\n\r\n", "transfer-encoding: chunked"),
        200,
        b'["loop","abc"]',
    ),
    "no-host": (b"POST /echo/a HTTP/1.1\r\ncontent-length: 1\r\n\r\nx", 400, b"no Host"),
    "nonsense": (b"\x00\x01\x02\r\n\r\n", 400, b"not an HTTP/1.1 request"),
    "two-lengths": (
        b"POST /echo/a HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxy",
        400,
        b"not an HTTP/1.1 request",
    ),
    "last-one": (post(b"l", "connection: close"), 200, b'["loop","l"]'),
    "old": (
        b"POST /echo/a HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\no",
        200,
        b'["loop","o"]',
    ),
    "no-body": (post(b""), 200, b'["loop",""]'),
    "large": (post(b"x" * 1_000_000), 200, b"xxx"),
}


@pytest.mark.parametrize(("sent", "status", "part"), UNUSUAL.values(), ids=UNUSUAL)
async def test_what_is_unusual_is_answered_on_the_loop(
    site: Site, sent: bytes, status: int, part: bytes
) -> None:
    wire = await lone(site)
    wire.send(sent)
    answered, _, body = await wire.answer()
    assert answered == status
    assert part in body
    await wire.close()


async def test_a_client_that_asks_whether_to_go_on_is_told_to(site: Site) -> None:
    wire = await lone(site)
    wire.send(post(b"x", "expect: 100-continue")[:-1])
    assert (await wire.answer())[0] == 100
    wire.send(b"x")
    assert (await wire.answer())[2] == b'["loop","x"]'
    await wire.close()


async def test_requests_in_one_piece_are_answered_one_after_the_other(site: Site) -> None:
    wire = await lone(site)
    wire.send(b"".join(post(b"%d" % number) for number in range(5)))
    answers = [json.loads((await wire.answer())[2]) for _ in range(5)]
    assert answers == [[THREAD, str(number)] for number in range(5)]
    await wire.close()


async def test_a_request_in_pieces_is_put_together_by_the_loop(site: Site) -> None:
    wire = await lone(site)
    request = post(b"pieces")
    wire.send(post(b"whole") + request[:20])
    assert json.loads((await wire.answer())[2]) == [THREAD, "whole"]
    wire.send(request[20:])
    assert json.loads((await wire.answer())[2]) == [LOOP, "pieces"]
    await wire.close()


async def test_what_the_thread_leaves_the_handler_answers(site: Site) -> None:
    wire = await lone(site)
    site.block = lambda _request, body: body != b"left"
    assert await ask(wire, b"left") == LOOP
    assert site.asked[-2:] == [(THREAD, b"left"), (LOOP, b"left")]
    await wire.close()


async def test_what_fails_in_the_thread_the_handler_answers(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    wire = await lone(site)

    def broken(_request: Request, _body: bytes) -> bool:
        raise RuntimeError("broken on purpose")

    site.block = broken
    assert await ask(wire, b"x") == LOOP
    assert "broken on purpose" in caplog.text
    await wire.close()


async def test_a_client_that_rarely_suits_the_thread_gets_it_rarely(site: Site) -> None:
    site.block = lambda _request, _body: False
    wire = await Wire.dial(site.port)
    for _ in range(200):
        assert await ask(wire, b"x") == LOOP
    # After 8 in a row, then 16, 32, 64 …
    assert [where for where, _ in site.asked].count(THREAD) <= 5
    await wire.close()


async def test_an_answer_that_takes_long_comes_from_the_handler_once(site: Site) -> None:
    wire = await lone(site)
    going_on = threading.Event()
    site.block = lambda _request, _body: going_on.wait(10)
    assert await ask(wire, b"slow") == LOOP
    # The thread still hangs there, and the client is served all the same.
    assert [await ask(wire, b"%d" % number) for number in range(2 * LONE_AFTER)] == (
        [LOOP] * 2 * LONE_AFTER
    )
    site.afterwards.clear()
    going_on.set()
    await asyncio.to_thread(site.afterwards.wait, 10)
    await until(lambda: site.server.lent == 0)
    # Its late answer was sent to nobody: this one is the next.
    assert await ask(wire, b"next") in (LOOP, THREAD)
    await wire.close()


async def test_a_stop_waits_for_no_thread(site: Site) -> None:
    wire = await lone(site)
    going_on = threading.Event()
    site.block = lambda _request, _body: going_on.wait(30)
    wire.send(post(b"slow"))
    await until(lambda: site.asked[-1] == (THREAD, b"slow"))
    async with asyncio.timeout(5):
        await site.server.stop(2.0)
    # The usual handler answered it.
    assert json.loads((await wire.answer())[2]) == [LOOP, "slow"]
    assert await wire.rest() == b""
    going_on.set()
    await wire.close()


async def test_a_stop_ends_a_connection_that_is_lent(site: Site) -> None:
    wire = await lone(site)
    async with asyncio.timeout(5):
        await site.server.stop(2.0)
    assert await wire.rest() == b""
    await wire.close()


async def test_a_client_that_goes_away_is_forgotten(site: Site) -> None:
    wire = await lone(site)
    await wire.close()
    await until(lambda: site.server.connections == 0)
    await (await lone(site)).close()


async def test_a_client_that_falls_silent_is_the_loops_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1_lending, "SILENCE_S", 0.05)
    wire = await lone(site)
    await until(lambda: site.server.lent == 0)
    assert await ask(wire, b"again") == LOOP
    await wire.close()


async def test_a_silent_client_is_sent_away_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1_lending, "SILENCE_S", 0.05)
    async with running(idle_s=0.1) as site:
        wire = await lone(site)
        assert await wire.rest() == b""
        await wire.close()


async def test_an_answer_that_doesnt_fit_is_sent_by_the_loop(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes what it has room for; it has little, here."""
    real_send = http1_lending._send
    monkeypatch.setattr(
        http1_lending,
        "_send",
        lambda connection, answer: real_send(connection, answer[:10]) + answer[10:],
    )
    wire = await Wire.dial(site.port)
    wire.send(b"".join(post(b"%d" % number) for number in range(LONE_AFTER)))
    for number in range(LONE_AFTER):
        assert json.loads((await wire.answer())[2]) == [LOOP, str(number)]
    for number in range(2 * LONE_AFTER):
        await ask(wire, b"%d" % number)
    assert THREAD in [where for where, _ in site.asked]
    await wire.close()


@settings(max_examples=25, deadline=None)
@given(
    bodies=st.lists(st.binary(max_size=40), min_size=12, max_size=40),
    cuts=st.lists(st.integers(1, 400), max_size=12),
    left=st.sets(st.integers(0, 40)),
)
def test_whoever_answers_every_request_is_answered_once_and_in_order(
    bodies: list[bytes], cuts: list[int], left: set[int]
) -> None:
    """Bodies in any pieces; the thread leaves some of them to the loop."""

    async def scenario() -> None:
        async with running() as site:
            wanted = {bodies[number] for number in left if number < len(bodies)}
            site.block = lambda _request, body: body not in wanted
            wire = await Wire.dial(site.port)
            stream = b"".join(post(body) for body in bodies)
            at = 0
            for cut in [*cuts, len(stream)]:
                wire.send(stream[at : at + cut])
                at += cut
                await asyncio.sleep(0)
            answers = [json.loads((await wire.answer())[2])[1] for _ in bodies]
            assert answers == [body.decode("latin-1") for body in bodies]
            await wire.close()

    asyncio.run(scenario())


async def test_a_thread_that_makes_a_mistake_gives_the_connection_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = await lone(site)

    def mistaken(*_: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(Heads, "of", mistaken)
    assert site.server.lent == 1
    wire.send(post(b"lost on the way"))
    await until(lambda: site.server.lent == 0)
    assert deaths.counts() == {"lone client": 1}
    await wire.close()
