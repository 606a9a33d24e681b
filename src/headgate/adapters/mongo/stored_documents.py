"""Reads the documents of collections, chunk by chunk, for snapshots.

MongoDB reads a collection as it was at a cluster time, for the last five minutes or so. So a chunk
is read as of where the stream stands, and has its place at once; where the stream is further behind
than that, it is read as of now, and has its place when the stream has come there.

Chunks follow the index over `_id`, which has all types one behind the other: a plain condition on
`_id` would leave out those of another type, `min` one that is a MaxKey.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import bson
from bson import Timestamp
from pymongo.errors import OperationFailure

from headgate.adapters.mongo.bson_json import CODEC, Document, to_json
from headgate.adapters.mongo.changes import Naming
from headgate.adapters.mongo.deployment import Deployment
from headgate.adapters.mongo.identity import is_change, key_of, time_of
from headgate.model.chunk import Chunk
from headgate.model.event import Event
from headgate.ports.origin import Listing

ROWS = 2_000
"""The server sends fewer where they are more than 16 MB."""
OWN_DATABASES = frozenset({"admin", "config", "local"})
OWN_COLLECTIONS = "system."
_NO_SUCH_SNAPSHOT = frozenset({239, 246})
"""SnapshotTooOld; SnapshotUnavailable: the collection itself is younger, or is a capped one."""


class StoredDocuments:
    def __init__(self, deployment: Deployment, naming: Naming) -> None:
        self._deployment = deployment
        self._naming = naming

    async def listing(self) -> Listing:
        """Raises PyMongo's errors."""
        settings = self._deployment.settings
        databases = [settings.database] if settings.database else await self._databases()
        found: dict[str, int | None] = {}
        for database in databases:
            for name in await self._collections(database):
                if settings.collection in ("", name):
                    collection = self._naming.collection({"db": database, "coll": name})
                    answer = await self._deployment.command(database, {"count": name})
                    found[collection] = int(answer["n"])
        return Listing(found)

    async def chunk(
        self, collection: str, behind: str, position: str, *, is_idle: bool = False
    ) -> Chunk:
        """As of the stream's `position`, or later; `is_idle`: there it has told all that there was,
        also where a cluster time has several changes. Raises PyMongo's errors, and BSONError for a
        document that can't be decoded."""
        database, _, name = self._naming.namespace(collection).partition(".")
        command = _command(name, behind)
        told = _told(position)
        for concern in (
            {"level": "snapshot", "atClusterTime": told},
            {"level": "snapshot"},
            # As it changes while it is read, no earlier than that: of a capped collection no more
            # is to be had.
            {"level": "majority", "afterClusterTime": told},
        ):
            try:
                answer = await self._deployment.command(
                    database, {**command, "readConcern": concern}
                )
                break
            except OperationFailure as error:
                if error.code not in _NO_SUCH_SNAPSHOT or concern["level"] == "majority":
                    raise
        cursor = answer["cursor"]
        found: list[Document] = cursor["firstBatch"]
        rows = [Event("", to_json(one), key_of(one["_id"]), "read", collection) for one in found]
        next_one = _text_of(found[-1]["_id"]) if found else None
        at = cursor.get("atClusterTime", answer["operationTime"])
        upto = position if is_idle and at == told else _behind(at)
        return Chunk(rows, upto if found else "", next_one)

    async def _databases(self) -> Sequence[str]:
        answer = await self._deployment.command("admin", {"listDatabases": 1, "nameOnly": True})
        return [one["name"] for one in answer["databases"] if one["name"] not in OWN_DATABASES]

    async def _collections(self, database: str) -> Sequence[str]:
        """Whose documents may change: neither views nor MongoDB's own."""
        command = {
            "listCollections": 1,
            "filter": {"type": "collection"},
            "nameOnly": True,
            "authorizedCollections": True,
            "cursor": {"batchSize": 100_000},
        }
        answer = await self._deployment.command(database, command)
        names = [one["name"] for one in answer["cursor"]["firstBatch"]]
        return [name for name in names if not name.startswith(OWN_COLLECTIONS)]


def _command(name: str, behind: str) -> dict[str, Any]:
    command = {
        "find": name,
        "sort": {"_id": 1},
        "hint": {"_id": 1},
        "limit": ROWS,
        "batchSize": ROWS,
        "singleBatch": True,
    }
    if behind:
        command["filter"] = {"$expr": {"$gt": ["$_id", {"$literal": _id_of(behind)["_id"]}]}}
    return command


def _told(position: str) -> Timestamp:
    """The last cluster time of which the stream has told something, or all."""
    time = time_of(position)
    return time if is_change(position) else _moved(time, -1)


def _behind(time: Timestamp) -> str:
    """The least position of a stream that has told all of `time`."""
    after = _moved(time, 1)
    return f"82{after.time:08X}{after.inc:08X}"


def _moved(time: Timestamp, by: int) -> Timestamp:
    whole = (time.time << 32 | time.inc) + by
    return Timestamp(whole >> 32, whole & 0xFFFFFFFF)


def _text_of(identifier: object) -> str:
    """As BSON, because no other form keeps every type."""
    return base64.b64encode(bson.encode({"_id": identifier}, codec_options=CODEC)).decode()


def _id_of(text: str) -> Document:
    return bson.decode(base64.b64decode(text), codec_options=CODEC)
