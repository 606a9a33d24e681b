"""For how long a client that lost its gateway tries to find one again.

Invariant: a pause ends at once when the client is closed; whoever gives up raises the last reason.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headgate import errors


@dataclass(frozen=True, slots=True)
class Patience:
    """Growing pauses between attempts, for ever, or until `attempts` or `for_s` are used up."""

    attempts: int | None = None
    for_s: float | None = None
    first_s: float = 0.1
    max_s: float = 5.0

    async def reopen(
        self,
        open_again: Callable[[], Awaitable[None]],
        reason: errors.NotNow,
        closed: asyncio.Event,
    ) -> bool:
        """True when it is open again, False when it was closed meanwhile."""
        loop = asyncio.get_running_loop()
        give_up_s = None if self.for_s is None else loop.time() + self.for_s
        attempt = 0
        while not closed.is_set():
            late = give_up_s is not None and loop.time() >= give_up_s
            if late or attempt == self.attempts:
                raise reason
            await self._pause(attempt, closed)
            if closed.is_set():
                return False
            try:
                await open_again()
            except errors.NotNow as error:
                reason = error
                attempt += 1
            else:
                return True
        return False

    async def _pause(self, attempt: int, closed: asyncio.Event) -> None:
        longest_s = min(self.max_s, self.first_s * 2 ** min(attempt, 16))
        try:
            async with asyncio.timeout(longest_s * random.uniform(0.5, 1.0)):
                await closed.wait()
        except TimeoutError:
            return
