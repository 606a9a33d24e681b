"""What the stream changes while rows are read, and what that leaves of them.

Rows are read at some moment between two of the stream: it hasn't told more than `saw` was handed
before they were asked for, and has told all that is in them when they are handed in. So a row whose
key the stream has changed in between is older or newer than what it told, and nobody has to find
out which: the change says how the row is. Only where a change doesn't say all of it (a value that
it left as it was) the row is completed by what was told, which is how it is at the end.

Invariant: what is left is how the rows are at the stream's position when they are handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from headgate.decide.connectors.whole_collection import concerned
from headgate.model.event import UNKNOWN_HEADER, WHOLE_COLLECTION, Event

Told = dict[str, msgspec.Raw]
"""What the stream has told of a row, by field."""

_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_to_json = msgspec.json.Encoder().encode
_UNKNOWN = UNKNOWN_HEADER.encode()


class Overlap:
    """Of one chunk of `collection`, from the moment on in which it is asked for."""

    def __init__(self, collection: str) -> None:
        self._collection = collection
        self._changed: dict[str, Told | None] = {}
        """By key, the parts that were told; None: all of it was, or that it is gone."""
        self._rows: Sequence[Event] | None = None
        self._keys: frozenset[str | None] = frozenset()
        self._is_emptied = False

    def read(self, rows: Sequence[Event]) -> None:
        """These are the rows; what else is changed doesn't matter from now on."""
        self._rows = rows
        self._keys = frozenset(row.key for row in rows)
        self._changed = {key: told for key, told in self._changed.items() if key in self._keys}

    def saw(self, events: Iterable[Event]) -> None:
        """The stream told these."""
        for event in events:
            if event.key is None:
                if event.op in WHOLE_COLLECTION and self._collection in concerned(event):
                    self._is_emptied = True
                    self._changed.clear()
            elif event.collection == self._collection and self._is_of_interest(event.key):
                self._changed[event.key] = self._told(event.key, event)

    def left(self) -> list[Event]:
        """The rows that are handed in."""
        assert self._rows is not None, "nobody has read them yet"
        if not self._changed and not self._is_emptied:
            return list(self._rows)
        found = []
        for row in self._rows:
            assert row.key is not None, "every row has a key"
            told = self._changed.get(row.key, {})
            if told:
                found.append(replace(row, document=_completed(row.document, told)))
            elif told is not None and not self._is_emptied:
                found.append(row)
        return found

    def _is_of_interest(self, key: str) -> bool:
        return self._rows is None or key in self._keys

    def _told(self, key: str, event: Event) -> Told | None:
        before = self._changed.get(key, {})
        if before is None or event.op == "delete" or not is_partial(event):
            return None
        return {**before, **_fields_of(event.document)}


def is_partial(event: Event) -> bool:
    """Does it say that it doesn't tell every value?"""
    return event.headers is not None and _UNKNOWN in event.headers


def _completed(document: bytes, told: Told) -> bytes:
    return _to_json({**_fields_of(document), **told})
