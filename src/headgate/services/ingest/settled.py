"""The settled positions, read from their store when they are needed.

Requests that come at the same time share one read. When the store is slow or away, the last known
positions serve, as they do for one that can't be read: old ones place a little worse and keep
records a little longer, refusing would be worse, and so would waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from headgate import errors
from headgate.model.event import PartitionRef
from headgate.model.position import Position
from headgate.tasks import Crew
from headgate.telemetry import LogLine

log = structlog.get_logger()

PATIENCE_S = 0.2
"""Longest wait for the store: a produce request may have to be written within half a second."""

SettledPositions = Callable[[], Awaitable[Mapping[PartitionRef, Position]]]


class Settled:
    def __init__(self, stored: SettledPositions) -> None:
        self._stored = stored
        self._crew = Crew("ingest")
        self._reading: asyncio.Task[None] | None = None
        self._deadline = 0.0
        self.known: Mapping[PartitionRef, int] = {}
        self.error = ""
        """Why what is known may be old, if it may."""

    async def read(self) -> Mapping[PartitionRef, int]:
        loop = asyncio.get_running_loop()
        reading = self._reading
        if reading is None or reading.done():
            reading = self._crew.start("settled positions", self._read(), awaited=True)
            self._reading = reading
            self._deadline = loop.time() + PATIENCE_S
        # Of those that share a read that hangs, only the first ones wait for it.
        await asyncio.wait({reading}, timeout=max(0.0, self._deadline - loop.time()))
        if reading.done():
            reading.result()
        else:
            self.error = "their store doesn't answer"
        return self.known

    async def _read(self) -> None:
        try:
            positions = await self._stored()
            known = self.known
            self.known = {
                ref: known.get(ref, 0) if one.unreadable else one.settled
                for ref, one in positions.items()
            }
            self.error = next((one.unreadable for one in positions.values() if one.unreadable), "")
        except errors.HeadgateError as error:
            self.error = error.message
            log.warning(LogLine.CHECKPOINT_FAILED, reason=str(error))
