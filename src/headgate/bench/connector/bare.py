"""The baseline of `bench connector`: PyMongo alone reads a change stream into nothing.

Each change is decoded, as the driver hands it out, and counted. A process of its own.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
from pymongo import AsyncMongoClient

from headgate.adapters.mongo.identity import token_of
from headgate.bench.worker import serve

BATCH = 1_000


class BareRead(msgspec.Struct, frozen=True):
    """The changes of `database` behind `position`, `changes` of them; the clock starts with the
    second batch, as it does for the connector."""

    uri: str
    database: str
    position: str
    changes: int


class Drained(msgspec.Struct, frozen=True):
    """`changes` were counted while the clock ran."""

    changes: int
    seconds: float
    cpu_s: float


async def drain(order: BareRead) -> Drained:
    client: AsyncMongoClient[dict[str, object]] = AsyncMongoClient(order.uri)
    counted, began_s, cpu_s = 0, 0.0, 0.0
    try:
        async with await client[order.database].watch(
            start_after=token_of(order.position),
            batch_size=BATCH,
            full_document="whenAvailable",
            full_document_before_change="whenAvailable",
        ) as stream:
            async for _ in stream:
                counted += 1
                if counted == BATCH:
                    began_s, cpu_s = time.perf_counter(), time.process_time()
                if counted == order.changes:
                    break
        seconds = time.perf_counter() - began_s
        return Drained(counted - BATCH, seconds, time.process_time() - cpu_s)
    finally:
        await client.close()


def answer(order: BareRead) -> Drained:
    return asyncio.run(drain(order))


if __name__ == "__main__":
    serve(BareRead, answer)
