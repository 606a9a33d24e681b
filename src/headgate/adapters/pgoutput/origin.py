"""PostgreSQL as an origin: logical replication of a database's tables, by pgoutput.

Invariant: reads from the primary, through a slot that keeps the history which isn't in the log yet.
Opening costs nothing; the first call connects.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

import psycopg
from msgspec.structs import replace

from headgate.adapters.pgoutput.database import Database, Resolve
from headgate.adapters.pgoutput.errors import WAL_LEVEL, history_lost
from headgate.adapters.pgoutput.identity import (
    Position,
    Timelines,
    event_id_of,
    lsn_from,
    position_from,
)
from headgate.adapters.pgoutput.link import Link
from headgate.adapters.pgoutput.origin_check import OriginCheck
from headgate.adapters.pgoutput.publication import Publication
from headgate.adapters.pgoutput.slot import Slot
from headgate.adapters.pgoutput.standing import (
    standing_of,
    unpublished,
    untold,
    without_publication,
)
from headgate.adapters.pgoutput.stream import PostgresChangeStream
from headgate.decide.connectors.postgres_settings import own_name, read_settings
from headgate.errors import HeadgateError, OriginRefused, OriginUnavailable
from headgate.model.connector import BEGIN_NOW
from headgate.model.event import Record
from headgate.ports.origin import Finding, Standing
from headgate.tasks import Helpers

OLDEST = 140_000
"""The first version that sends messages with the changes."""
PROTOCOL = "1"
_AT_POSITION = "position:"


class PostgresOrigin:
    """Implements ports.origin.Origin. `name` is the connector's; `resolve` finds the secrets that
    the settings refer to. Raises InvalidRequest for settings that are wrong."""

    def __init__(self, settings: Mapping[str, str], *, name: str, resolve: Resolve) -> None:
        self._settings = read_settings(settings)
        self._name = name
        self._database = Database(self._settings, resolve)
        own = own_name(name)
        self._slot = Slot(self._database, self._settings.slot or own, own=not self._settings.slot)
        self._publication = Publication(
            self._database,
            self._settings.publication or own,
            own=not self._settings.publication,
        )

    async def check(self) -> list[Finding]:
        return await OriginCheck(self._database, self._slot, self._publication).run()

    @contextlib.asynccontextmanager
    async def open(
        self, after: str, *, begin_at: str, level: str = ""
    ) -> AsyncIterator[PostgresChangeStream]:
        async with contextlib.AsyncExitStack() as stack:
            try:
                stream, link = await self._opened(after, begin_at, level, stack)
            except psycopg.Error as error:
                raise self._database.error(error) from error
            helpers = await stack.enter_async_context(Helpers())
            helpers.start(link.report_all_along())
            yield stream

    async def standing(self, position: str) -> Standing:
        if not position:
            return Standing()  # it has yet to begin, and to make what would be missed
        try:
            standing = await standing_of(self._slot)
            if standing.warning:
                return standing
            if not await self._publication.is_there():
                return replace(standing, warning=without_publication(self._publication.name))
            if self._publication.own and (kinds := await self._publication.untold()):
                return replace(standing, warning=untold(self._publication.name, self._name, kinds))
            lacking = await self._publication.lacking()
            return (
                replace(standing, warning=unpublished(self._name, lacking)) if lacking else standing
            )
        except (psycopg.Error, HeadgateError, OSError):
            return Standing()

    async def release(self) -> None:
        """What the connector has made at the server is removed. Raises OriginUnavailable and
        OriginRefused."""
        try:
            if self._slot.own:
                await self._slot.drop()
            if self._publication.own:
                await self._publication.drop()
        except (psycopg.Error, HeadgateError) as error:
            meant = self._database.error(error)
            raise type(meant)(
                f"the replication slot {self._slot.name} and the publication "
                f"{self._publication.name} ({meant.message}): SELECT pg_drop_replication_slot("
                f"'{self._slot.name}'), or the server keeps its history for ever"
            ) from error

    def has_made(self, record: Record) -> bool:
        source = record.source or ""
        made = event_id_of(self._name, record.collection, record.key, source)
        return record.event_id == made

    async def close(self) -> None:
        await self._database.close()

    async def _opened(
        self, after: str, begin_at: str, level: str, stack: contextlib.AsyncExitStack
    ) -> tuple[PostgresChangeStream, Link]:
        wanted = _wanted(after, begin_at)
        version = await self._ready()
        link = await Link.open(self._database)
        stack.push_async_callback(link.close)
        # Before it is asked where the server's WAL ends: changes behind that are to be sent.
        await self._publication.ensure(version, anew=not after)
        timelines, end = await link.timelines()
        await self._slot.free()
        start = await self._start(wanted, link, timelines, end, version)
        if level:
            self._slot.check_history(position_from(level), timelines, end)
        options = {"proto_version": PROTOCOL, "publication_names": _listed(self._publication.name)}
        if self._settings.messages:
            options["messages"] = "true"
        await link.start(self._slot.name, start.lsn, options)
        if wanted is not None:
            # Nobody else moves it from now on; it may have been another one until just now.
            self._slot.going_on(await self._slot.find(), start, timelines, end)
        stream = PostgresChangeStream(
            self._database, link, timelines, start, self._name, self._publication
        )
        stack.push_async_callback(stream.close)
        return stream, link

    async def _ready(self) -> int:
        """The server's version, where a connector can read it."""
        [(version, is_standby, level)] = await self._database.rows(
            "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), "
            "current_setting('wal_level')"
        )
        if version < OLDEST:
            raise OriginRefused(f"PostgreSQL {version // 10_000} is too old: it takes 14 or newer")
        if is_standby:
            raise OriginUnavailable("PostgreSQL is a standby there, and connectors read a primary")
        if level != "logical":
            raise OriginRefused(WAL_LEVEL)
        return int(version)

    async def _start(
        self,
        wanted: Position | int | None,
        link: Link,
        timelines: Timelines,
        end: int,
        version: int,
    ) -> Position:
        """Behind which position to begin; the slot is there then. `wanted` is where an LSN or a
        position says; None: now."""
        info = await self._slot.find(link.rows)
        if wanted is None:
            if self._slot.own:
                return timelines.at(await self._slot.create(version))
            if info is None:
                raise OriginRefused(
                    f"there is no replication slot {self._slot.name}: create it with "
                    f"pg_create_logical_replication_slot('{self._slot.name}', 'pgoutput'), or "
                    "leave the setting slot out"
                )
            self._slot.check(info)
            if info.is_lost:
                raise history_lost(f"the replication slot {self._slot.name} is of no use any more")
            return timelines.at(max(end, info.confirmed))
        position = timelines.at(wanted) if isinstance(wanted, int) else wanted
        self._slot.going_on(info, position, timelines, end)
        return position


def _wanted(after: str, begin_at: str) -> Position | int | None:
    if after:
        return position_from(after)
    if begin_at == BEGIN_NOW:
        return None
    if begin_at.startswith(_AT_POSITION):
        text = begin_at.removeprefix(_AT_POSITION)
        lsn = lsn_from(text)
        return position_from(text) if lsn is None else lsn
    raise OriginRefused(
        f"PostgreSQL tells its changes by position, and not by time, so nobody can begin at "
        f"{begin_at[:100]!r}: take now, or position: with the source of a record or an LSN"
    )


def _listed(name: str) -> str:
    """A name as publication_names has it."""
    return '"' + name.replace('"', '""') + '"'
