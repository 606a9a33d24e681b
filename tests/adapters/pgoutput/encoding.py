"""pgoutput's messages written out by hand, field by field as PostgreSQL's manual has them: what the
decoder is judged by."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from headgate.adapters.pgoutput.messages import (
    UNCHANGED,
    Begin,
    Column,
    Commit,
    Delete,
    Emitted,
    Insert,
    Message,
    Origin,
    Relation,
    Truncate,
    Type,
    Update,
    Value,
)

SINCE_2000_MS = 946_684_800_000


def u16(value: int) -> bytes:
    return struct.pack(">H", value)


def u32(value: int) -> bytes:
    return struct.pack(">I", value)


def i64(value: int) -> bytes:
    return struct.pack(">q", value)


def name(text: str) -> bytes:
    return text.encode() + b"\0"


def time(time_ms: int) -> bytes:
    return i64((time_ms - SINCE_2000_MS) * 1_000)


def row(values: Sequence[Value]) -> bytes:
    found = u16(len(values))
    for value in values:
        if value is None:
            found += b"n"
        elif value is UNCHANGED:
            found += b"u"
        else:
            assert isinstance(value, bytes)
            found += b"t" + u32(len(value)) + value
    return found


def column(one: Column) -> bytes:
    flags = b"\1" if one.is_key else b"\0"
    return flags + name(one.name) + u32(one.type_oid) + struct.pack(">i", one.modifier)


def encode(message: Message) -> bytes:
    match message:
        case Begin(lsn, time_ms, xid):
            return b"B" + i64(lsn) + time(time_ms) + u32(xid)
        case Commit(lsn, end, time_ms):
            return b"C\0" + i64(lsn) + i64(end) + time(time_ms)
        case Insert(relation, new):
            return b"I" + u32(relation) + b"N" + row(new)
        case Update(relation, old, is_full, new):
            before = b"" if old is None else (b"O" if is_full else b"K") + row(old)
            return b"U" + u32(relation) + before + b"N" + row(new)
        case Delete(relation, old, is_full):
            return b"D" + u32(relation) + (b"O" if is_full else b"K") + row(old)
        case Truncate(relations):
            return b"T" + u32(len(relations)) + b"\0" + b"".join(map(u32, relations))
        case Relation(oid, schema, table, identity, columns):
            head = b"R" + u32(oid) + name(schema) + name(table) + identity.encode()
            return head + u16(len(columns)) + b"".join(map(column, columns))
        case Type(oid, schema, text):
            return b"Y" + u32(oid) + name(schema) + name(text)
        case Emitted(is_transactional, lsn, prefix, content):
            flags = b"\1" if is_transactional else b"\0"
            return b"M" + flags + i64(lsn) + name(prefix) + u32(len(content)) + content
        case Origin(text):
            return b"O" + i64(0) + name(text)
