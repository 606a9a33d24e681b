"""Connections on which nothing is said, or which say it slowly, to the server that granian is."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from headgate.adapters.http.resting import Patience, Peer, Resting, _SpareNumber
from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.model.http import Request, Response, Route, StreamResponse

LOOPBACK = "127.0.0.1"
WAIT_S = 30.0
FILES_LEFT = 60
SHORT = Patience(silent_s=0.3, stall_s=0.3, bytes_per_s=1_000.0, resting_s=0.6, look_every_s=0.05)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HEAD = b"POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def read(request: Request) -> Response:
    return Response(200, await request.body(1_000))


@contextlib.asynccontextmanager
async def serving(*routes: Route, patience: Patience = SHORT) -> AsyncIterator[int]:
    server = HttpServer(patience=patience)
    port = await server.start(HttpApp([Route("POST", "/read", read), *routes]), LOOPBACK, 0)
    try:
        yield port
    finally:
        await server.stop(2.0)


@contextlib.asynccontextmanager
async def connected(port: int, *, said: bytes = b"") -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(said)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def rest_of(streams: Streams) -> bytes:
    """What comes until the other end closes; raises TimeoutError where it doesn't."""
    return await asyncio.wait_for(streams[0].read(), WAIT_S)


@pytest.mark.parametrize(
    "said", [b"", b"\x00", PREFACE[:10]], ids=["nothing", "a byte", "half of a preface"]
)
async def test_who_says_nothing_that_is_a_request_is_gone(said: bytes) -> None:
    async with serving() as port, connected(port, said=said) as streams:
        await rest_of(streams)


async def test_http2_that_rests_is_gone_later_than_who_says_nothing() -> None:
    async with serving() as port:
        began_s = time.monotonic()
        async with connected(port, said=PREFACE) as streams:
            await rest_of(streams)
        # The kernel counts in ticks of its own.
        assert time.monotonic() - began_s >= SHORT.resting_s - 0.05


async def test_who_is_being_answered_is_waited_for_however_long_nothing_is_said() -> None:
    may_end = asyncio.Event()
    came = asyncio.Event()

    async def think(_request: Request) -> Response:
        came.set()
        await may_end.wait()
        return Response(200, b"at last")

    async def chunks() -> AsyncIterator[bytes]:
        yield b"first"
        await may_end.wait()
        yield b"last"

    async def stream(_request: Request) -> StreamResponse:
        return StreamResponse(200, {"content-type": "text/plain"}, chunks())

    routes = (Route("GET", "/think", think), Route("GET", "/stream", stream))
    # An answer may be the server's to write for as long as from one look to the next.
    async with serving(*routes, patience=replace(SHORT, look_every_s=0.5)) as port:
        asked = b"GET %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        async with (
            connected(port, said=asked % b"/think") as thinking,
            connected(port, said=asked % b"/stream") as streaming,
        ):
            await asyncio.wait_for(came.wait(), WAIT_S)
            async with connected(port, said=PREFACE) as idle:
                await rest_of(idle)  # which rests as long as they do
            may_end.set()
            assert b"at last" in await rest_of(thinking)
            assert b"last" in await rest_of(streaming)


async def test_looking_at_connections_leaves_the_process_the_locks_it_has(tmp_path: Path) -> None:
    """A process that closes any name of a file loses all its locks on it, those of SQLite too."""
    store = apsw.Connection(str(tmp_path / "store.db"))
    for statement in ("PRAGMA journal_mode=WAL", "CREATE TABLE kept (n)"):
        store.execute(statement)
    had = locks_of_this_process()
    assert had
    async with serving() as port, connected(port) as streams:
        await rest_of(streams)
        assert locks_of_this_process() == had
    store.close()


async def test_an_answer_that_is_written_only_now_is_waited_for() -> None:
    """The request is answered already, and nothing newer was said than the request."""
    answered: set[Peer] = set()
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)) as client, listener.accept()[0] as ours:
            answered.add(client.getsockname())
            patience = Patience(silent_s=0.0, resting_s=0.0)
            resting, spare = Resting(port, lambda: answered, patience), _SpareNumber()
            await resting._look(spare)
            answered.clear()
            await resting._look(spare)
            ours.sendall(b"at last")
            assert client.recv(100) == b"at last"
            await resting._look(spare)
            assert client.recv(100) == b""
            spare.close()


async def test_a_number_that_a_file_has_by_now_is_never_closed(tmp_path: Path) -> None:
    spare = _SpareNumber()
    with (tmp_path / "locked").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        had = locks_of_this_process()
        assert had
        with pytest.raises(OSError, match="no connection"), spare.holding(file.fileno()):
            pass
        with socket.socket() as other, spare.holding(other.fileno()) as held:
            assert held != other.fileno()
        spare.close()
        assert locks_of_this_process() == had
    assert locks_of_this_process() == []


def locks_of_this_process() -> list[str]:
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sorted(" ".join(lock[1:]) for lock in held if lock[4] == str(os.getpid()))


async def test_a_body_that_stops_is_answered_408() -> None:
    async with serving() as port, connected(port, said=HEAD + b"{") as streams:
        assert b" 408 " in (await rest_of(streams)).splitlines()[0]


async def test_a_body_that_comes_a_byte_at_a_time_is_answered_408() -> None:
    async with serving() as port, connected(port, said=HEAD) as (reader, writer):
        answer = asyncio.ensure_future(rest_of((reader, writer)))
        for _ in range(99):
            writer.write(b"x")
            await asyncio.wait([answer], timeout=SHORT.stall_s / 10)
            if answer.done():
                break
        assert b" 408 " in (await answer).splitlines()[0]


async def test_a_body_in_pieces_is_read() -> None:
    async with serving() as port, connected(port, said=HEAD) as (reader, writer):
        for _ in range(10):
            writer.write(b"y" * 10)
            await writer.drain()
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
        assert b" 200 " in head.splitlines()[0]
        assert await asyncio.wait_for(reader.readexactly(100), WAIT_S) == b"y" * 100


@pytest.fixture
def few_files() -> Iterator[None]:
    """This process may have few files more, so many whatever it has open already: granian ends a
    process that has none left for a server that begins."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        few = [stack.enter_context(socket.socket()).fileno() for _ in range(FILES_LEFT)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(few) + 1, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
async def test_those_who_say_nothing_take_no_file_for_good() -> None:
    async with serving() as port:
        silent: list[socket.socket] = []
        with contextlib.suppress(OSError):
            while True:
                silent.append(socket.create_connection((LOOPBACK, port), timeout=WAIT_S))
                await asyncio.sleep(0.01)  # the server takes it
        with pytest.raises(OSError, match="Too many open files"):
            socket.socket()
        try:
            for one in silent:
                one.setblocking(False)
                with contextlib.suppress(ConnectionError):
                    assert (
                        await asyncio.wait_for(asyncio.get_running_loop().sock_recv(one, 1), WAIT_S)
                        == b""
                    )
        finally:
            for one in silent:
                one.close()
        async with connected(port, said=HEAD + b"z" * 100) as (reader, _):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
            assert b" 200 " in head.splitlines()[0]
