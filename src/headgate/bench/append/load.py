"""The clients of the append benchmark: a process that sends produce requests as fast as it can.

Bodies are made before the clock starts, answers are looked at after it has stopped, and a few lines
speak HTTP, so that the clients take as little as possible of the machine that they share with what
is measured. Every event must have been acknowledged, else there is no answer.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import sys
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from headgate.bench.append.rows import document, event_id, key
from headgate.bench.result import Failed
from headgate.bench.worker import serve
from headgate.client.http import topic_path
from headgate.model.api import ProduceAnswer, ProduceEvent, ProduceRequest

T = TypeVar("T")

REQUEST_TIMEOUT_S = 30.0
ROUND_TIMEOUT_S = 300.0

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


class Load(msgspec.Struct):
    """`per_s` events per second in all, or as fast as it goes; `token`: the credential of each
    request (empty: none)."""

    url: str
    topic: str
    round_name: str
    clients: int
    requests: int
    events: int
    document_bytes: int
    keyed: bool
    version: int | None = None
    per_s: float | None = None
    token: str = ""


class Sent(msgspec.Struct):
    seconds: float
    latencies_ms: list[float]


def run(load: Load) -> Sent:
    if load.clients == 1 and load.per_s is None:
        return _run_alone(load)
    return run_on_loop(_run(load))


def run_on_loop(work: Coroutine[Any, Any, T]) -> T:
    """On the event loop that an ingest node runs on."""
    if sys.platform == "win32":
        return asyncio.run(work)
    import uvloop

    return uvloop.run(work)


def _run_alone(load: Load) -> Sent:
    """One client needs no event loop, only a socket to wait at."""
    address = urlsplit(load.url)
    requests = [_request(load, number) for number in range(load.requests)]
    answers: list[bytes] = []
    latencies_ms: list[float] = []
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Kept by the kernel: one of Python's own would cost two more system calls per request.
        timeout = struct.pack("ll", int(REQUEST_TIMEOUT_S), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        started_s = sent_s = time.perf_counter()
        for request in requests:
            connection.sendall(request)
            answers.append(_answer_from(connection))
            now_s = time.perf_counter()
            latencies_ms.append((now_s - sent_s) * 1_000)
            sent_s = now_s
    for answer in answers:
        _check(answer)
    return Sent(sent_s - started_s, latencies_ms)


def _answer_from(connection: socket.socket) -> bytes:
    received = b""
    while data := connection.recv(65_536):
        received += data
        answer = _answer_in(received)
        if answer is not None:
            return answer
    raise Failed("the connection broke in the middle of a round")


async def _run(load: Load) -> Sent:
    address = urlsplit(load.url)
    requests = iter([_request(load, number) for number in range(load.requests)])
    loop = asyncio.get_running_loop()
    clients: list[_Client] = []
    for _ in range(load.clients):
        _, client = await loop.create_connection(
            lambda: _Client(load, requests), address.hostname or "", address.port or 80
        )
        clients.append(client)
    started_s = time.perf_counter()
    for client in clients:
        client.send()
    async with asyncio.timeout(ROUND_TIMEOUT_S):
        await asyncio.gather(*(client.done for client in clients))
    seconds = time.perf_counter() - started_s
    for client in clients:
        client.close()
        for answer in client.answers:
            _check(answer)
    return Sent(seconds, [one for client in clients for one in client.latencies_ms])


class _Client(asyncio.Protocol):
    """One connection that is kept, one request at a time, until there are no more requests.

    At its share of the rate if there is one: a request that is late is sent at once.
    """

    def __init__(self, load: Load, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self._interval_s = 0.0 if load.per_s is None else load.clients * load.events / load.per_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._received = b""
        self._sent_s = self._due_s = time.perf_counter()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self.answers: list[bytes] = []
        self.latencies_ms: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(Failed("the connection broke in the middle of a round"))

    def send(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self.done.set_result(None)
            return
        self._sent_s = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            answer = _answer_in(self._received)
        except Failed as error:
            self.done.set_exception(error)
            return
        if answer is None:
            return
        self._received = b""
        self.latencies_ms.append((time.perf_counter() - self._sent_s) * 1_000)
        self.answers.append(answer)
        if self._interval_s:
            self._due_s += self._interval_s
            self._loop.call_later(max(0.0, self._due_s - time.perf_counter()), self.send)
        else:
            self.send()

    def close(self) -> None:
        self._transport.close()


def length_in(received: bytes) -> int | None:
    """How long the message that begins with `received` is, once its head is there."""
    end = received.find(b"\r\n\r\n")
    found = _LENGTH.search(received, 0, end + 2) if end > 0 else None
    return end + 4 + int(found[1]) if found is not None else None


def _answer_in(received: bytes) -> bytes | None:
    """The body of the answer, once all of it is there."""
    length = length_in(received)
    if length is None or len(received) < length:
        return None
    body = received[received.find(b"\r\n\r\n") + 4 :]
    if b" 200 " not in received[:16]:
        raise Failed(f"a request was refused: {body.decode(errors='replace')}")
    return body


def _check(answer: bytes) -> None:
    for result in msgspec.json.decode(answer, type=ProduceAnswer).events:
        if result.seq is None:
            raise Failed(f"an event was not acknowledged: {result.error}")


def _request(load: Load, number: int) -> bytes:
    body = _body(load, number)
    said = f"authorization: Bearer {load.token}\r\n" if load.token else ""
    head = (
        f"POST {topic_path(load.topic)}/produce HTTP/1.1\r\nhost: {urlsplit(load.url).netloc}\r\n"
        f"{said}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _body(load: Load, request: int) -> bytes:
    numbers = range(request * load.events, (request + 1) * load.events)
    events = [
        ProduceEvent(
            document=msgspec.Raw(document(number, load.document_bytes)),
            key=key(number) if load.keyed else None,
            event_id=event_id(load.round_name, number),
        )
        for number in numbers
    ]
    return msgspec.json.encode(ProduceRequest(events, "30s", load.version))


if __name__ == "__main__":
    serve(Load, run)
