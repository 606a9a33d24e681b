"""Positions go to MongoDB and back, keys of different `_id`s differ, and ids are stable."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64, ObjectId, Timestamp
from bson.binary import Binary
from hypothesis import given
from hypothesis import strategies as st

from headgate.adapters.mongo.bson_json import CODEC
from headgate.adapters.mongo.identity import event_id_of, key_of, position_of, time_of, token_of
from headgate.errors import OriginRefused

DATA = "826AFDA6C3000000142B022C0100296E5A1004C92308D661914ABB908EB01094775F7746"
HEX = "65a10000000000000000000f"

KEYS: list[Any] = [
    pytest.param(ObjectId(HEX), HEX, id="ObjectId"),
    pytest.param(HEX, f'"{HEX}"', id="text like an ObjectId"),
    pytest.param(HEX.upper(), HEX.upper(), id="text in capitals"),
    pytest.param("4b1613", "4b1613", id="text"),
    pytest.param("5", '"5"', id="text of a number"),
    pytest.param("007", "007", id="text of digits that no number has"),
    pytest.param("5.", "5.", id="text of almost a number"),
    pytest.param("-1.5E+3", '"-1.5E+3"', id="text of a number with an exponent"),
    pytest.param(5, "5", id="int"),
    pytest.param(-5, "-5", id="negative int"),
    pytest.param(Int64(5), "5", id="int64, which MongoDB takes for the same"),
    pytest.param(5.0, "5", id="double, which MongoDB takes for the same"),
    pytest.param(-0.0, "0", id="double of nothing"),
    pytest.param(5.5, "5.5", id="double with a fraction"),
    pytest.param(2.0**63, "9.223372036854776e18", id="double beyond all integers"),
    pytest.param(float("nan"), '{"$numberDouble":"NaN"}', id="no number"),
    pytest.param(Decimal128("5"), '{"$numberDecimal":"5"}', id="decimal"),
    pytest.param('{"a":1}', '"{\\"a\\":1}"', id="text like a document"),
    pytest.param({"a": 1}, '{"a":1}', id="document"),
    pytest.param('"x"', '"\\"x\\""', id="text in quotes"),
    pytest.param("", '""', id="empty text"),
    pytest.param("null", '"null"', id="text null"),
    pytest.param(None, "null", id="null"),
    pytest.param(True, "true", id="true"),
    pytest.param(b"x", '{"$binary":{"base64":"eA==","subType":"00"}}', id="bytes"),
    pytest.param(
        datetime(2026, 1, 2, tzinfo=UTC), '{"$date":"2026-01-02T00:00:00.000Z"}', id="date"
    ),
]


@pytest.mark.parametrize(("identifier", "key"), KEYS)
def test_keys_are_as_documented(identifier: object, key: str) -> None:
    assert key_of(bson.decode(bson.encode({"_id": identifier}), CODEC)["_id"]) == key


IDENTIFIERS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=6)
    | st.integers(-9, 9).map(float)
    | st.integers(-9, 9).map(str)
    | st.floats().map(str)
    | st.sampled_from(
        [HEX, f'"{HEX}"', '""', "", "null", '{"$numberDouble":"NaN"}', ObjectId(HEX), "1e300"]
    )
    | st.binary(max_size=3).map(Binary),
    lambda inner: st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=3,
)


@given(IDENTIFIERS, IDENTIFIERS)
def test_different_ids_have_different_keys(one: object, other: object) -> None:
    numbers = type(one) in (int, float) and type(other) in (int, float)
    if key_of(one) == key_of(other):
        assert numbers or type(one) is type(other)
        assert one == other or (one is not None and repr(one) == repr(other))
    elif numbers:
        assert one != other, "MongoDB takes them for the same"


@given(IDENTIFIERS)
def test_the_key_of_one_type_is_that_of_no_text(one: object) -> None:
    key = key_of(one)
    if one != key:
        assert key_of(key) != key


@pytest.mark.parametrize("token", [{"_data": DATA}, {"_data": DATA, "_typeBits": b"\xfb@\xff"}])
def test_a_position_is_a_token_as_text(token: dict[str, Any]) -> None:
    position = position_of(token)
    assert position.startswith(DATA)
    assert token_of(position) == token
    assert time_of(position) == Timestamp(0x6AFDA6C3, 20)


@pytest.mark.parametrize(
    "text", ["", "x", DATA.lower(), DATA + "0", DATA + ".?", "82" * 5, "9" * 40]
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(OriginRefused, match="no position"):
        token_of(text)


def test_an_id_is_of_one_change_of_one_backend() -> None:
    ids = {
        event_id_of(backend, namespace, position)
        for backend in ("a", "b")
        for namespace in ("d.c", "d.d")
        for position in (DATA, DATA + "04", DATA + ".QA==")
    }
    assert len(ids) == 12
    assert event_id_of("a", "d.c", DATA) == "6afda6c300000014-" + event_id_of("a", "d.c", DATA)[17:]
