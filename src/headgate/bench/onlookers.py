"""Browsers with the dashboard open, as far as a Headgate notices them: streams of the overview.

They are read in a process of their own, which is this module run as a program, so that the process
that measures doesn't pay for it. Invariant: a stream that ends is an error, because a ratio of a
run that nobody watched says nothing.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import msgspec

from headgate.bench.rebalance.orders import serve_orders
from headgate.bench.result import Failed
from headgate.bench.worker import Worker
from headgate.tasks import Crew

BROWSERS = 10
OPEN_TIMEOUT_S = 20.0
REQUEST = "GET /v1/overview/stream HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n"
EVENT = b"event: overview"


class Look(msgspec.Struct, tag=True):
    """Open so many streams there; answered when each has seen all once."""

    url: str
    browsers: int


class Tell(msgspec.Struct, tag=True):
    pass


class Looks(msgspec.Struct):
    """What the streams have brought together."""

    events: int
    open: int


async def look_on(eyes: Worker, url: str) -> None:
    await eyes.ask(Look(url, BROWSERS), Looks)


async def check(eyes: Worker) -> None:
    """Whether all of them looked on to the end."""
    seen = await eyes.ask(Tell(), Looks)
    if seen.open < BROWSERS or seen.events <= BROWSERS:
        raise Failed(f"only {seen.open} of {BROWSERS} browsers looked on: {seen.events} events")


class Browsers:
    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._seen = Looks(0, 0)

    async def answer(self, order: Look | Tell) -> Looks:
        if isinstance(order, Look):
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await asyncio.gather(*(self._open(order.url) for _ in range(order.browsers)))
        return self._seen

    async def _open(self, url: str) -> None:
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(REQUEST.format(host=address.netloc).encode())
        await reader.readuntil(EVENT)
        self._seen.events += 1
        self._seen.open += 1
        self._crew.start("looking on", self._read(reader, writer))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1 << 16):
                self._seen.events += piece.count(EVENT)
        finally:
            self._seen.open -= 1
            writer.close()


async def run() -> None:
    async with Crew("onlookers") as crew:
        await serve_orders(Look | Tell, Browsers(crew).answer)


if __name__ == "__main__":
    asyncio.run(run())
