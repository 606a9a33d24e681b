"""Up to where a subscriber that comes, or comes back, has to read the log: lanes bring the rest.

Usually that is where the log ends. But one that has lost its history ends before what lanes have
passed on, and they don't bring that again: a subscriber that took its end for its own would miss in
silence what came after it. So it counts as far as it is settled; its readers wait at its end until
its owner has moved it on, and hears then what is lost (decide.delivery.lost_logs).

Invariant: positions are looked at before the log, which only grows beside them. Where they can't be
had in a moment the log alone counts, because nobody needs their store to subscribe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from headgate.errors import HeadgateError
from headgate.model.event import PartitionRef
from headgate.model.position import Position
from headgate.model.topology import Topic
from headgate.ports.log import Extent, LogReader
from headgate.tasks import Crew
from headgate.telemetry import LogLine

log = structlog.get_logger()

MOMENT_S = 1.0

Positions = Mapping[PartitionRef, Position]


class LogEnds:
    """`stored` reads all settled positions; callers that want them at the same time share a
    look."""

    def __init__(
        self, reader: LogReader, stored: Callable[[], Awaitable[Positions]], crew: Crew
    ) -> None:
        self._reader = reader
        self._stored = stored
        self._crew = crew
        self._looking: asyncio.Task[Positions] | None = None

    async def extents(self, topic: Topic) -> dict[int, Extent]:
        """What there is of each partition, also of those that nothing is appended to any more."""
        refs = topic.all_refs()
        found = await asyncio.gather(*(self._reader.extent(ref) for ref in refs))
        return {ref.partition: extent for ref, extent in zip(refs, found, strict=True)}

    async def heads(self, topic: Topic) -> dict[int, int]:
        """Where the log of each partition ends."""
        return {number: extent.head for number, extent in (await self.extents(topic)).items()}

    async def to_be_read(self, topic: Topic) -> dict[int, int]:
        """Up to where subscribers that are behind have to read each partition."""
        settled = await self._settled()
        return {
            number: max(head, settled.get(PartitionRef(topic.name, number), 0))
            for number, head in (await self.heads(topic)).items()
        }

    async def _settled(self) -> dict[PartitionRef, int]:
        looking = self._looking
        if looking is None or looking.done():
            looking = self._crew.start("settled positions", self._look(), awaited=True)
            self._looking = looking
        await asyncio.wait({looking}, timeout=MOMENT_S)
        if not looking.done() or looking.cancelled() or looking.exception() is not None:
            return {}
        return {ref: one.settled for ref, one in looking.result().items() if not one.unreadable}

    async def _look(self) -> Positions:
        try:
            return await self._stored()
        except HeadgateError as error:
            log.warning(LogLine.CHECKPOINT_FAILED, error=error.message)
            return {}
