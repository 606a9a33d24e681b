"""The clients of the append benchmark: a process that sends produce requests as fast as it can.

Bodies are made before the clock starts, answers are looked at after it has stopped, and HTTP is
spoken by a few lines on a socket, so that the clients take as little as possible of the machine
they share with what is measured. Every event must have been acknowledged, else there is no answer.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from headgate.bench.append_rows import document, event_id, key
from headgate.bench.result import Failed
from headgate.bench.worker import serve
from headgate.client.http import topic_path
from headgate.model.api import ProduceAnswer, ProduceEvent, ProduceRequest

REQUEST_TIMEOUT_S = 30.0

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n")


class Load(msgspec.Struct):
    """`per_s` events per second in all, or as fast as it goes."""

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


class Sent(msgspec.Struct):
    seconds: float
    latencies_ms: list[float]


def run(load: Load) -> Sent:
    if sys.platform == "win32":
        return asyncio.run(_run(load))
    import uvloop

    return uvloop.run(_run(load))


async def _run(load: Load) -> Sent:
    requests = iter([_request(load, number) for number in range(load.requests)])
    clients = [await _Client.connect(load.url) for _ in range(load.clients)]
    started_s = time.perf_counter()
    await asyncio.gather(*(client.send_all(load, requests) for client in clients))
    seconds = time.perf_counter() - started_s
    for client in clients:
        client.close()
        for answer in client.answers:
            _check(answer)
    return Sent(seconds, [one for client in clients for one in client.latencies_ms])


class _Client:
    """One connection that is kept, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.answers: list[bytes] = []
        self.latencies_ms: list[float] = []

    @classmethod
    async def connect(cls, url: str) -> _Client:
        address = urlsplit(url)
        return cls(*await asyncio.open_connection(address.hostname, address.port))

    async def send_all(self, load: Load, requests: Iterator[bytes]) -> None:
        """Take requests until none is left, at its share of the rate if there is one."""
        interval_s = 0.0 if load.per_s is None else load.clients * load.events / load.per_s
        due_s = time.perf_counter()
        for request in requests:
            if interval_s:
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                due_s += interval_s
            sent_s = time.perf_counter()
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                self.answers.append(await self._exchange(request))
            self.latencies_ms.append((time.perf_counter() - sent_s) * 1_000)

    async def _exchange(self, request: bytes) -> bytes:
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        found = _LENGTH.search(head)
        body = await self._reader.readexactly(int(found[1]) if found else 0)
        if b" 200 " not in head[:16]:
            raise Failed(f"a request was refused: {body.decode(errors='replace')}")
        return body

    def close(self) -> None:
        self._writer.close()


def _check(answer: bytes) -> None:
    for result in msgspec.json.decode(answer, type=ProduceAnswer).events:
        if result.seq is None:
            raise Failed(f"an event was not acknowledged: {result.error}")


def _request(load: Load, number: int) -> bytes:
    body = _body(load, number)
    head = (
        f"POST {topic_path(load.topic)}/produce HTTP/1.1\r\nhost: {urlsplit(load.url).netloc}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
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
