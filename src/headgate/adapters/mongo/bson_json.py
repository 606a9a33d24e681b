"""From BSON to JSON, without loss: MongoDB's relaxed extended JSON.

What JSON has is written as JSON, integers with all their digits; what it lacks as an object with
one field whose name begins with a dollar sign (docs/connectors.md has the table). So `json_util` of
PyMongo, and every driver of MongoDB, reads back what was stored, and filters compare numbers and
texts as they are.

Invariant: no value of BSON makes it raise. It is the costliest part of reading a change, so what is
common takes no step in Python: values of types that msgspec would write in its own way, and lose
something, are decoded to types that it doesn't know (`CODEC`).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec
from bson import DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.binary import UUID_SUBTYPE, Binary
from bson.code import Code
from bson.codec_options import (
    CodecOptions,
    DatetimeConversion,
    TypeDecoder,
    TypeRegistry,
)
from bson.datetime_ms import DatetimeMS

Document = dict[str, Any]

_EPOCH = date(1970, 1, 1)
_YEAR_10000_MS = 253_402_300_800_000
_DECIMAL_DIGITS = (1 << 113) - 1
_OPTIONS = (("i", 2), ("l", 4), ("m", 8), ("s", 16), ("u", 32), ("x", 64))
"""Options of a regular expression, in the order that extended JSON wants; the flags are re's."""


class _PlainBytes(TypeDecoder):
    """msgspec would write bytes as text that looks like any other."""

    bson_type = bytes

    def transform_bson(self, value: bytes) -> Binary:
        return Binary(value)


CODEC: CodecOptions[Document] = CodecOptions(
    # No date is out of the range of milliseconds, and none is mistaken for one without a zone.
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    type_registry=TypeRegistry([_PlainBytes()]),
    # MongoDB stores texts that aren't UTF-8 if a program sends them; they must not end the stream.
    unicode_decode_error_handler="backslashreplace",
)
"""How to decode what `to_json` gets."""


def to_json(value: object) -> bytes:
    """`value`, decoded with CODEC."""
    text = _encode(value)
    # msgspec writes null for what isn't finite: rare, and not worth a look at every number.
    if b"null" in text and _has_unusual_number(value):
        return _encode(_with_marked_numbers(value))
    return text


def _date(value: DatetimeMS) -> Document:
    ms = int(value)
    if not 0 <= ms < _YEAR_10000_MS:
        return {"$date": {"$numberLong": str(ms)}}
    minutes, ms = divmod(ms, 60_000)
    days, minutes = divmod(minutes, 1_440)
    # All with three digits of a second, so that they sort as texts.
    clock = f"{minutes // 60:02}:{minutes % 60:02}:{ms // 1_000:02}.{ms % 1_000:03}"
    return {"$date": f"{_day(days)}T{clock}Z"}


@lru_cache(maxsize=1_024)
def _day(days: int) -> str:
    """The date so many days after 1970-01-01; most are of few days."""
    return (_EPOCH + timedelta(days=days)).isoformat()


def _binary(value: Binary) -> Document:
    if value.subtype == UUID_SUBTYPE and len(value) == 16:
        return {"$uuid": str(UUID(bytes=bytes(value)))}
    encoded = base64.b64encode(value).decode()
    return {"$binary": {"base64": encoded, "subType": f"{value.subtype:02x}"}}


def _decimal(value: Decimal128) -> Document:
    bits = int.from_bytes(value.bid, "little")
    if bits >> 125 & 3 == 3 or bits & _DECIMAL_DIGITS < 10**34:
        return {"$numberDecimal": str(value)}
    # More digits than there are, which PyMongo can't write: to MongoDB that is a zero.
    zero = Decimal((bits >> 127, (0,), (bits >> 113 & 0x3FFF) - 6176))
    return {"$numberDecimal": str(zero)}


def _code(value: Code) -> Document:
    code: Document = {"$code": str(value)}
    return code if value.scope is None else {**code, "$scope": value.scope}


def _regex(value: Regex[Any]) -> Document:
    pattern = value.pattern if isinstance(value.pattern, str) else value.pattern.decode()
    options = "".join(letter for letter, flag in _OPTIONS if value.flags & flag)
    return {"$regularExpression": {"pattern": pattern, "options": options}}


_WRITTEN: dict[type, Callable[[Any], object]] = {
    ObjectId: lambda value: {"$oid": str(value)},
    Int64: int,
    DatetimeMS: _date,
    Binary: _binary,
    Decimal128: _decimal,
    Timestamp: lambda value: {"$timestamp": {"t": value.time, "i": value.inc}},
    Code: _code,
    Regex: _regex,
    DBRef: lambda value: dict(value.as_doc()),
    MinKey: lambda _: {"$minKey": 1},
    MaxKey: lambda _: {"$maxKey": 1},
}


def _written(value: object) -> object:
    return _WRITTEN[type(value)](value)


_encode = msgspec.json.Encoder(enc_hook=_written).encode


def _parts(value: object) -> list[object]:
    """The parts of `value` that may be numbers."""
    if type(value) is dict:
        return list(value.values())
    if type(value) is list:
        return value
    if type(value) is Code:
        return [value.scope]
    return [dict(value.as_doc())] if type(value) is DBRef else []


def _has_unusual_number(value: object) -> bool:
    if type(value) is float:
        return not math.isfinite(value)
    return any(_has_unusual_number(one) for one in _parts(value))


def _with_marked_numbers(value: object) -> object:
    if type(value) is float and not math.isfinite(value):
        text = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return {"$numberDouble": text}
    if type(value) is list:
        return [_with_marked_numbers(one) for one in value]
    if type(value) in (Code, DBRef):
        value = _written(value)
    if type(value) is dict:
        return {name: _with_marked_numbers(one) for name, one in value.items()}
    return value
