"""Which collections a record about a whole collection concerns.

A rename concerns two: the former name has nothing any more, and the new one has what that had, and
nothing else. Databases rename onto a collection that is there only by dropping it, as MongoDB's
`$out` does with every run; no other record says so.
"""

from __future__ import annotations

import msgspec

from headgate.model.event import Event, Op, Record


class _Renamed(msgspec.Struct):
    to: str


_decode = msgspec.json.Decoder(_Renamed).decode


def concerned(record: Record | Event) -> tuple[str, ...]:
    """Its collection, and of a rename the new name, too."""
    return collections_of(record.op, record.collection, record.document)


def collections_of(op: Op, collection: str, document: bytes | msgspec.Raw) -> tuple[str, ...]:
    """The same for whatever has these."""
    if op != "rename":
        return (collection,)
    try:
        return collection, _decode(document).to
    except msgspec.DecodeError:
        return (collection,)
