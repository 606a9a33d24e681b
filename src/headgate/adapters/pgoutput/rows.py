"""What a change of a row becomes: an event with key and document, by the table as it was then.

Pure: messages and what is known of a table in, events out. A value that the server didn't send (an
unchanged TOAST value) is taken from the row before where that is there; otherwise the document
lacks it, and the header `headgate-unknown` names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import cast

import msgspec

from headgate.adapters.pgoutput.identity import event_id_of
from headgate.adapters.pgoutput.messages import (
    UNCHANGED,
    Delete,
    Emitted,
    Insert,
    Relation,
    Unchanged,
    Update,
    Value,
)
from headgate.adapters.pgoutput.values import Convert, Converters, column, integer, text
from headgate.decide.produce.headers import HEADERS_BYTES
from headgate.model.event import UNKNOWN_HEADER, Event, Op

TOO_MANY = ["*"]
"""In place of more names than headers may have."""
NOTHING = b"null"
_json = msgspec.json.Encoder().encode


class Table:
    """One table as a Relation describes it. `key` names the columns that make its rows' keys;
    empty: nothing does."""

    def __init__(self, relation: Relation, key: Sequence[str], converters: Converters) -> None:
        self.name = relation.name
        self.is_full = relation.identity == "f"
        names = [one.name for one in relation.columns]
        self.names = names
        self.converts: list[Convert] = [converters.of(one.type_oid) for one in relation.columns]
        self._heads = [_json(name) + b":" for name in names]
        heads = b",".join([head.replace(b"%", b"%%") + b"%b" for head in self._heads])
        self._whole = b"{" + heads + b"}"
        """A document, but for its values."""
        self._key = [names.index(name) for name in key]
        self._alone = self._key[0] if len(self._key) == 1 else -1

    def key(self, values: Sequence[Value]) -> str:
        """Of a column alone its text, of several a JSON array. Raises ValueError."""
        if not self._key:
            raise ValueError("it has neither a primary key nor another replica identity by index")
        if self._alone >= 0:
            value, convert = values[self._alone], self.converts[self._alone]
            if not isinstance(value, bytes):
                raise ValueError(f"the key column {self.names[self._alone]} has no value")
            if convert is integer or convert is text:
                return str(value, "utf-8")
            found = convert(value)
            return str(msgspec.json.decode(found)) if found[:1] == b'"' else str(found, "utf-8")
        return str(
            b"[" + b",".join([self._json(at, values[at]) for at in self._key]) + b"]", "utf-8"
        )

    def document(self, values: Sequence[Value]) -> bytes:
        """Without what is unknown."""
        parts = []
        for head, convert, value in zip(self._heads, self.converts, values, strict=True):
            if value is None:
                parts.append(head + NOTHING)
            elif value is not UNCHANGED:
                parts.append(head + convert(value))
        return b"{" + b",".join(parts) + b"}"

    def rows(self, columns: Sequence[Sequence[bytes | None]]) -> Iterator[tuple[str, bytes]]:
        """Key and document of rows whose values all are known, given column by column: no line of
        Python runs per value where nothing is to be converted. Raises ValueError."""
        converted = map(column, self.converts, columns)
        documents = map(self._whole.__mod__, zip(*converted, strict=True))
        return zip(self._keys(columns), documents, strict=True)

    def _keys(self, columns: Sequence[Sequence[bytes | None]]) -> Iterable[str]:
        if self._alone >= 0 and self.converts[self._alone] in (integer, text):
            values = columns[self._alone]
            if None not in values:
                return map(str, cast("Sequence[bytes]", values), repeat("utf-8"))
        return map(self.key, zip(*columns, strict=True))

    def key_document(self, values: Sequence[Value]) -> bytes:
        parts = [self._heads[at] + self._json(at, values[at]) for at in self._key]
        return b"{" + b",".join(parts) + b"}"

    def filled(
        self, new: list[Value], old: Sequence[Value] | None, *, is_full: bool
    ) -> list[Value]:
        """`new` with what it lacks and `old`, the row before or its key, has."""
        if UNCHANGED not in new or old is None:
            return new
        known = range(len(new)) if is_full else self._key
        return [
            old[at] if value is UNCHANGED and at in known else value for at, value in enumerate(new)
        ]

    def unknown(self, values: Sequence[Value]) -> bytes | None:
        """The headers that say so; None where every value is known."""
        if UNCHANGED not in values:
            return None
        pairs = zip(self.names, values, strict=True)
        names = [name for name, value in pairs if value is UNCHANGED]
        header = _json({UNKNOWN_HEADER: _json(names).decode()})
        return (
            header
            if len(header) < HEADERS_BYTES
            else _json({UNKNOWN_HEADER: _json(TOO_MANY).decode()})
        )

    def _json(self, at: int, value: Value) -> bytes:
        if value is None or isinstance(value, Unchanged):
            return NOTHING
        return self.converts[at](value)


class RowEvents:
    """Makes events for the connector `backend`. Every change has two positions: an update that
    changes the key is a delete of the former one, and an insert of the new."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def inserted(self, table: Table, change: Insert, at: tuple[str, str]) -> list[Event]:
        key = table.key(change.new)
        return [self._event(table.name, key, "insert", table.document(change.new), at[0])]

    def updated(self, table: Table, change: Update, at: tuple[str, str]) -> list[Event]:
        old, is_full = change.old, change.is_full
        new = table.filled(change.new, old, is_full=is_full)
        key = table.key(new)
        headers = table.unknown(new)
        document = table.document(new)
        earlier = table.document(old) if old is not None and is_full else None
        former = key if old is None else table.key(old)
        if former == key:
            return [self._event(table.name, key, "update", document, at[0], earlier, headers)]
        assert old is not None
        gone = earlier if earlier is not None else table.key_document(old)
        return [
            self._event(table.name, former, "delete", gone, at[0], earlier),
            self._event(table.name, key, "insert", document, at[1], None, headers),
        ]

    def deleted(self, table: Table, change: Delete, at: tuple[str, str]) -> list[Event]:
        key = table.key(change.old)
        earlier = table.document(change.old) if change.is_full else None
        document = earlier if earlier is not None else table.key_document(change.old)
        return [self._event(table.name, key, "delete", document, at[0], earlier)]

    def truncated(self, name: str, position: str) -> Event:
        return self._event(name, None, "truncate", NOTHING, position)

    def emitted(self, collection: str, message: Emitted, position: str) -> Event:
        try:
            content: dict[str, str] = {"content": str(message.content, "utf-8")}
        except UnicodeDecodeError:
            content = {"base64": msgspec.json.decode(_json(message.content))}
        document = _json({"prefix": message.prefix, **content})
        return self._event(collection, message.prefix, "insert", document, position)

    def _event(
        self,
        collection: str,
        key: str | None,
        op: Op,
        document: bytes,
        position: str,
        earlier: bytes | None = None,
        headers: bytes | None = None,
    ) -> Event:
        event_id = event_id_of(self._backend, collection, key, position)
        return Event(event_id, document, key, op, collection, earlier, position, headers)
