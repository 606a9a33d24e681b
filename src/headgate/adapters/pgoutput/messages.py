"""The messages of PostgreSQL's logical replication (pgoutput, protocol 1), as values.

Pure: bytes in, values out. What is shorter or longer than it says, or of a kind that this protocol
doesn't have, raises MalformedMessage: a guess would be a change that nobody made.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from struct import Struct, error
from typing import Final

import msgspec

_EPOCH_MS = 946_684_800_000
"""2000-01-01, from which PostgreSQL counts."""


OWN_PREFIX = "headgate"
"""Of messages that a connector says itself, to find a place in the WAL."""


class MalformedMessage(ValueError):
    """The server sent what this protocol doesn't have."""


class Unchanged(Enum):
    """Stands for a large value that an update left as it was: the server doesn't send it."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED

Value = bytes | None | Unchanged
"""A column's value as text, null, or a large one that wasn't sent."""


class Column(msgspec.Struct, frozen=True):
    """`is_key`: part of what identifies a row in a change; under REPLICA IDENTITY FULL all are."""

    name: str
    type_oid: int
    is_key: bool
    modifier: int = -1


class Relation(msgspec.Struct, frozen=True):
    """A table as it is from here on. `identity` is its REPLICA IDENTITY: d, n, f or i."""

    oid: int
    schema: str
    table: str
    identity: str
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


class Type(msgspec.Struct, frozen=True):
    """A type that isn't PostgreSQL's own; of a domain, `name` is what it is based on."""

    oid: int
    schema: str
    name: str


class Begin(msgspec.Struct, frozen=True, gc=False):
    """A transaction that was committed at `commit_lsn`: all of it follows."""

    commit_lsn: int
    time_ms: int
    xid: int


class Commit(msgspec.Struct, frozen=True, gc=False):
    """The end of the transaction; a reader that has all up to `end_lsn` has all of it."""

    commit_lsn: int
    end_lsn: int
    time_ms: int


class Insert(msgspec.Struct, frozen=True, gc=False):
    relation: int
    new: list[Value]


class Update(msgspec.Struct, frozen=True, gc=False):
    """`old` is the whole row before where `is_full`, else its key; None: the key is as it was."""

    relation: int
    old: list[Value] | None
    is_full: bool
    new: list[Value]


class Delete(msgspec.Struct, frozen=True, gc=False):
    relation: int
    old: list[Value]
    is_full: bool


class Truncate(msgspec.Struct, frozen=True):
    relations: tuple[int, ...]


class Emitted(msgspec.Struct, frozen=True):
    """A message that was written with pg_logical_emit_message."""

    is_transactional: bool
    lsn: int
    prefix: str
    content: bytes


class Origin(msgspec.Struct, frozen=True):
    """The transaction came from another server first."""

    name: str


Message = Begin | Commit | Relation | Type | Insert | Update | Delete | Truncate | Emitted | Origin

_BEGIN = Struct(">qqI")
_COMMIT = Struct(">Bqqq")
_EMITTED = Struct(">Bq")
_U16 = Struct(">H").unpack_from
_U32 = Struct(">I").unpack_from
_COLUMN = Struct(">Ii")
_NULL, _KEPT, _TEXT = b"nut"
_FULL, _KEY, _NEW = b"OKN"


def time_ms_of(time_us: int) -> int:
    """Since 1970, of what PostgreSQL counts since 2000."""
    return time_us // 1_000 + _EPOCH_MS


def decode(data: bytes) -> Message:
    """One message. Raises MalformedMessage."""
    try:
        read = _KINDS[data[0]]
    except (KeyError, IndexError):
        raise MalformedMessage(f"there is no message {data[:1]!r}") from None
    try:
        message, end = read(data)
    except (error, IndexError, UnicodeDecodeError) as cause:
        raise MalformedMessage(f"a message {data[:1]!r} is too short or no text") from cause
    if end != len(data):
        raise MalformedMessage(f"a message {data[:1]!r} isn't as long as it says")
    return message


def _begin(data: bytes) -> tuple[Begin, int]:
    commit_lsn, time_us, xid = _BEGIN.unpack_from(data, 1)
    return Begin(commit_lsn, time_ms_of(time_us), xid), 1 + _BEGIN.size


def _commit(data: bytes) -> tuple[Commit, int]:
    _flags, commit_lsn, end_lsn, time_us = _COMMIT.unpack_from(data, 1)
    return Commit(commit_lsn, end_lsn, time_ms_of(time_us)), 1 + _COMMIT.size


def _insert(data: bytes) -> tuple[Insert, int]:
    _expect(data, 5, _NEW)
    new, end = _tuple(data, 6)
    return Insert(_U32(data, 1)[0], new), end


def _update(data: bytes) -> tuple[Update, int]:
    relation, at, kind = _U32(data, 1)[0], 5, data[5]
    old: list[Value] | None = None
    if kind != _NEW:
        if kind not in (_FULL, _KEY):
            raise MalformedMessage(f"an update has no part {kind:#x}")
        old, at = _tuple(data, 6)
        _expect(data, at, _NEW)
    new, end = _tuple(data, at + 1)
    return Update(relation, old, kind == _FULL, new), end


def _delete(data: bytes) -> tuple[Delete, int]:
    kind = data[5]
    if kind not in (_FULL, _KEY):
        raise MalformedMessage(f"a delete has no part {kind:#x}")
    old, end = _tuple(data, 6)
    return Delete(_U32(data, 1)[0], old, kind == _FULL), end


def _truncate(data: bytes) -> tuple[Truncate, int]:
    count = _U32(data, 1)[0]
    end = 6 + 4 * count
    if end > len(data):
        raise MalformedMessage("a truncate names fewer tables than it says")
    return Truncate(tuple(_U32(data, 6 + 4 * at)[0] for at in range(count))), end


def _relation(data: bytes) -> tuple[Relation, int]:
    oid = _U32(data, 1)[0]
    schema, at = _text(data, 5)
    table, at = _text(data, at)
    identity = chr(data[at])
    count = _U16(data, at + 1)[0]
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        name, at = _text(data, at + 1)
        type_oid, modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(Column(name, type_oid, bool(flags & 1), modifier))
    return Relation(oid, schema or "pg_catalog", table, identity, tuple(columns)), at


def _type(data: bytes) -> tuple[Type, int]:
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    return Type(_U32(data, 1)[0], schema or "pg_catalog", name), at


def _emitted(data: bytes) -> tuple[Emitted, int]:
    flags, lsn = _EMITTED.unpack_from(data, 1)
    prefix, at = _text(data, 1 + _EMITTED.size)
    content, end = _bytes(data, at)
    return Emitted(bool(flags & 1), lsn, prefix, content), end


def _origin(data: bytes) -> tuple[Origin, int]:
    name, end = _text(data, 9)
    return Origin(name), end


def _tuple(data: bytes, at: int) -> tuple[list[Value], int]:
    values: list[Value] = []
    count = _U16(data, at)[0]
    at += 2
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == _TEXT:
            end = at + 4 + _U32(data, at)[0]
            if end > len(data):
                raise MalformedMessage("a value is shorter than it says")
            values.append(data[at + 4 : end])
            at = end
        elif kind == _NULL:
            values.append(None)
        elif kind == _KEPT:
            values.append(UNCHANGED)
        else:
            raise MalformedMessage(f"a value has no kind {kind:#x}")
    return values, at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + 4 + _U32(data, at)[0]
    if end > len(data):
        raise MalformedMessage("a message has less content than it says")
    return data[at + 4 : end], end


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise MalformedMessage("a name has no end")
    return data[at:end].decode(), end + 1


def _expect(data: bytes, at: int, kind: int) -> None:
    if data[at] != kind:
        raise MalformedMessage(f"a new row was to come, and not {data[at]:#x}")


_KINDS: dict[int, Callable[[bytes], tuple[Message, int]]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("T"): _truncate,
    ord("R"): _relation,
    ord("Y"): _type,
    ord("M"): _emitted,
    ord("O"): _origin,
}
