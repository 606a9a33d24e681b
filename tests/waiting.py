"""Waiting for what another task or process does, where there is no signal to wait for instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

WAIT_S = 20.0


async def until(condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition is somebody else's state
            await asyncio.sleep(0.01)
