"""MongoDB as an origin: its change streams, of a deployment, a database or a collection.

Invariant: reads from the primary, and only what a majority has, so that nothing that was told is
ever taken back. Opening costs nothing; the first call connects.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import datetime

from bson import Timestamp
from bson.errors import BSONError
from pymongo.errors import PyMongoError

from headgate.adapters.mongo.bson_json import Document
from headgate.adapters.mongo.changes import Naming
from headgate.adapters.mongo.deployment import Deployment, Resolve
from headgate.adapters.mongo.identity import event_id_of, token_of
from headgate.adapters.mongo.oplog import Oplog
from headgate.adapters.mongo.origin_check import OriginCheck
from headgate.adapters.mongo.stream import MongoChangeStream
from headgate.decide.connectors.mongo_settings import read_settings
from headgate.errors import OriginRefused
from headgate.model.connector import BEGIN_NOW
from headgate.model.event import Record
from headgate.ports.origin import Finding, Standing
from headgate.tasks import Helpers

_AT_TIME = "time:"
_AT_POSITION = "position:"


class MongoOrigin:
    """Implements ports.origin.Origin. `name` is the connector's; `resolve` finds the secrets that
    the settings refer to. Raises InvalidRequest for settings that are wrong."""

    def __init__(self, settings: Mapping[str, str], *, name: str, resolve: Resolve) -> None:
        self._settings = read_settings(settings)
        self._naming = Naming(name, self._settings.database)
        self._deployment = Deployment(self._settings, resolve)

    async def check(self) -> list[Finding]:
        return await OriginCheck(self._deployment).run()

    @contextlib.asynccontextmanager
    async def open(
        self,
        after: str,
        *,
        begin_at: str,
        level: str = "",  # what a majority has isn't taken back
    ) -> AsyncIterator[MongoChangeStream]:
        start = _start(after, begin_at)
        async with await self._deployment.session() as session, Helpers() as helpers:
            stream = MongoChangeStream(self._deployment, self._naming, session, helpers)
            await stream.begin(start)
            try:
                yield stream
            finally:
                await stream.close()

    async def standing(self, position: str) -> Standing:
        try:
            return await Oplog(self._deployment).standing(position)
        except (PyMongoError, BSONError, OriginRefused):
            return Standing()

    async def release(self) -> None:
        """Nothing is there: MongoDB knows no readers."""

    def has_made(self, record: Record) -> bool:
        made = event_id_of(
            self._naming.backend, self._naming.namespace(record.collection), record.source or ""
        )
        return record.event_id == made

    async def close(self) -> None:
        await self._deployment.close()


def _start(after: str, begin_at: str) -> Document:
    """What MongoDB takes. `startAfter` goes on behind any position, an invalidate's included."""
    if after:
        return {"startAfter": token_of(after)}
    if begin_at == BEGIN_NOW:
        return {}
    if begin_at.startswith(_AT_POSITION):
        return {"startAfter": token_of(begin_at.removeprefix(_AT_POSITION))}
    if begin_at.startswith(_AT_TIME):
        with contextlib.suppress(ValueError, OverflowError):
            at = datetime.fromisoformat(begin_at.removeprefix(_AT_TIME))
            if at.tzinfo is not None:
                return {"startAtOperationTime": Timestamp(int(at.timestamp()), 1)}
    raise OriginRefused(
        f"{begin_at!r} doesn't say where to begin: take now, time: with an instant such as "
        "2026-11-18T12:00:00Z, or position: with the source of a record"
    )
