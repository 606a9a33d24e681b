"""The machine that this process runs on: Python's own clocks, chance and threads."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable
from typing import Final, TypeVar

from headgate.adapters.own_thread import on_its_own_thread
from headgate.ports.machine import Machine

T = TypeVar("T")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class ThisMachine:
    """Implements ports.machine.Machine. It has no state, so it is right after a fork, too; and each
    call is the library's own, because some are made for every event."""

    __slots__ = ()

    wall_ms = staticmethod(_wall_ms)
    wall_s = staticmethod(time.time)
    monotonic_s = staticmethod(time.monotonic)
    cpu_s = staticmethod(time.process_time)
    jitter = staticmethod(random.random)
    token = staticmethod(secrets.token_hex)
    entropy = staticmethod(os.urandom)
    pid = staticmethod(os.getpid)

    async def offload(self, work: Callable[[], T]) -> T:
        return await on_its_own_thread("offloaded", work)


THIS_MACHINE: Final[Machine] = ThisMachine()
"""The one of this process: for wiring, and for programs that use the client alone."""
