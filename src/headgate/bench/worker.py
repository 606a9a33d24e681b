"""A process of its own for one part of a benchmark, so that parts don't share an interpreter.

The process is a module that calls `serve`: it reads one order per line, as JSON, and prints one
answer per line. It ends with its standard input, however the process that started it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from headgate.bench.result import Failed

ANSWER_TIMEOUT_S = 600.0
END_TIMEOUT_S = 5.0
LINE_BYTES_MAX = 1 << 20

Order = TypeVar("Order")
Answer = TypeVar("Answer", bound=msgspec.Struct)


class Worker:
    def __init__(self, module: str, process: asyncio.subprocess.Process) -> None:
        self._module = module
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, order: msgspec.Struct, answer: type[Answer]) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            line = await self._process.stdout.readline()
        if not line:
            raise Failed(f"{self._module} ended without an answer")
        return msgspec.json.decode(line, type=answer)


@asynccontextmanager
async def worker(module: str) -> AsyncIterator[Worker]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
    )
    assert process.stdin is not None
    try:
        yield Worker(module, process)
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def serve(order: type[Order], answer: Callable[[Order], object]) -> None:
    """Answer every line of standard input."""
    for line in sys.stdin.buffer:
        done = answer(msgspec.json.decode(line, type=order))
        sys.stdout.buffer.write(msgspec.json.encode(done) + b"\n")
        sys.stdout.buffer.flush()
