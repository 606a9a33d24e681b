"""PostgreSQL's values as JSON: from a column's text, as the server writes it, to a document's.

The session writes them in one fixed way (`SESSION`), whatever the server's settings are. Nothing is
lost: a number has all its digits, and whatever JSON has no form for is a text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, cast

import msgspec

from headgate.decide.produce.admission import nesting_exceeds

SESSION: Mapping[str, str] = {
    "client_encoding": "UTF8",
    "datestyle": "ISO, MDY",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
}
"""What the converters here rely on."""
DEEPEST = 500
"""Levels of JSON: no producer's document has more (`ingest.max_depth`), and everybody can read as
many."""
PLAIN_NUMBER_MOST = 300
"""A number of more digits is more than what others take for one (1.8e308), so it is a text."""

Convert = Callable[[bytes], bytes]
"""From PostgreSQL's text to JSON. Raises ValueError for what isn't of its type."""
Numeric = Literal["number", "text"]

_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode
_NULL = b"null"
_UNPLAIN = frozenset({b"NaN", b"Infinity", b"-Infinity"})


class TypeInfo(msgspec.Struct, frozen=True):
    """What the catalog says of a type: `kind` is its pg_type.typtype, `of` what a domain is based
    on, an array has, or a range is over; 0 where it is none of them."""

    name: str
    kind: str = "b"
    of: int = 0
    is_array: bool = False
    separator: str = ","


def text(value: bytes) -> bytes:
    return _to_json(str(value, "utf-8"))


def boolean(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def integer(value: bytes) -> bytes:
    return value


def real(value: bytes) -> bytes:
    return b'"' + value + b'"' if value in _UNPLAIN else value


def number(value: bytes) -> bytes:
    """`numeric`, digit by digit."""
    if len(value) > PLAIN_NUMBER_MOST or value in _UNPLAIN:
        return b'"' + value + b'"'
    return value


def jsonb(value: bytes) -> bytes:
    """The JSON as PostgreSQL writes it, or a text where no other reader could read it."""
    return value if len(value) <= PLAIN_NUMBER_MOST or _is_readable(value) else text(value)


def json(value: bytes) -> bytes:
    return msgspec.json.format(value, indent=-1) if _is_readable(value) else text(value)


def _is_readable(value: bytes) -> bool:
    if nesting_exceeds(value, DEEPEST):
        return False
    try:
        _from_json(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def binary(value: bytes) -> bytes:
    """In base64."""
    if not value.startswith(b"\\x"):
        raise ValueError("a bytea isn't in hexadecimal")
    return b'"' + base64.b64encode(bytes.fromhex(value[2:].decode("ascii"))) + b'"'


def timestamp(value: bytes) -> bytes:
    """`2026-01-02T03:04:05.678901`; as PostgreSQL writes it before Christ, and for infinity."""
    return b'"' + value.replace(b" ", b"T", 1) + b'"'


def instant(value: bytes) -> bytes:
    """The same with Z: the session's zone is UTC."""
    moment, plus, after = value.partition(b"+00")
    return b'"' + moment.replace(b" ", b"T", 1) + (b"Z" if plus else b"") + after + b'"'


def plain(value: bytes) -> bytes:
    """A text in which nothing has to be escaped."""
    return b'"' + value + b'"'


_BY_OID: dict[int, Convert] = {
    16: boolean,
    17: binary,
    20: integer,
    21: integer,
    23: integer,
    26: integer,
    28: integer,
    700: real,
    701: real,
    114: json,
    3802: jsonb,
    1082: plain,
    1083: plain,
    1266: plain,
    1186: plain,
    1114: timestamp,
    1184: instant,
    2950: plain,
}
_NUMERIC = 1700
_ARRAYS = {
    1000: 16,
    1001: 17,
    1016: 20,
    1005: 21,
    1007: 23,
    1028: 26,
    1021: 700,
    1022: 701,
    199: 114,
    3807: 3802,
    1182: 1082,
    1183: 1083,
    1270: 1266,
    1187: 1186,
    1115: 1114,
    1185: 1184,
    2951: 2950,
    1231: _NUMERIC,
    1009: 25,
    1015: 1043,
    1014: 1042,
    1002: 18,
    1003: 19,
    1041: 869,
    651: 650,
    1040: 829,
    1561: 1560,
    1563: 1562,
    3905: 3904,
    3907: 3906,
    3909: 3908,
    3911: 3910,
    3913: 3912,
    3927: 3926,
}
_RANGES = {3904: 23, 3926: 20, 3906: _NUMERIC, 3908: 1114, 3910: 1184, 3912: 1082}
_MULTIRANGES = {4451: 3904, 4536: 3926, 4532: 3906, 4533: 3908, 4534: 3910, 4535: 3912}
_OWN_UP_TO = 10_000
"""PostgreSQL's own types have lower numbers; the others are in the catalog."""


class Converters:
    """By type, how its values become JSON. `infos` is what is known of types that aren't
    PostgreSQL's own; it grows."""

    def __init__(self, numeric: Numeric = "number") -> None:
        self._by_oid: dict[int, Convert] = {
            **_BY_OID,
            _NUMERIC: number if numeric == "number" else text,
        }
        self._infos: dict[int, TypeInfo] = {}

    def unknown(self, oid: int) -> bool:
        """Whether the type has to be learnt (`learn`) before a value of it can be read."""
        return oid >= _OWN_UP_TO and oid not in self._infos

    def learn(self, oid: int, info: TypeInfo) -> None:
        if oid >= _OWN_UP_TO:
            self._infos[oid] = info
            self._by_oid.pop(oid, None)

    def of(self, oid: int) -> Convert:
        """A text where nothing better is known."""
        found = self._by_oid.get(oid)
        if found is None:
            found = self._by_oid[oid] = self._made(oid)
        return found

    def _made(self, oid: int) -> Convert:
        if oid in _ARRAYS:
            return array_of(self.of(_ARRAYS[oid]))
        if oid in _RANGES:
            return range_of(self.of(_RANGES[oid]))
        if oid in _MULTIRANGES:
            return multirange_of(self.of(_MULTIRANGES[oid]))
        info = self._infos.get(oid)
        if info is None or not info.of:
            return text
        if info.is_array:
            return array_of(self.of(info.of), info.separator.encode())
        if info.kind == "d":
            return self.of(info.of)
        if info.kind == "r":
            return range_of(self.of(info.of))
        return multirange_of(self.of(info.of)) if info.kind == "m" else text


def column(convert: Convert, values: Sequence[bytes | None]) -> Sequence[bytes]:
    """All of a column's."""
    if None in values:
        return [_NULL if value is None else convert(value) for value in values]
    whole = cast("Sequence[bytes]", values)
    return whole if convert is integer else list(map(convert, whole))


# --- what holds other values ----------------------------------------------------------------------

_BOUNDS = re.compile(rb"^\[[-+0-9:\[\]]+\]=")
"""Of an array that doesn't begin at 1."""


def array_of(convert: Convert, separator: bytes = b",") -> Convert:
    def converted(value: bytes) -> bytes:
        body = value[found.end() :] if (found := _BOUNDS.match(value)) else value
        parts: list[bytes] = []
        for token, is_quoted in _array_tokens(body, separator):
            if token in (b"{", b"}") and not is_quoted:
                parts.append(b"[" if token == b"{" else b"]")
            elif token == separator and not is_quoted:
                parts.append(b",")
            elif not is_quoted and token == b"NULL":
                parts.append(_NULL)
            else:
                parts.append(convert(token))
        return b"".join(parts)

    return converted


def _array_tokens(body: bytes, separator: bytes) -> Iterator[tuple[bytes, bool]]:
    """Braces, separators and elements; an element in quotes says so."""
    at, size, mark = 0, len(body), separator[0]
    depth = 0
    while at < size:
        char = body[at]
        if char == _QUOTE:
            element, at = _quoted(body, at)
            yield element, True
        elif char in b"{}" or char == mark:
            depth += (char == _OPEN) - (char == _CLOSE)
            yield body[at : at + 1], False
            at += 1
        else:
            end = at
            while end < size and body[end] not in b"{}" and body[end] != mark:
                end += 1
            yield body[at:end], False
            at = end
    if depth or not body.startswith(b"{"):
        raise ValueError("an array doesn't end where it should")


_QUOTE, _ESCAPE = b'"\\'
_OPEN, _CLOSE = b"{}"


def _quoted(body: bytes, at: int) -> tuple[bytes, int]:
    """What is in quotes from `at` on, and where it ends; a quote within is escaped, or doubled."""
    found = bytearray()
    at += 1
    while True:
        if at >= len(body):
            raise ValueError("a quoted value has no end")
        char = body[at]
        if char == _ESCAPE:
            found += body[at + 1 : at + 2]
            at += 2
        elif char == _QUOTE:
            if body[at + 1 : at + 2] != b'"':
                return bytes(found), at + 1
            found += b'"'
            at += 2
        else:
            found.append(char)
            at += 1


def range_of(convert: Convert) -> Convert:
    """`{"lower": 1, "upper": 5, "bounds": "[)"}`; null where it has no end, `{"empty": true}`."""

    def converted(value: bytes) -> bytes:
        if value == b"empty":
            return b'{"empty":true}'
        begin, end = value[:1], value[-1:]
        if begin not in (b"[", b"(") or end not in (b"]", b")"):
            raise ValueError("a range has no ends")
        lower, at = _bound(value, 1)
        if value[at : at + 1] != b",":
            raise ValueError("a range has one end only")
        upper, at = _bound(value, at + 1)
        if at != len(value) - 1:
            raise ValueError("a range goes on behind its end")
        return b'{"lower":%b,"upper":%b,"bounds":"%b%b"}' % (
            _NULL if lower is None else convert(lower),
            _NULL if upper is None else convert(upper),
            begin,
            end,
        )

    return converted


def _bound(value: bytes, at: int) -> tuple[bytes | None, int]:
    """One end of a range: None where it goes on for ever."""
    found, begin = bytearray(), at
    while at < len(value) and value[at] not in b",])":
        if value[at] == _QUOTE:
            part, at = _quoted(value, at)
            found += part
        elif value[at] == _ESCAPE:
            found += value[at + 1 : at + 2]
            at += 2
        else:
            found.append(value[at])
            at += 1
    return (None if at == begin else bytes(found)), at


def multirange_of(convert: Convert) -> Convert:
    def converted(value: bytes) -> bytes:
        if value[:1] != b"{" or value[-1:] != b"}":
            raise ValueError("a multirange has no ends")
        parts, at, end = [], 1, len(value) - 1
        while at < end:
            begin = at
            _, at = _bound(value, at + 1)
            _, at = _bound(value, at + 1)
            at += 1
            parts.append(convert(value[begin:at]))
            at += 1  # the comma between
        return b"[" + b",".join(parts) + b"]"

    return converted
