"""The processes of `bench rebalance`, which take orders while their own event loop goes on.

The other end is `worker`: one order per line of standard input, one answer per line of standard
output. An order may take as long as it likes; what the process has under way goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from headgate.bench.worker import Worker, worker


@asynccontextmanager
async def workers(module: str, count: int) -> AsyncIterator[Sequence[Worker]]:
    """Several of a kind, which start and end together."""
    contexts = [worker(module) for _ in range(count)]
    started = [await context.__aenter__() for context in contexts]
    try:
        yield started
    finally:
        await asyncio.gather(*(context.__aexit__(None, None, None) for context in contexts))


async def serve_orders(orders: Any, answer: Callable[[Any], Awaitable[msgspec.Struct]]) -> None:
    """Answer every order of the types `orders`, in turn, until standard input ends."""
    decode = msgspec.json.Decoder(orders).decode
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer
    )
    async for line in lines:
        done = await answer(decode(line))
        sys.stdout.buffer.write(msgspec.json.encode(done) + b"\n")
        sys.stdout.buffer.flush()
