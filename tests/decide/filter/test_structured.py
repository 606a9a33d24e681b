"""Filters as data: what they mean, and how they are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.filter.parser import parse
from headgate.decide.filter.plan import compile_filter, filter_of
from headgate.decide.filter.structured import structured, where_of
from headgate.errors import InvalidFilter
from tests.decide.filter.test_language import FLIGHT


def one(field: str, op: str, value: Any = ...) -> list[dict[str, Any]]:
    return [{"field": field, "op": op} | ({} if value is ... else {"value": value})]


MATCH = {
    "text": one("squawk", "==", "7700"),
    "number": one("altitude", "==", 35000.0),
    "64 bits": one("huge", "==", 2**64 - 1),
    "null": one("callsign", "==", None),
    "bool": one("on_ground", "==", False),
    "list": one("tags", "==", ["heavy", "cargo", 7]),
    "differs": one("altitude", "!=", "35000"),
    "missing differs": one("nothing", "!=", 5),
    "above": one("altitude", ">", 34_999.5),
    "at least": one("altitude", ">=", 35_000),
    "below": one("position.lat", "<", 47.5),
    "at most": one("squawk", "<=", "7700"),
    "in": one("squawk", "in", ["7500", "7700", None]),
    "element": one("tags", "contains", "cargo"),
    "part of a text": one("icao", "contains", "b18"),
    "prefix": one("icao", "prefix", "4b"),
    "exists": one("position.lat", "exists"),
    "exists, said so": one("callsign", "exists", True),
    "exists not": one("position.alt", "exists", False),
    "element number": one("legs.1.to", "==", "SFO"),
    "name with a dash": one("content-type", "==", "adsb"),
    "name with a blank": one("position.weird name", "==", 1),
    "name in backticks": one("position.`weird name`", "==", 1),
    "unicode": one("name", "==", "Zürich 𝄞"),
    "instant": one("seen", "==", {"timestamp": "2024-03-01T13:00:00+01:00"}),
    "several": one("altitude", ">", 1) + one("icao", "prefix", "4") + one("tags", "contains", 7),
}
NO_MATCH = {
    "text isn't a number": one("altitude", "==", "35000"),
    "bool isn't 1": one("military", "==", 1),
    "missing": one("nothing", "<", 5),
    "not in": one("squawk", "in", ["7500"]),
    "in nothing": one("squawk", "in", []),
    "all must hold": one("altitude", ">", 1) + one("icao", "prefix", "5"),
    "a value that looks like syntax": one("icao", "==", 'x" || true || "'),
    "a name that looks like syntax": one("icao == icao || x", "==", "4b1806"),
    "later instant": one("seen", ">", {"timestamp": "2024-03-01T13:00:00+01:00"}),
}


@pytest.mark.parametrize("conditions", MATCH.values(), ids=MATCH.keys())
def test_matches(conditions: object) -> None:
    assert filter_of(structured(conditions)).evaluate(FLIGHT) is True
    assert compile_filter(where_of(conditions)).evaluate(FLIGHT) is True


@pytest.mark.parametrize("conditions", NO_MATCH.values(), ids=NO_MATCH.keys())
def test_does_not_match(conditions: object) -> None:
    assert filter_of(structured(conditions)).evaluate(FLIGHT) is False
    assert compile_filter(where_of(conditions)).evaluate(FLIGHT) is False


REFUSED = {
    "no list": ("altitude > 5", "must be a list of conditions"),
    "nothing": ([], "must be a list of conditions"),
    "no object": ([5], "in condition 1: found 5, expected an object"),
    "unknown key": ([one("a", "==", 1)[0] | {"valeu": 1}], "condition 1, valeu: valeu is unknown"),
    "no field": ([{"op": "==", "value": 1}], "condition 1, field: found None"),
    "empty field": (one("", "==", 1), "condition 1, field: found ''"),
    "two dots": (one("a..b", "==", 1), "names with a dot between them"),
    "dot at the end": (one("a.", "==", 1), "names with a dot between them"),
    "open backtick": (one("a.`b", "==", 1), "names with a dot between them"),
    "deep": (one(".".join("a" * 40), "==", 1), "it has 40 steps"),
    "unknown op": (one("a", "=", 1), "condition 1, op: found '=', expected one of ==, !="),
    "odd op": ([{"field": "a", "op": ["=="], "value": 1}], "condition 1, op: found ['==']"),
    "no value": (one("a", "=="), "condition 1, value: it is missing, and == needs one"),
    "object": (one("a", "==", {"b": 1}), "condition 1, value: found {'b': 1}"),
    "list of lists": (one("a", "in", [[1]]), "condition 1, value: found [1]"),
    "65 bits": (one("a", "==", 2**64), "a 64-bit number"),
    "infinite": (one("a", "==", float("inf")), "found inf"),
    "in no list": (one("a", "in", "x"), "expected a list behind in"),
    "prefix of 5": (one("a", "prefix", 5), "expected a text behind prefix"),
    "exists maybe": (one("a", "exists", 1), "expected true or false for exists"),
    "no time": (one("a", ">", {"timestamp": "soon"}), "expected a time in RFC 3339"),
    "the second": (one("a", "==", 1) + one("b", "~", 1), "condition 2, op"),
    "long list": (one("a", "in", [1] * 1_001), "the list has 1001 elements"),
    "many": (one("a", "==", 1) * 65, "has 65 conditions"),
    "long": (one("a", "==", "x" * 5_000), "characters as an expression"),
    "half a character": (one("a", "==", "\ud800"), "found '\\ud800'"),
}


@pytest.mark.parametrize(("conditions", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_is_refused_with_what_was_expected(conditions: object, message: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        where_of(conditions)
    assert message in caught.value.message
    assert caught.value.message.endswith(".")


names = st.text(st.characters(exclude_characters="`\n.", exclude_categories=["Cs"]), min_size=1)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


@st.composite
def generated(draw: st.DrawFn) -> dict[str, Any]:
    field = ".".join(draw(st.lists(names, min_size=1, max_size=3)))
    op = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "contains", "prefix"]))
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    by_op = {"in": st.lists(scalars, max_size=4), "prefix": text}
    return {"field": field, "op": op, "value": draw(by_op.get(op, scalars))}


@settings(max_examples=300, deadline=None)
@given(st.lists(generated(), min_size=1, max_size=4))
def test_whatever_is_in_it_the_text_parses_to_the_same_tree(
    conditions: list[dict[str, Any]],
) -> None:
    assert parse(where_of(conditions)) == structured(conditions)
