"""The documents of updates that MongoDB told without: as they are stored now.

The server would look each up by itself (`updateLookup`), but would then send no post-image where
there is one, and is slower than a query for many. Like there, what is found may be later than the
change, and is nothing where the document is gone.

Invariant: what is found isn't earlier than the change. A query's answer is one message of the
server, so that what is held in memory is bounded.
"""

from __future__ import annotations

from bson import Int64, Timestamp
from bson.errors import BSONError
from pymongo.asynchronous.client_session import AsyncClientSession

from headgate.adapters.mongo.bson_json import Document, to_json
from headgate.adapters.mongo.changes import described, lacks_document
from headgate.adapters.mongo.deployment import Deployment
from headgate.adapters.mongo.identity import key_of, position_of
from headgate.errors import ChangeTooLarge

Place = tuple[str, str]
"""Database and collection."""


class Lookup:
    def __init__(self, deployment: Deployment, session: AsyncClientSession) -> None:
        self._deployment = deployment
        self._session = session

    async def complete(self, changes: list[Document]) -> list[Document]:
        """The first changes, as many as can be looked up at once, with their documents: at least
        one. What isn't found stays without. Raises ChangeTooLarge where the very first one's can't
        be decoded."""
        while True:
            found = await self._find_all(changes)
            if found is not None:
                return [_completed(change, found) for change in changes]
            if len(changes) == 1:
                raise _undecodable(changes[0])
            changes = changes[: len(changes) // 2]

    async def _find_all(self, changes: list[Document]) -> dict[tuple[Place, str], Document] | None:
        """None: they are too much for one answer, or one can't be decoded."""
        lacking: dict[Place, dict[str, Document]] = {}
        for change in changes:
            if lacks_document(change):
                key = change["documentKey"]
                lacking.setdefault(_place(change), {})[_name(key)] = key
        at = changes[-1]["clusterTime"]
        found: dict[tuple[Place, str], Document] = {}
        for place, keys in lacking.items():
            try:
                documents = await self._find(place, keys, at)
            except BSONError:
                documents = None
            if documents is None:
                return None
            found.update({(place, name): document for name, document in documents.items()})
        return found

    async def _find(
        self, place: Place, keys: dict[str, Document], at: Timestamp
    ) -> dict[str, Document] | None:
        """By the names of their keys; None: there is more than one answer holds, of several, or
        what nobody can decode."""
        plain = [key["_id"] for key in keys.values() if len(key) == 1]
        found: dict[str, Document] = {}
        if plain:
            documents = await self._query(place, {"_id": {"$in": plain}}, len(plain), at)
            if documents is None:
                return None
            found = {key_of(document["_id"]): document for document in documents}
        for name, key in keys.items():
            # Of a sharded collection, where the `_id` alone may be on several shards.
            if len(key) > 1 and (one := await self._query(place, key, 1, at)):
                found[name] = one[0]
        return found

    async def _query(
        self, place: Place, query: Document, most: int, at: Timestamp
    ) -> list[Document] | None:
        database, collection = place
        command = {
            "find": collection,
            "filter": query,
            "limit": most,
            # One more than there are: then the first answer says that it is the last one.
            "batchSize": most + 1,
            "readConcern": {"level": "majority", "afterClusterTime": at},
        }
        cursor = (await self._deployment.command(database, command, self._session))["cursor"]
        if not cursor["id"]:
            found: list[Document] = cursor["firstBatch"]
            return found
        ending = {"killCursors": collection, "cursors": [Int64(cursor["id"])]}
        await self._deployment.command(database, ending, self._session)
        return None


def _place(change: Document) -> Place:
    return change["ns"]["db"], change["ns"]["coll"]


def _undecodable(change: Document) -> ChangeTooLarge:
    what = described(change)
    return ChangeTooLarge(
        f"the next change, {what}, is of a document that can't be decoded: skip it",
        position=position_of(change["_id"]),
        what=what,
    )


def _name(key: Document) -> str:
    return key_of(key["_id"]) if len(key) == 1 else to_json(key).decode()


def _completed(change: Document, found: dict[tuple[Place, str], Document]) -> Document:
    if not lacks_document(change):
        return change
    return {**change, "fullDocument": found.get((_place(change), _name(change["documentKey"])))}
