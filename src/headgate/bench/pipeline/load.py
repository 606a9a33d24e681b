"""The producers of `bench pipeline`: a process that keeps some produce requests under way.

As fast as it goes, or at a rate: then a request that is late is sent at once. Lean, because it
shares the machine with what is measured. Every event must be acknowledged, else there is no answer.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast
from urllib.parse import urlsplit

import msgspec
import uvloop

from headgate.bench.append.load import length_in
from headgate.bench.pipeline.events import TOPIC, produce_body
from headgate.bench.rebalance.orders import serve_orders
from headgate.bench.result import Failed
from headgate.client.http import topic_path
from headgate.model.api import ProduceAnswer


class Produce(msgspec.Struct):
    """The events from `first` on; `per_s` of them per second in all, or as fast as it goes (0)."""

    url: str
    first: int
    count: int
    per_request: int
    connections: int
    per_s: float = 0.0
    timeout_s: float = 600.0


class Produced(msgspec.Struct):
    """`fault` says why not all of them are, if so; `late_ms` how late the latest request left."""

    seconds: float = 0.0
    late_ms: float = 0.0
    fault: str = ""


class _Requests:
    """One request after the other, each with the instant at which it should leave."""

    def __init__(self, order: Produce) -> None:
        self._order = order
        self._began_s = time.perf_counter()
        self._sent = 0
        self.late_s = 0.0
        address = urlsplit(order.url)
        self._head = (
            f"POST {topic_path(TOPIC)}/produce HTTP/1.1\r\nhost: {address.netloc}\r\n"
            "content-type: application/json\r\ncontent-length: "
        ).encode()

    def wait_s(self) -> float | None:
        """How long until the next may leave; None when there is none."""
        order = self._order
        if self._sent >= order.count:
            return None
        if not order.per_s:
            return 0.0
        ahead_s = self._began_s + self._sent / order.per_s - time.perf_counter()
        self.late_s = max(self.late_s, -ahead_s)
        return max(0.0, ahead_s)

    def next(self) -> tuple[int, bytes]:
        """How many events it has, and its bytes."""
        order = self._order
        count = min(order.per_request, order.count - self._sent)
        body = produce_body(order.first + self._sent, count)
        self._sent += count
        return count, b"%b%d\r\n\r\n%b" % (self._head, len(body), body)


_decode = msgspec.json.Decoder(ProduceAnswer).decode


class _Connection(asyncio.Protocol):
    """One request at a time, until there are no more."""

    def __init__(self, requests: _Requests) -> None:
        self._requests = requests
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._received = b""
        self._asked = 0
        self.done: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._go_on()

    def connection_lost(self, _error: Exception | None) -> None:
        self._fail("a connection of a producer broke")

    def data_received(self, data: bytes) -> None:
        self._received += data
        length = length_in(self._received)
        if length is None or len(self._received) < length:
            return
        answer, self._received = self._received, b""
        body = answer[answer.find(b"\r\n\r\n") + 4 :]
        if b" 200 " not in answer[:16]:
            self._fail(f"a request was refused: {body[:500].decode(errors='replace')}")
            return
        results = _decode(body).events
        if len(results) != self._asked or any(one.seq is None for one in results):
            self._fail("an event was not acknowledged")
            return
        self._go_on()

    def close(self) -> None:
        self._transport.close()

    def _go_on(self) -> None:
        wait_s = self._requests.wait_s()
        if wait_s is None:
            if not self.done.done():
                self.done.set_result(None)
        elif wait_s:
            self._loop.call_later(wait_s, self._go_on)
        else:
            self._asked, request = self._requests.next()
            self._transport.write(request)

    def _fail(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(Failed(reason))


async def produce(order: Produce) -> Produced:
    address = urlsplit(order.url)
    loop = asyncio.get_running_loop()
    requests = _Requests(order)
    connections: list[_Connection] = []
    began_s = time.perf_counter()
    try:
        for _ in range(order.connections):
            _, made = await loop.create_connection(
                lambda: _Connection(requests), address.hostname or "", address.port or 80
            )
            connections.append(made)
        async with asyncio.timeout(order.timeout_s):
            await asyncio.gather(*(one.done for one in connections))
    except (Failed, OSError, TimeoutError) as error:
        return Produced(fault=str(error) or type(error).__name__)
    finally:
        for one in connections:
            one.close()
    return Produced(time.perf_counter() - began_s, round(requests.late_s * 1_000, 1))


async def run() -> None:
    produce_body(0, 1)  # makes the documents, which takes a moment
    await serve_orders(Produce, produce)


if __name__ == "__main__":
    uvloop.run(run())
