"""The least that can stand between a client and a durable row: what a single request could reach.

An HTTP/1.1 protocol on the event loop that looks at nothing but where a request ends, a hop to a
thread, the bare store's commit of one row, the hop back, and an answer of the same form. No JSON,
no routing, no checks. Its rate next to the bare store's shows what sockets and hops leave, on this
machine, to any server that doesn't commit on its event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec

from headgate.adapters.embedded.log.schema import LOG_SCHEMA, rows
from headgate.adapters.embedded.sqlite import connect
from headgate.bench.append.bare import IDS, RECORDS
from headgate.bench.append.load import length_in, run_on_loop
from headgate.bench.append.rows import document, event_id, key
from headgate.bench.worker import serve
from headgate.tasks import start_thread

START_TIMEOUT_S = 30.0
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class ServeBare(msgspec.Struct):
    folder: str
    document_bytes: int


class Serving(msgspec.Struct):
    """From now on, until the process ends."""

    url: str


def run(order: ServeBare) -> Serving:
    port: queue.SimpleQueue[int] = queue.SimpleQueue()
    start_thread("bare server", lambda: run_on_loop(_listen(order, port)))
    return Serving(f"http://127.0.0.1:{port.get(timeout=START_TIMEOUT_S)}")


async def _listen(order: ServeBare, port: queue.SimpleQueue[int]) -> None:
    writer = _Writer(order)
    start_thread("bare writer", writer.run)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Protocol(writer), "127.0.0.1", 0)
    port.put(server.sockets[0].getsockname()[1])
    await server.serve_forever()


class _Writer:
    """Commits one row after the other, and tells the event loop of each."""

    def __init__(self, order: ServeBare) -> None:
        self._order = order
        self._loop = asyncio.get_running_loop()
        self.waiting: queue.SimpleQueue[Callable[[bytes], None]] = queue.SimpleQueue()

    def run(self) -> None:
        connection = connect(Path(self._order.folder) / "protocol.db", LOG_SCHEMA)
        ids, records = IDS + rows(3, 1), RECORDS + rows(10, 1)
        body = document(0, self._order.document_bytes)
        for seq in itertools.count(1):
            answer = self.waiting.get()
            name = event_id("protocol", seq)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(ids, (name, seq, 0))
            connection.execute(records, (seq, 1, name, key(seq), "", "insert", body, None, None, 0))
            connection.execute("UPDATE partition SET head = ?", (seq,))
            connection.execute("COMMIT")
            told = b'{"events":[{"event_id":"%b","partition":0,"seq":%d}]}' % (name.encode(), seq)
            self._loop.call_soon_threadsafe(answer, ANSWER % (len(told), told))


class _Protocol(asyncio.Protocol):
    """One request at a time, as the one client sends them."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        length = length_in(self._received)
        if length is not None and len(self._received) >= length:
            self._received = b""
            self._writer.waiting.put(self._transport.write)


if __name__ == "__main__":
    serve(ServeBare, run)
