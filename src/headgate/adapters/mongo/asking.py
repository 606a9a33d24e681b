"""Ends what PyMongo does, when it is to end.

It waits with `asyncio.wait_for`, which in Python 3.11 loses a cancellation that comes just when
something was sent: it would go on for as long as the server says nothing, and its caller after
that, who is told of nothing any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from headgate.tasks import Helpers

T = TypeVar("T")

TOLD = 3
TELL_AGAIN_S = 1.0


async def within(timeout_s: float | None, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; raises TimeoutError when that takes longer. A caller that is cancelled
    meanwhile ends, and `work` with it."""
    async with Helpers() as helpers:
        working = helpers.start(_outcome(work))
        try:
            await asyncio.wait([working], timeout=timeout_s)
        finally:
            for _ in range(TOLD):
                if working.done():
                    break
                working.cancel()
                await asyncio.wait([working], timeout=TELL_AGAIN_S)
        if working.cancelled() or not working.done():
            raise TimeoutError
        outcome = working.result()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _outcome(work: Coroutine[Any, Any, T]) -> T | Exception:
    """An error is for who waits, and for nobody where none does any more."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - it is raised, where somebody waits
        return error
