"""What a change that MongoDB tells becomes: an event, or nothing.

Pure: documents in, events out. An update whose document MongoDB didn't send is looked up before
(`lacks_document`), and what comes in fragments is put together here.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headgate.adapters.mongo.bson_json import Document, to_json
from headgate.adapters.mongo.identity import event_id_of, key_of, position_of
from headgate.model.event import Event, Op

_OPS: dict[str, Op] = {
    "insert": "insert",
    "update": "update",
    "replace": "update",
    "delete": "delete",
    "drop": "drop",
    "rename": "rename",
}
"""What isn't here makes no record: before `dropDatabase` each collection's `drop` was told, and
`invalidate` only ends a stream, for a reason that was told."""


class Naming(msgspec.Struct, frozen=True):
    """`backend` is the connector's name, `database` the one that it reads. Empty: collections of
    several are read, and named with theirs."""

    backend: str
    database: str = ""

    def collection(self, namespace: Document) -> str:
        name: str = namespace.get("coll", "")
        return name if self.database else f"{namespace['db']}.{name}"

    def namespace(self, collection: str) -> str:
        """The inverse: with its database in any case."""
        return f"{self.database}.{collection}" if self.database else collection


def lacks_document(change: Document) -> bool:
    return change["operationType"] == "update" and change.get("fullDocument") is None


def event_of(change: Document, naming: Naming) -> Event | None:
    """A change of a whole document, as MongoDB sends it."""
    op = _OPS.get(change["operationType"])
    if op is None:
        return None
    namespace = change["ns"]
    position = position_of(change["_id"])
    event_id = event_id_of(naming.backend, f"{namespace['db']}.{namespace['coll']}", position)
    collection = naming.collection(namespace)
    document_key = change.get("documentKey")
    if document_key is None:
        to = {"to": naming.collection(change["to"])} if op == "rename" else None
        return Event(event_id, to_json(to), None, op, collection, None, position)
    before = change.get("fullDocumentBeforeChange")
    earlier = None if before is None else to_json(before)
    if op == "delete" and earlier is not None:
        document = earlier
    else:
        document = to_json(change.get("fullDocument") or document_key)
    return Event(event_id, document, key_of(document_key["_id"]), op, collection, earlier, position)


def time_ms_of(change: Document) -> int:
    """When it was made, by the clock of the server; its cluster time knows the seconds only."""
    wall_time = change.get("wallTime")
    return int(wall_time) if wall_time is not None else change["clusterTime"].time * 1_000


def described(change: Document) -> str:
    """Which change it is, for an operator who must decide what to do about it."""
    namespace = change.get("ns", {})
    name = f"{change['operationType']} of {namespace.get('db', '')}.{namespace.get('coll', '')}"
    key = change.get("documentKey")
    return name if key is None else f"{name} _id={key_of(key['_id'])}"


class Fragments:
    """Puts together what the server had to split ($changeStreamSplitLargeEvent): every fragment has
    some of the fields, and the last one's position is the change's."""

    def __init__(self) -> None:
        self._parts: Document = {}

    @property
    def waiting(self) -> bool:
        """There are fragments of which the last is still to come."""
        return bool(self._parts)

    def whole(self, changes: Iterable[Document]) -> list[Document]:
        """The changes that are complete now."""
        return [one for change in changes if (one := self._add(change)) is not None]

    def _add(self, change: Document) -> Document | None:
        split = change.pop("splitEvent", None)
        if split is None:
            return change
        if split["fragment"] == 1:
            self._parts = {}
        self._parts.update(change)
        if split["fragment"] < split["of"]:
            return None
        whole, self._parts = self._parts, {}
        return whole
