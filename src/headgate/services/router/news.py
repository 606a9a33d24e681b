"""Something has changed: tasks that wait for it look again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class News:
    """One event loop only. Code that changes what others wait for calls `tell`."""

    def __init__(self) -> None:
        self._told = asyncio.Event()

    def tell(self) -> None:
        told, self._told = self._told, asyncio.Event()
        told.set()

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for news that make `condition` true, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._told.wait()
