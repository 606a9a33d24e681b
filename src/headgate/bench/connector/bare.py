"""The baselines of `bench connector` in MongoDB: PyMongo alone reads a change stream, or the
documents of a collection, into nothing.

Each is decoded, as the driver hands it out, and counted. A process of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
from pymongo import AsyncMongoClient

from headgate.adapters.mongo.identity import token_of
from headgate.bench.worker import serve

BATCH = 1_000


class BareRead(msgspec.Struct, frozen=True):
    """The changes of `database` behind `position`, `changes` of them; or as many documents of
    `collection`. The clock starts with the second batch, as it does for the connector."""

    uri: str
    database: str
    changes: int
    position: str = ""
    collection: str = ""


class Drained(msgspec.Struct, frozen=True):
    """`changes` were counted while the clock ran."""

    changes: int
    seconds: float
    cpu_s: float


async def drain(order: BareRead) -> Drained:
    client: AsyncMongoClient[dict[str, object]] = AsyncMongoClient(order.uri)
    try:
        if order.collection:
            found = client[order.database][order.collection].find({}, batch_size=BATCH)
            return await _counted(found, order.changes)
        async with await client[order.database].watch(
            start_after=token_of(order.position),
            batch_size=BATCH,
            full_document="whenAvailable",
            full_document_before_change="whenAvailable",
        ) as stream:
            return await _counted(stream, order.changes)
    finally:
        await client.close()


async def _counted(found: AsyncIterator[object], wanted: int) -> Drained:
    counted, began_s, cpu_s = 0, 0.0, 0.0
    async for _ in found:
        counted += 1
        if counted == BATCH:
            began_s, cpu_s = time.perf_counter(), time.process_time()
        if counted == wanted:
            break
    seconds = time.perf_counter() - began_s
    return Drained(counted - BATCH, seconds, time.process_time() - cpu_s)


def answer(order: BareRead) -> Drained:
    return asyncio.run(drain(order))


if __name__ == "__main__":
    serve(BareRead, answer)
