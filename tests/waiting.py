"""Waiting for what another task or process does, where there is no signal to wait for instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psutil

WAIT_S = 30.0


async def until(condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition is somebody else's state
            await asyncio.sleep(0.01)


def has_ended(process: psutil.Process) -> bool:
    """Whether a process is over, reaped or not.

    It may be reaped between two looks, so that asking for its status raises, and that is an answer.
    """
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def arguments(process: psutil.Process) -> list[str]:
    """What a process was started with; nothing is known of one that has ended, reaped or not."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
