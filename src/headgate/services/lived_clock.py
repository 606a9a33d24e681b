"""The wall clock by which old records are deleted.

Invariant: it runs as fast as the process lives, at most: one that jumps ahead makes nothing old,
and is said to have jumped, once for every jump. It is believed as it stands when the clock is made.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from headgate.ports.machine import Machine
from headgate.telemetry import LogLine

log = structlog.get_logger()

JUMP_MS: Final = 60_000
"""More than clocks that are set right now and then are ahead by."""


class LivedClock:
    def __init__(self, machine: Machine) -> None:
        self._wall_ms = machine.wall_ms
        self._began_wall_ms = machine.wall_ms()
        self._began_s = asyncio.get_running_loop().time()
        self._said_ms = 0

    def now_ms(self) -> int:
        lived_s = asyncio.get_running_loop().time() - self._began_s
        lived_ms = self._began_wall_ms + round(lived_s * 1_000)
        wall_ms = self._wall_ms()
        self._say_jump(wall_ms - lived_ms)
        return min(wall_ms, lived_ms)

    def _say_jump(self, ahead_ms: int) -> None:
        if ahead_ms > self._said_ms + JUMP_MS:
            log.warning(
                LogLine.CLOCK_JUMPED,
                ahead_s=ahead_ms // 1_000,
                hint="nothing ages by that; if the clock was wrong before, restart this process",
            )
        self._said_ms = max(ahead_ms, 0)
