"""One client that asks for more than its share: a process that sends the same request over all of
its connections, again as soon as it is answered, whatever the answer is.

It never waits, though a refusal says for how long. Its answers are counted, so that a run shows
whether there was a flood.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from urllib.parse import urlsplit

import msgspec

from headgate.bench.append.load import length_in, run_on_loop
from headgate.bench.worker import serve

STATUS_AT = slice(9, 12)
CONNECT_PAUSE_S = 0.01


class Flood(msgspec.Struct):
    """`request` is sent as it stands, for so long."""

    url: str
    request: str
    connections: int
    seconds: float


class Flooded(msgspec.Struct):
    """How many answers there were, by status."""

    answers: dict[str, int]


def run(flood: Flood) -> Flooded:
    return run_on_loop(_run(flood))


async def _run(flood: Flood) -> Flooded:
    answers: Counter[str] = Counter()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(flood.seconds):
            await asyncio.gather(*(_keep_on(flood, answers) for _ in range(flood.connections)))
    return Flooded(dict(answers))


async def _keep_on(flood: Flood, answers: Counter[str]) -> None:
    address, request = urlsplit(flood.url), flood.request.encode()
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                while True:
                    writer.write(request)
                    answers[await _answered(reader)] += 1
            finally:
                writer.transport.abort()
        await asyncio.sleep(CONNECT_PAUSE_S)


async def _answered(reader: asyncio.StreamReader) -> str:
    """The status of an answer, all of which has been read."""
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly((length_in(head) or len(head)) - len(head))
    return head[STATUS_AT].decode("latin-1")


if __name__ == "__main__":
    serve(Flood, run)
