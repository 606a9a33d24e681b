"""A machine that does as it is told: the same seed and the same clock, the same run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final, TypeVar

T = TypeVar("T")

BEGINS_MS: Final = 1_700_000_000_000


class ScriptedMachine:
    """Implements ports.machine.Machine, without a thread.

    `clock` says how much time has passed, for example the loop's `time`; without it none does but
    what `passes`. Assigning `begins_ms`, the wall time at the clock's 0, makes the wall clock jump.
    Nothing takes processor time unless `used_s` is raised.

    Two of one seed make up the same names: processes that meet share a machine, or have seeds of
    their own.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        begins_ms: int = BEGINS_MS,
        clock: Callable[[], float] | None = None,
        pid: int = 1,
    ) -> None:
        self.begins_ms = begins_ms
        self.used_s = 0.0
        self._passed_s = 0.0
        self._clock = clock
        self._pid = pid
        self._random = Random(seed)

    def passes(self, seconds: float) -> None:
        """So much time, besides what the clock says."""
        self._passed_s += seconds

    def wall_ms(self) -> int:
        return self.begins_ms + int(round(self.monotonic_s() * 1_000, 3))

    def wall_s(self) -> float:
        return self.begins_ms / 1_000 + self.monotonic_s()

    def monotonic_s(self) -> float:
        return self._passed_s + (0.0 if self._clock is None else self._clock())

    def cpu_s(self) -> float:
        return self.used_s

    def jitter(self) -> float:
        return self._random.random()

    def token(self, size_bytes: int) -> str:
        return self.entropy(size_bytes).hex()

    def entropy(self, size_bytes: int) -> bytes:
        return self._random.randbytes(size_bytes)

    def pid(self) -> int:
        return self._pid

    async def offload(self, work: Callable[[], T]) -> T:
        """In the loop, after everybody else's turn."""
        await asyncio.sleep(0)
        return work()
