"""An open replication stream: batches of changes, each with its position.

Invariants: `position` only grows, and covers exactly what was returned; a transaction of any size
passes through without being held. Whatever goes wrong, the stream can be opened again at its last
position. What the server may forget is what `stored` was told, and nothing else.
"""

from __future__ import annotations

import asyncio

import psycopg

from headgate.adapters.pgoutput import catalog
from headgate.adapters.pgoutput.database import Database
from headgate.adapters.pgoutput.decoding import Decoding, Needs
from headgate.adapters.pgoutput.identity import Position, Timelines, position_from
from headgate.adapters.pgoutput.link import Link
from headgate.adapters.pgoutput.messages import MalformedMessage, decode
from headgate.adapters.pgoutput.publication import Publication
from headgate.adapters.pgoutput.tables import Tables
from headgate.errors import HeadgateError, OriginUnavailable
from headgate.model.chunk import Chunk
from headgate.model.event import Event
from headgate.ports.origin import PATIENCE_S, Changes, Listing

BATCH = 1_000
BATCH_BYTES = 4 * 1024 * 1024
"""A batch ends with the change that reaches one of these."""
ASK_FIRST_S, ASK_MOST_S = 0.002, 0.1
"""How long after one another the server is asked how far it is, while rows wait for that."""


class PostgresChangeStream:
    """Implements ports.origin.ChangeStream."""

    def __init__(
        self,
        database: Database,
        link: Link,
        timelines: Timelines,
        after: Position,
        backend: str,
        publication: Publication,
    ) -> None:
        settings = database.settings
        self._database = database
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._decoding = Decoding(
            backend, timelines, after, messages=settings.messages, numeric=settings.numeric
        )
        self._tables = Tables(database, publication, self._decoding, timelines)
        self._failed: HeadgateError | None = None
        """What is to be raised when all that came before it was returned."""
        self._position = str(after)
        self._awaited = ""
        """Rows are there that are handed in when the stream has come to this position."""
        self._ask_s = ASK_FIRST_S

    @property
    def position(self) -> str:
        return self._position

    async def next(self, patience_s: float = PATIENCE_S) -> Changes:
        events: list[Event] = []
        deadline = self._loop.time() + patience_s
        if patience_s < PATIENCE_S:
            self._link.report()  # the server says at once how far it is
        try:
            while not events and self._failed is None:
                await self._fill(events)
                left_s = deadline - self._loop.time()
                if events or left_s <= 0 or self._has_reached_rows():
                    break
                await self._wait(left_s)
        except (psycopg.Error, HeadgateError, MalformedMessage) as error:
            self._failed = self._meant(error)
        if self._failed is not None and not events:
            raise self._failed
        self._position = max(self._position, self._decoding.position)
        return Changes(events, self._position, self._decoding.time_ms if events else 0)

    def stored(self, position: str) -> None:
        self._link.store(position_from(position).lsn)

    async def listing(self) -> Listing:
        try:
            return await self._tables.listing()
        except psycopg.Error as error:
            raise self._database.error(error) from error

    async def chunk(self, collection: str, behind: str) -> Chunk:
        try:
            found = await self._tables.chunk(collection, behind)
        except psycopg.Error as error:
            raise self._database.error(error) from error
        self._awaited, self._ask_s = max(self._awaited, found.upto), ASK_FIRST_S
        self._link.report()  # the server's answer ends a wait for what comes next
        return found

    async def close(self) -> None:
        await self._tables.close()

    async def _wait(self, left_s: float) -> None:
        """For the stream. Of a position without a change the server tells who asks."""
        if not self._awaited:
            await self._link.wait(left_s)
        elif not await self._link.wait(min(left_s, self._ask_s)):
            self._ask_s = min(2 * self._ask_s, ASK_MOST_S)
            self._link.report()

    def _has_reached_rows(self) -> bool:
        """Once, so that the reader that waits for the stream can hand them in."""
        if not self._awaited or self._decoding.position < self._awaited:
            return False
        self._awaited = ""
        return True

    async def _fill(self, events: list[Event]) -> None:
        """What is there already, up to a batch."""
        size, receive, take = 0, self._link.receive, self._decoding.take
        while len(events) < BATCH and size < BATCH_BYTES:
            data = receive()
            if data is None:
                self._decoding.idle(self._link.said)
                return
            size += len(data)
            message = decode(data)
            try:
                found = take(message)
            except Needs as needs:
                await self._learn(needs)
                continue
            if found:
                events += found
        # A stream with more to read than it can take lets others have a turn.
        await asyncio.sleep(0)

    async def _learn(self, needs: Needs) -> None:
        found = await catalog.types(self._database, needs.types)
        key = await catalog.primary_key(self._database, needs.relation) if needs.key else None
        self._decoding.learn(needs.relation, found, key)

    def _meant(self, error: Exception) -> HeadgateError:
        if isinstance(error, HeadgateError):
            return error
        if isinstance(error, MalformedMessage):
            return OriginUnavailable(f"PostgreSQL sent what nobody can read ({error}): try again")
        return self._database.error(error)
