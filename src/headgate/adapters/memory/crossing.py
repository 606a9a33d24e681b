"""Calls between event loops of one thread: the listener lives on one, the caller on another.

A call begins on the listener's loop, as a task of its own, and its answer comes back to the
caller's. A caller that is cancelled, or waits no longer, cancels it there. When a whole loop is
gone, for a process of a simulation that was killed, callers that wait for it hear
ConnectionResetError at once, as from the kernel of its machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headgate.tasks import Crew

T = TypeVar("T")
Loop = asyncio.AbstractEventLoop


class Crossing:
    """The calls that end on one loop, for as long as there is a listener."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._crew = Crew("memory")
        self._waiting: dict[asyncio.Future[Any], Loop] = {}

    async def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `work` returns or raises there."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[T] = loop.create_future()
        self._waiting[answered] = loop
        tasks: list[asyncio.Task[None]] = []

        async def answer() -> None:
            try:
                result = await work()
            except Exception as error:  # noqa: BLE001 - it is the caller's
                loop.call_soon(_tell, answered, answered.set_exception, error)
            else:
                loop.call_soon(_tell, answered, answered.set_result, result)

        def begin() -> None:
            if not answered.done():
                tasks.append(self._crew.start("call", answer()))

        def give_up() -> None:
            for task in tasks:
                task.cancel()

        self.loop.call_soon(begin)
        try:
            return await answered
        except asyncio.CancelledError:
            answered.cancel()
            self.loop.call_soon(give_up)
            raise
        finally:
            del self._waiting[answered]

    def gone(self) -> None:
        """Its loop is."""
        error = ConnectionResetError("the other side is gone")
        for answered, loop in self._waiting.items():
            loop.call_soon(_tell, answered, answered.set_exception, error)


def _tell(answered: asyncio.Future[Any], tell: Callable[[Any], None], told: object) -> None:
    if not answered.done():
        tell(told)
