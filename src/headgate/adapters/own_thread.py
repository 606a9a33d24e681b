"""Work that blocks, done in a thread of its own instead of the loop's.

The loop's own threads take no work any more once the main thread has ended, though the program goes
on in others: a client that lives there must still find its way back. Invariant: nobody waits longer
than they want to; work that nobody waits for any more ends by itself, and keeps no process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from headgate.tasks import start_thread

T = TypeVar("T")


async def on_its_own_thread(name: str, work: Callable[[], T]) -> T:
    """What `work` returns, or raises."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[], None]) -> None:
        if not outcome.done():  # the caller waits for it
            settle()

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - told to the caller
            failure = error
            settle = lambda: outcome.set_exception(failure)  # noqa: E731
        else:
            settle = lambda: outcome.set_result(result)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, settle)

    start_thread(name, run)
    return await outcome
