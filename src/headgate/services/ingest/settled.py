"""The settled positions, read from their store when they are needed.

Requests that come at the same time share one read. When the store is away, the last known positions
serve: old ones place a little worse and keep records a little longer, refusing would be worse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from headgate import errors
from headgate.model.event import PartitionRef
from headgate.telemetry import LogEvent

log = structlog.get_logger()

SettledPositions = Callable[[], Awaitable[Mapping[PartitionRef, int]]]


class Settled:
    def __init__(self, stored: SettledPositions) -> None:
        self._stored = stored
        self._reading: asyncio.Task[Mapping[PartitionRef, int]] | None = None
        self.known: Mapping[PartitionRef, int] = {}

    async def read(self) -> Mapping[PartitionRef, int]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(self._reading)

    async def _read(self) -> Mapping[PartitionRef, int]:
        try:
            self.known = await self._stored()
        except errors.HeadgateError as error:
            log.warning(LogEvent.CHECKPOINT_FAILED, reason=str(error))
        return self.known
