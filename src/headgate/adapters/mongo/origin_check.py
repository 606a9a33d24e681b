"""What a connector needs of MongoDB, tried before it begins, and what to do where it isn't so.

Changes nothing at the server. What can't be looked at for lack of a right is a warning that says
which right would show it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from bson.errors import BSONError
from pymongo.errors import OperationFailure, PyMongoError

from headgate.adapters.mongo.bson_json import Document
from headgate.adapters.mongo.changes import Naming
from headgate.adapters.mongo.deployment import Deployment
from headgate.adapters.mongo.oplog import Oplog
from headgate.adapters.mongo.origin_errors import NO_REPLICA_SET, too_old
from headgate.adapters.mongo.stream import MongoChangeStream
from headgate.decide.durations import written
from headgate.errors import HeadgateError
from headgate.ports.origin import Finding
from headgate.tasks import Helpers

HISTORY_SHORT_MS = 24 * 3_600_000
MOST_NAMED = 5
_OWN = frozenset({"admin", "config", "local"})


class OriginCheck:
    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._settings = deployment.settings

    async def run(self) -> list[Finding]:
        """In the order in which they depend on each other: what is behind a failure isn't tried."""
        found: list[Finding] = []
        try:
            async for finding in self._findings():
                found.append(finding)
                if finding.verdict == "failed" and finding.what != "pre-images":
                    break
        except (PyMongoError, BSONError, HeadgateError) as error:
            found.append(Finding("connection", "failed", str(self._deployment.error(error))))
        return found

    async def _findings(self) -> AsyncIterator[Finding]:
        hello = await self._deployment.command("admin", {"hello": 1})
        yield Finding("connection", "ok")
        yield self._replica_set(hello)
        yield self._version(await self._deployment.version())
        yield await self._rights()
        yield await self._images()
        yield await self._history()

    def _replica_set(self, hello: Document) -> Finding:
        if hello.get("msg") == "isdbgrid":
            return Finding("replica set", "ok", "a sharded cluster, through mongos")
        if not hello.get("setName"):
            return Finding("replica set", "failed", NO_REPLICA_SET)
        if not hello.get("isWritablePrimary"):
            sentence = (
                "this member isn't the primary, which connectors read from: leave directConnection "
                "out of the setting uri, and name all members"
            )
            return Finding("replica set", "failed", sentence)
        return Finding("replica set", "ok", f"the replica set {hello['setName']}")

    def _version(self, version: tuple[int, ...]) -> Finding:
        if refusal := too_old(version, self._settings):
            return Finding("version", "failed", refusal)
        return Finding("version", "ok", f"MongoDB {'.'.join(map(str, version))}")

    async def _rights(self) -> Finding:
        """By doing what a start does."""
        try:
            async with await self._deployment.session() as session, Helpers() as helpers:
                naming = Naming("check")
                stream = MongoChangeStream(self._deployment, naming, session, helpers)
                await stream.begin({})
                await stream.close()
        except HeadgateError as error:
            return Finding("rights", "failed", str(error))
        return Finding("rights", "ok")

    async def _images(self) -> Finding:
        """Which collections keep no states before and after a change."""
        earlier, document = self._settings.earlier, self._settings.document
        if earlier == "off" and document != "required":
            return Finding("pre-images", "ok", "not asked for")
        try:
            without = [name async for name in self._without_images()]
        except OperationFailure:
            sentence = (
                "the user may not list collections, so nobody can tell whether they keep the state "
                "before a change: grant it the role read of the database"
            )
            return Finding("pre-images", "warning", sentence)
        if not without:
            return Finding("pre-images", "ok")
        required = "required" in (earlier, document)
        return Finding("pre-images", "failed" if required else "warning", _enable(without))

    async def _without_images(self) -> AsyncIterator[str]:
        wanted = self._settings.collection
        for database in await self._databases():
            answer = await self._deployment.command(
                database,
                {
                    "listCollections": 1,
                    "filter": {"type": "collection", **({"name": wanted} if wanted else {})},
                    "cursor": {"batchSize": 10_000},
                },
            )
            for one in answer["cursor"]["firstBatch"]:
                images = one.get("options", {}).get("changeStreamPreAndPostImages", {})
                if not images.get("enabled") and not one["name"].startswith("system."):
                    yield f"{database}.{one['name']}"

    async def _databases(self) -> list[str]:
        if self._settings.database:
            return [self._settings.database]
        command = {"listDatabases": 1, "nameOnly": True, "authorizedDatabases": True}
        answer = await self._deployment.command("admin", command)
        return [one["name"] for one in answer["databases"] if one["name"] not in _OWN]

    async def _history(self) -> Finding:
        window = None
        with contextlib.suppress(OperationFailure):
            window = await Oplog(self._deployment).window()
        if window is None:
            sentence = (
                "the user may not read the oplog, so nobody can tell how far back it goes: grant "
                'it the role read of the database local, {role: "read", db: "local"}'
            )
            return Finding("history", "warning", sentence)
        length = written(window.length_ms)
        if not window.full or window.length_ms >= HISTORY_SHORT_MS:
            return Finding("history", "ok", f"the oplog holds {length}")
        sentence = (
            f"the oplog holds {length} only, and a connector that is away for longer loses its "
            "history: enlarge it with db.adminCommand({replSetResizeOplog: 1, minRetentionHours: "
            "24}) on every member"
        )
        return Finding("history", "warning", sentence)


def _enable(without: list[str]) -> str:
    names = ", ".join(without[:MOST_NAMED])
    more = f" and {len(without) - MOST_NAMED} more" if len(without) > MOST_NAMED else ""
    first = without[0].partition(".")[2]
    return (
        f"{names}{more} keep no state before a change, which deletes that filters see and `left` "
        f'need: db.runCommand({{collMod: "{first}", changeStreamPreAndPostImages: '
        "{enabled: true}})"
    )
