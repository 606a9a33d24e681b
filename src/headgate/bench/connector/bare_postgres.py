"""The baselines of `bench connector` in PostgreSQL: psycopg alone reads a stream, or the rows of a
table, into nothing. A process of its own.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import psycopg

from headgate.bench.connector.bare import Drained
from headgate.bench.worker import serve

BATCH = 1_000
ROWS = 2_000
"""Of a cursor at a time, as the connector takes them."""
SILENCE_S = 30.0
_HEAD = 25
"""Of a part of the stream, before the message itself."""
_CHANGE = ord("I"), ord("U"), ord("D")


class BareRead(msgspec.Struct, frozen=True):
    """`changes` of the stream of `slot` behind `lsn`, which is never acknowledged; where `slot` is
    empty, the rows of `table`. The clock starts with the second batch, as for the connector."""

    dsn: str
    changes: int
    slot: str = ""
    publication: str = ""
    lsn: str = ""
    table: str = ""


class _Clock:
    def __init__(self) -> None:
        self.counted = 0
        self._began_at = 0
        self._began_s = self._cpu_s = 0.0

    def count(self, changes: int) -> None:
        self.counted += changes
        if not self._began_at and self.counted >= BATCH:
            self._began_at = self.counted
            self._began_s, self._cpu_s = time.perf_counter(), time.process_time()

    def end(self) -> Drained:
        return Drained(
            self.counted - self._began_at,
            time.perf_counter() - self._began_s,
            time.process_time() - self._cpu_s,
        )


async def drain(order: BareRead) -> Drained:
    clock = _Clock()
    more: dict[str, Any] = {"replication": "database"} if order.slot else {}
    connection = await psycopg.AsyncConnection.connect(order.dsn, autocommit=True, **more)
    try:
        if order.slot:
            await _stream(connection, order, clock)
        else:
            await _rows(connection, order, clock)
        return clock.end()
    finally:
        connection.pgconn.finish()
        await connection.close()


async def _stream(connection: psycopg.AsyncConnection[Any], order: BareRead, clock: _Clock) -> None:
    pgconn = connection.pgconn
    pgconn.nonblocking = 1
    pgconn.send_query(
        f'START_REPLICATION SLOT "{order.slot}" LOGICAL {order.lsn} '
        f"(proto_version '1', publication_names '\"{order.publication}\"')".encode()
    )
    pgconn.flush()
    while pgconn.is_busy():
        await _readable(pgconn.socket)
        pgconn.consume_input()
    result = pgconn.get_result()
    if result is None or result.status != psycopg.pq.ExecStatus.COPY_BOTH:
        raise RuntimeError(pgconn.error_message.decode())
    while clock.counted < order.changes:
        size, data = pgconn.get_copy_data(1)
        if size == 0:
            await _readable(pgconn.socket)
            pgconn.consume_input()
            continue
        if size < 0:
            raise RuntimeError(pgconn.error_message.decode())
        if size > _HEAD and data[_HEAD] in _CHANGE:
            clock.count(1)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        async with asyncio.timeout(SILENCE_S):
            await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def _rows(connection: psycopg.AsyncConnection[Any], order: BareRead, clock: _Clock) -> None:
    schema, _, name = order.table.partition(".")
    async with connection.transaction(), connection.cursor("rows") as cursor:
        await cursor.execute(
            psycopg.sql.SQL("SELECT * FROM {}").format(psycopg.sql.Identifier(schema, name))
        )
        while rows := await cursor.fetchmany(ROWS):
            clock.count(len(rows))


def answer(order: BareRead) -> Drained:
    return asyncio.run(drain(order))


if __name__ == "__main__":
    serve(BareRead, answer)
