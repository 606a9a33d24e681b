"""How far back MongoDB's history goes, and how much of it is behind a position: from the oplog.

Only a user who may read it is told; changes themselves need no such right.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
from bson import Regex, Timestamp
from pymongo.errors import OperationFailure

from headgate.adapters.mongo.bson_json import Document
from headgate.adapters.mongo.deployment import Deployment
from headgate.adapters.mongo.identity import is_change, time_of, token_of
from headgate.decide.connectors.mongo_settings import MongoSettings
from headgate.ports.origin import Standing

MOST_COUNTED = 100_000
COUNT_TIMEOUT_MS = 500
READ_TIMEOUT_MS = 2_000
_LOCAL = "local"
_OPLOG = "oplog.rs"
_CHANGES = ["i", "u", "d"]
"""Kinds of entries; `c` are commands, a transaction's changes among them."""


class Window(msgspec.Struct, frozen=True):
    """`full`: older entries are being removed, so the time between first and last stays as it is
    with the present load."""

    first: Timestamp
    last: Timestamp
    full: bool

    @property
    def length_ms(self) -> int:
        return (self.last.time - self.first.time) * 1_000


class Oplog:
    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    async def window(self) -> Window:
        """Raises PyMongo's errors: OperationFailure where it may not be read, or isn't there."""
        first, last = await self._end(1), await self._end(-1)
        stats: list[Document] = [{"$collStats": {"storageStats": {}}}]
        found = await self._aggregate(stats, READ_TIMEOUT_MS)
        sizes = found[0]["storageStats"]
        return Window(first, last, full=sizes["size"] >= 0.9 * sizes["maxSize"])

    async def standing(self, position: str) -> Standing:
        """Raises PyMongo's errors, and OriginRefused for what is no position."""
        token_of(position)
        window = Window(await self._end(1), await self._end(-1), full=False)
        since = {"$gt" if is_change(position) else "$gte": time_of(position)}
        match = {"ts": since, **_of_interest(self._deployment.settings)}
        stages: list[Document] = [{"$match": match}, {"$limit": MOST_COUNTED}, {"$count": "behind"}]
        behind: int | None = None
        with contextlib.suppress(OperationFailure):  # it would take too long
            counted = await self._aggregate(stages, COUNT_TIMEOUT_MS)
            behind = counted[0]["behind"] if counted else 0
        age_s = max(window.last.time - time_of(position).time, 0)
        return Standing(behind, window.length_ms, age_s * 1_000)

    async def _end(self, direction: int) -> Timestamp:
        command = {
            "find": _OPLOG,
            "sort": {"$natural": direction},
            "projection": {"ts": 1},
            "limit": 1,
            "singleBatch": True,
            "maxTimeMS": READ_TIMEOUT_MS,
        }
        answer = await self._deployment.command(_LOCAL, command)
        found = answer["cursor"]["firstBatch"]
        if not found:
            raise OperationFailure("there is no oplog")
        ts: Timestamp = found[0]["ts"]
        return ts

    async def _aggregate(self, stages: list[Document], timeout_ms: int) -> list[Document]:
        command: dict[str, Any] = {
            "aggregate": _OPLOG,
            "pipeline": stages,
            "cursor": {},
            "maxTimeMS": timeout_ms,
        }
        found: list[Document] = (await self._deployment.command(_LOCAL, command))["cursor"][
            "firstBatch"
        ]
        return found


def _of_interest(settings: MongoSettings) -> Document:
    """Entries that make changes of the stream; one of a transaction counts once."""
    if not settings.database:
        own = Regex(r"^(admin|config|local)\.")
        return {"$or": [{"op": {"$in": _CHANGES}, "ns": {"$not": own}}, _TRANSACTIONS]}
    if settings.collection:
        namespace: object = f"{settings.database}.{settings.collection}"
    else:
        namespace = {"$gte": f"{settings.database}.", "$lt": f"{settings.database}/"}
    return {"op": {"$in": _CHANGES}, "ns": namespace}


_TRANSACTIONS = {"op": "c", "o.applyOps": {"$exists": True}}
