"""Wake-ups for one follower of a log, whatever rings.

Rings are folded until a reader asks, and all partitions are rung at least every `safety_s`: a
signal that got lost costs latency and never a record. One event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Self

from headgate.model.event import PartitionRef


class WakeUps:
    """An async iterator of the partitions that may have grown; ends after `stop`."""

    def __init__(self, refs: Sequence[PartitionRef], *, safety_s: float) -> None:
        self._all = frozenset(refs)
        self._safety_s = safety_s
        self._rung: set[PartitionRef] = set()
        self._awake = asyncio.Event()
        self._stopped = False
        self._safety: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From here on; what was rung before is in the follower's first read."""
        self._rung.clear()
        self._awake.clear()
        loop = asyncio.get_running_loop()
        self._safety = loop.call_later(self._safety_s, self._look, loop)

    def stop(self) -> None:
        self._stopped = True
        self._awake.set()
        if self._safety is not None:
            self._safety.cancel()

    def ring(self, refs: Iterable[PartitionRef]) -> None:
        self._rung.update(refs)
        if self._rung:
            self._awake.set()

    def ring_all(self) -> None:
        self.ring(self._all)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> frozenset[PartitionRef]:
        await self._awake.wait()
        if self._stopped:
            raise StopAsyncIteration
        rung, self._rung = frozenset(self._rung), set()
        self._awake.clear()
        return rung

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._safety = loop.call_later(self._safety_s, self._look, loop)
        self.ring_all()
