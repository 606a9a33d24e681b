"""An open change stream: batches of changes, each with its position.

Speaks to the server in plain commands (`aggregate`, `getMore`) instead of PyMongo's change streams,
which hand out one change at a time and don't say where a batch ends.

While a batch is worked on, the server is asked for the next one already: it takes as long to read
its history as we take to make events of it.

Invariant: `position` only grows, and covers exactly what was returned. Whatever goes wrong, the
stream can be opened again at its last position; nothing is remembered beyond it but fragments and
changes that come again then, at most one batch of them unread.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from bson import Int64, Timestamp
from bson.errors import BSONError
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure, PyMongoError

from headgate.adapters.mongo.bson_json import Document
from headgate.adapters.mongo.changes import (
    Fragments,
    Naming,
    described,
    event_of,
    lacks_document,
    time_ms_of,
)
from headgate.adapters.mongo.deployment import Deployment
from headgate.adapters.mongo.identity import is_change, position_of, time_of, token_of
from headgate.adapters.mongo.lookup import Lookup
from headgate.adapters.mongo.origin_errors import TOO_LARGE, history_lost, too_old
from headgate.adapters.mongo.stored_documents import StoredDocuments
from headgate.decide.connectors.mongo_settings import MongoSettings
from headgate.errors import ChangeTooLarge, HeadgateError, OriginRefused, OriginUnavailable
from headgate.model.chunk import Chunk
from headgate.ports.origin import PATIENCE_S, Changes, Listing
from headgate.tasks import Helpers

BATCH = 1_000
"""Changes per answer; the server sends fewer where they are more than 16 MB."""
CAREFUL_MOST = BATCH
"""So many may stand before a change that can't be sent, in the batch that failed."""
LOOKS = 10
FORGET_TIMEOUT_S = 5.0
SPLITS_SINCE = (6, 0, 9)
_BEFORE = {"off": "off", "when_available": "whenAvailable", "required": "required"}
_FULL = {"when_available": "whenAvailable", "lookup": "updateLookup", "required": "required"}
_NAMELESS = {"operationType": 1, "ns": 1, "clusterTime": 1}
_BARE = {**_NAMELESS, "documentKey": 1}


class MongoChangeStream:
    """Implements ports.origin.ChangeStream. `helpers` end before `session` does."""

    def __init__(
        self,
        deployment: Deployment,
        naming: Naming,
        session: AsyncClientSession,
        helpers: Helpers,
    ) -> None:
        self._deployment = deployment
        self._settings: MongoSettings = deployment.settings
        self._naming = naming
        self._session = session
        self._helpers = helpers
        self._lookup = Lookup(deployment, session)
        self._documents = StoredDocuments(deployment, naming)
        self._await_ms = 1
        self._is_idle = False
        """The server had nothing more, so all of the present cluster time was told."""
        self._database = self._settings.database or "admin"
        self._position = ""
        self._cursor = 0
        self._cursor_in = ""
        self._ahead: asyncio.Future[Document | Exception] | None = None
        """What the server was asked for and nobody has looked at yet."""
        self._fragments = Fragments()
        self._read: list[Document] = []
        """Not returned yet."""
        self._read_to = ""
        self._careful = 0
        """So many changes are still read one by one."""
        self._unproved = ""
        """The change behind which it was opened, until something shows that the server has it."""

    @property
    def position(self) -> str:
        return self._position

    async def begin(self, start: Document) -> None:
        """`start` is what MongoDB takes: a token, a time, or nothing for now. Raises like `next`,
        and OriginRefused."""
        try:
            if refusal := too_old(await self._deployment.version(), self._settings):
                raise OriginRefused(refusal)
            first = await self._open(start, self._wanted(), await self._splitting())
        except (PyMongoError, BSONError) as error:
            raise self._deployment.error(error) from error
        # Before the first change: what the server says of a stream that has shown nothing.
        token = start.get("startAfter") or first.get("postBatchResumeToken")
        if token is None:
            raise OriginUnavailable("MongoDB doesn't say where its stream stands: try again")
        self._position = self._read_to = position_of(token)
        if "startAfter" in start and is_change(self._position):
            self._unproved = self._position

    async def next(self, patience_s: float = PATIENCE_S) -> Changes:
        self._await_ms = max(1, round(patience_s * 1_000))
        try:
            if not self._read:
                await self._fetch()
            return await self._portion()
        except (PyMongoError, BSONError) as error:
            meant = self._deployment.error(error)
            if isinstance(meant, OriginUnavailable):
                # Nobody is there to be told that the cursor isn't needed any more.
                self._cursor = 0
            raise meant from error

    def stored(self, position: str) -> None:
        """MongoDB keeps its history by size, for nobody in particular."""

    async def listing(self) -> Listing:
        try:
            return await self._documents.listing()
        except (PyMongoError, BSONError) as error:
            raise self._deployment.error(error) from error

    async def chunk(self, collection: str, behind: str) -> Chunk:
        try:
            return await self._documents.chunk(
                collection, behind, self._position, is_idle=self._is_idle
            )
        except (PyMongoError, BSONError) as error:
            raise self._deployment.error(error) from error

    async def close(self) -> None:
        """Never raises: the server forgets in time what it isn't told."""
        with contextlib.suppress(PyMongoError, HeadgateError):
            await self._kill()

    async def _fetch(self) -> None:
        """The next batch, which may be empty."""
        try:
            if not self._cursor:
                await self._open(
                    {"startAfter": token_of(self._read_to)}, self._wanted(), await self._splitting()
                )
            batch = await self._next_batch()
        except (OperationFailure, BSONError) as error:
            if isinstance(error, OperationFailure) and error.code != TOO_LARGE:
                raise
            await self._go_carefully(error)
            return
        changes = batch["nextBatch"]
        await self._prove(is_shown=bool(changes))
        self._careful = max(0, self._careful - len(changes))
        self._read = self._fragments.whole(changes)
        if not self._fragments.waiting:
            self._read_to = max(self._read_to, position_of(batch["postBatchResumeToken"]))
        elif self._read:
            # Behind a fragment nobody may go on: the others of its change would be missing.
            self._read_to = position_of(self._read[-1]["_id"])
        # Behind an invalidate, or whatever else ends a stream, another one begins.
        self._cursor = batch["id"]
        if self._cursor and changes and not self._careful:
            self._ahead = self._helpers.start(self._asked())
            await asyncio.sleep(0)  # its question leaves before we are busy

    async def _prove(self, *, is_shown: bool) -> None:
        """Before it moves on: the server has the change behind which it was opened. It looks for
        that itself when it has another change to show, and until then passes over it. Else, as
        after a restore, a reader that opens the stream again further on would never hear of it."""
        if self._unproved and not is_shown:
            following = self._cursor, self._cursor_in
            try:
                is_there = await self._has_change_of(time_of(self._unproved))
            finally:
                await self._kill()
                self._cursor, self._cursor_in = following
            if not is_there:
                raise history_lost("it doesn't hold the last change that was read")
        self._unproved = ""

    async def _has_change_of(self, time: Timestamp) -> bool:
        """By its time alone: tokens are another after an upgrade of the server."""
        await self._open({"startAtOperationTime": time}, {}, [{"$project": {"_id": 1}}])
        for _ in range(LOOKS):
            batch = await self._more(1)
            for change in batch["nextBatch"]:
                return time_of(position_of(change["_id"])) == time
            if time_of(position_of(batch["postBatchResumeToken"])) > time:
                return False
        raise OriginUnavailable("MongoDB doesn't get to the last change that was read: try again")

    async def _next_batch(self) -> Document:
        if self._ahead is None:
            return await self._more(1 if self._careful else BATCH)
        ahead, self._ahead = self._ahead, None
        answer = await ahead
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _asked(self) -> Document | Exception:
        """An error is for the caller that looks at the answer."""
        try:
            return await self._more(BATCH)
        except (PyMongoError, BSONError) as error:
            return error

    async def _go_carefully(self, error: Exception) -> None:
        """A batch failed that holds a change which can't be sent, and perhaps others before it:
        these are read one by one, until that change is the next. Then its position and name are
        asked for, without what makes it large."""
        await self._kill()
        self._fragments = Fragments()
        if not self._careful:
            self._careful = CAREFUL_MOST
            return
        try:
            bare = await self._bare(_BARE)
        except BSONError:
            bare = await self._bare(_NAMELESS)
        what = described(bare)
        why = (
            "can't be decoded"
            if isinstance(error, BSONError)
            else "is more than the 16 MB that MongoDB sends, with the states before and after it"
        )
        raise ChangeTooLarge(
            f"the next change, {what}, {why}: skip it, or set earlier to off",
            position=position_of(bare["_id"]),
            what=what,
        ) from error

    async def _bare(self, fields: Document) -> Document:
        """The very next change, with these of its fields."""
        start = {"startAfter": token_of(self._read_to)}
        stages = [{"$project": fields}, *await self._splitting()]
        await self._open(start, {}, stages)
        try:
            for _ in range(LOOKS):
                changes: list[Document] = (await self._more(1))["nextBatch"]
                if changes:
                    return changes[0]
        finally:
            await self._kill()
        raise OriginUnavailable("MongoDB doesn't show the change that it can't send: try again")

    async def _portion(self) -> Changes:
        """What is read, or as much of it as may be looked up at once."""
        portion = self._read
        if self._settings.document == "when_available" and any(map(lacks_document, portion)):
            portion = await self._lookup.complete(portion)
        rest = self._read[len(portion) :]
        self._is_idle = not portion
        naming = self._naming
        events = [event for change in portion if (event := event_of(change, naming)) is not None]
        time_ms = time_ms_of(portion[-1]) if portion else 0
        self._position = position_of(portion[-1]["_id"]) if rest else self._read_to
        self._read = rest
        return Changes(events, self._position, time_ms)

    def _wanted(self) -> Document:
        wanted = {"fullDocument": _FULL[self._settings.document]}
        if self._settings.earlier != "off":
            wanted["fullDocumentBeforeChange"] = _BEFORE[self._settings.earlier]
        return wanted

    async def _splitting(self) -> list[Document]:
        splits = await self._deployment.version() >= SPLITS_SINCE
        return [{"$changeStreamSplitLargeEvent": {}}] if splits else []

    async def _open(self, start: Document, wanted: Document, stages: list[Document]) -> Document:
        """A cursor that has read nothing yet; what the server says of it."""
        await self._forget_ahead()
        stage = {**wanted, **start}
        if not self._settings.database:
            stage["allChangesForCluster"] = True
        command = {
            "aggregate": self._settings.collection or 1,
            "pipeline": [{"$changeStream": stage}, *stages],
            "cursor": {"batchSize": 0},
            "readConcern": {"level": "majority"},
        }
        answer = await self._deployment.command(self._database, command, self._session)
        cursor: Document = answer["cursor"]
        self._cursor = cursor["id"]
        self._cursor_in = cursor["ns"].partition(".")[2]
        return cursor

    async def _more(self, most: int) -> Document:
        command: dict[str, Any] = {
            "getMore": Int64(self._cursor),
            "collection": self._cursor_in,
            "batchSize": most,
            "maxTimeMS": self._await_ms,
        }
        answer = await self._deployment.command(self._database, command, self._session)
        cursor: Document = answer["cursor"]
        return cursor

    async def _forget_ahead(self) -> None:
        """What another cursor reads begins where this one was, with the same changes."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait([ahead], timeout=FORGET_TIMEOUT_S)

    async def _kill(self) -> None:
        await self._forget_ahead()
        cursor, self._cursor = self._cursor, 0
        if cursor:
            command = {"killCursors": self._cursor_in, "cursors": [Int64(cursor)]}
            with contextlib.suppress(PyMongoError, TimeoutError):
                async with asyncio.timeout(FORGET_TIMEOUT_S):
                    await self._deployment.command(self._database, command, self._session)
