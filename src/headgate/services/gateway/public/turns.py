"""Who may do what takes a while, a few at a time.

Invariant: never more than `at_once` have their turn, and `waiting_max` wait for one; nobody waits
for longer than `wait_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headgate import errors


class Turns:
    """`refused` is said to those there is no turn for."""

    def __init__(self, *, at_once: int, waiting_max: int, wait_s: float, refused: str) -> None:
        self._turns = asyncio.Semaphore(at_once)
        self._waiting = 0
        self._waiting_max = waiting_max
        self._wait_s = wait_s
        self._refused = refused

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        if self._waiting >= self._waiting_max:
            raise errors.Overloaded(self._refused)
        self._waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._turns.acquire()
        except TimeoutError as error:
            raise errors.Overloaded(self._refused) from error
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()
