"""The wall clock for those who delete what is old.

Invariant: it runs as fast as the process lives, at most: one that jumps ahead makes nothing old. It
is believed as it stands when the clock is made.
"""

from __future__ import annotations

import asyncio

from headgate.ports.machine import Machine


class LivedClock:
    def __init__(self, machine: Machine) -> None:
        self._wall_ms = machine.wall_ms
        self._began_wall_ms = machine.wall_ms()
        self._began_s = asyncio.get_running_loop().time()

    def now_ms(self) -> int:
        lived_s = asyncio.get_running_loop().time() - self._began_s
        return min(self._wall_ms(), self._began_wall_ms + round(lived_s * 1_000))
