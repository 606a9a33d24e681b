"""BSON becomes JSON that gives back what was stored."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from headgate.adapters.mongo.bson_json import CODEC, to_json

BACK = json_util.JSONOptions(datetime_conversion=CODEC.datetime_conversion)

WRITTEN = [
    pytest.param(ObjectId("65a1" + "0" * 20), {"$oid": "65a1" + "0" * 20}, id="ObjectId"),
    pytest.param(5, 5, id="int32"),
    pytest.param(Int64(5), 5, id="int64"),
    pytest.param(2**53 + 1, 9007199254740993, id="beyond a double"),
    pytest.param(-(2**63), -9223372036854775808, id="the least int64"),
    pytest.param(5.0, 5.0, id="double"),
    pytest.param(math.nan, {"$numberDouble": "NaN"}, id="NaN"),
    pytest.param(math.inf, {"$numberDouble": "Infinity"}, id="Infinity"),
    pytest.param(-math.inf, {"$numberDouble": "-Infinity"}, id="-Infinity"),
    pytest.param(Decimal128("0.10"), {"$numberDecimal": "0.10"}, id="Decimal128"),
    pytest.param(
        datetime(2026, 1, 2, tzinfo=UTC), {"$date": "2026-01-02T00:00:00.000Z"}, id="date"
    ),
    pytest.param(DatetimeMS(1), {"$date": "1970-01-01T00:00:00.001Z"}, id="date with ms"),
    pytest.param(DatetimeMS(-1), {"$date": {"$numberLong": "-1"}}, id="date before 1970"),
    pytest.param(
        DatetimeMS(2**63 - 1), {"$date": {"$numberLong": str(2**63 - 1)}}, id="the last date"
    ),
    pytest.param(b"\0\1", {"$binary": {"base64": "AAE=", "subType": "00"}}, id="bytes"),
    pytest.param(Binary(b"x", 128), {"$binary": {"base64": "eA==", "subType": "80"}}, id="own"),
    pytest.param(
        Binary.from_uuid(UUID(int=1)), {"$uuid": "00000000-0000-0000-0000-000000000001"}, id="UUID"
    ),
    pytest.param(Code("f()"), {"$code": "f()"}, id="Code"),
    pytest.param(Code("f()", {"a": math.nan}), None, id="Code with scope"),
    pytest.param(
        Regex("^a", "mi"), {"$regularExpression": {"pattern": "^a", "options": "im"}}, id="Regex"
    ),
    pytest.param(Timestamp(7, 2), {"$timestamp": {"t": 7, "i": 2}}, id="Timestamp"),
    pytest.param(MinKey(), {"$minKey": 1}, id="MinKey"),
    pytest.param(MaxKey(), {"$maxKey": 1}, id="MaxKey"),
    pytest.param(DBRef("c", 1, "d"), {"$ref": "c", "$id": 1, "$db": "d"}, id="DBRef"),
    pytest.param(None, None, id="null"),
    pytest.param([None, math.nan], [None, {"$numberDouble": "NaN"}], id="NaN beside null"),
]


@pytest.mark.parametrize(("value", "written"), WRITTEN)
def test_each_type_is_written_as_documented_and_comes_back(value: object, written: object) -> None:
    stored = bson.decode(bson.encode({"v": value}), CODEC)
    text = to_json(stored)
    if not isinstance(value, Code) or value.scope is None:
        assert json.loads(text) == {"v": written}
    assert same(json_util.loads(text, json_options=BACK), stored)


def test_text_that_is_no_utf8_ends_nothing() -> None:
    text = b"\x09\x00\x00\x00\x02v\x00\x02\x00\x00\x00\xff\x00\x00"
    wrong = len(text).to_bytes(4, "little") + text[4:]
    assert to_json(bson.decode(wrong, CODEC)) == b'{"v":"\\\\xff"}'


@pytest.mark.parametrize(
    ("bits", "written"),
    [
        pytest.param(6176 << 113 | 10**34, "0", id="one digit more than there are"),
        pytest.param(1 << 127 | 1297 << 113 | (1 << 113) - 1, "-0E-4879", id="all of them"),
    ],
)
def test_a_decimal_of_too_many_digits_is_the_zero_that_mongodb_takes_it_for(
    bits: int, written: str
) -> None:
    """MongoDB stores what a program sends it."""
    value = Decimal128.from_bid(bits.to_bytes(16, "little"))
    assert json.loads(to_json({"v": value})) == {"v": {"$numberDecimal": written}}


def test_dates_sort_as_texts() -> None:
    dates = [0, 1, 999, 1_000, 1_700_000_000_000, 1_700_000_000_001, 253_402_300_799_999]
    texts = [json.loads(to_json({"v": DatetimeMS(ms)}))["v"]["$date"] for ms in dates]
    assert texts == sorted(texts)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8).filter(
    lambda name: not name.startswith("$")
)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
PATTERNS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
PLAIN = (
    st.none()
    | st.booleans()
    | INT64
    | st.floats()
    | TEXTS
    | st.binary(min_size=12, max_size=12).map(ObjectId)
    | INT64.map(DatetimeMS)
    | st.binary(max_size=20).map(Binary)
    # Of other lengths PyMongo can't decode those that shall be UUIDs.
    | st.builds(Binary, st.binary(min_size=16, max_size=16), st.integers(3, 4))
    | st.builds(Binary, st.binary(max_size=20), st.integers(5, 8) | st.integers(128, 254))
    | st.uuids().map(Binary.from_uuid)
    | st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
    | st.decimals(places=3, allow_nan=False, min_value=-(10**9), max_value=10**9).map(Decimal128)
    | st.sampled_from(["NaN", "-Infinity", "1E+6144", "0E-6176"]).map(Decimal128)
    | st.builds(Regex, PATTERNS, st.sampled_from(["", "i", "imsx", "u"]))
    | st.sampled_from([MinKey(), MaxKey()])
    | TEXTS.map(Code)
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    documents = st.dictionaries(NAMES, inner, max_size=4)
    return (
        st.lists(inner, max_size=4)
        | documents
        | st.builds(Code, TEXTS, documents)
        | st.builds(DBRef, TEXTS, inner, st.none() | NAMES.filter(bool))
    )


@given(st.dictionaries(NAMES, st.recursive(PLAIN, nested, max_leaves=12), max_size=6))
def test_every_document_comes_back(document: dict[str, Any]) -> None:
    stored = bson.decode(bson.encode(document), CODEC)
    text = to_json(stored)
    assert same(json_util.loads(text, json_options=BACK), stored)


def same(one: object, other: object) -> bool:
    """Equal, type by type; NaN is one value, and an integer the same however wide it was."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)
    if isinstance(one, Code) and isinstance(other, Code):
        return str(one) == str(other) and same(one.scope, other.scope)
    if isinstance(one, DBRef) and isinstance(other, DBRef):
        return same(dict(one.as_doc()), dict(other.as_doc()))
    if isinstance(one, bytes) and isinstance(other, bytes):
        subtypes = getattr(one, "subtype", 0), getattr(other, "subtype", 0)
        return bytes(one) == bytes(other) and subtypes[0] == subtypes[1]
    if isinstance(one, int) and isinstance(other, int):
        return one == other and isinstance(one, bool) == isinstance(other, bool)
    return type(one) is type(other) and one == other
