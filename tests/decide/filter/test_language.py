"""What matches and what doesn't, case by case: the promises of docs/filters.md."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.decide.filter.plan import compile_filter

FLIGHT: dict[str, Any] = {
    "icao": "4b1806",
    "altitude": 35_000,
    "speed": 441.5,
    "squawk": "7700",
    "on_ground": False,
    "military": True,
    "callsign": None,
    "name": "Zürich 𝄞",
    "seen": "2024-03-01T12:00:00Z",
    "tags": ["heavy", "cargo", 7],
    "legs": [{"from": "ZRH", "to": "JFK"}, {"from": "JFK", "to": "SFO"}],
    "position": {"lat": 47.4, "lon": 8.5, "weird name": 1},
    "content-type": "adsb",
    "big": 2**53 + 1,
    "huge": 2**64 - 1,
    "zero": 0,
}

MATCH = {
    "equality": 'squawk == "7700"',
    "literal on the left": '"7700" == squawk',
    "literal before an order": "35000 <= altitude && 34999 < altitude && 35000 >= altitude",
    "int equals double": "altitude == 35000.0",
    "double equals int": "double(altitude) == 35000",
    "uint equals int": "altitude == 35000u",
    "hexadecimal": "zero + 0x1F == 31",
    "64-bit integers are exact": "big == 9007199254740993",
    "an integer isn't rounded to a double": "big != 9007199254740992.0",
    "an integer above a double": "big > 9007199254740992.0",
    "unsigned 64 bit": "huge == 18446744073709551615u",
    "smallest 64-bit integer": "altitude > -9223372036854775808",
    "null": "callsign == null",
    "null isn't false": "callsign != false",
    "bool": "on_ground == false && military == true",
    "bare bool": "military",
    "bare bool negated": "!on_ground",
    "bool isn't a number": "military != 1",
    "zero isn't false": "zero != false",
    "bools are ordered": "on_ground < military",
    "strings order by code point": 'name > "Za" && squawk < "7701"',
    "nested": "position.lat >= 47.4",
    "index by name": 'position["weird name"] == 1',
    "backticks": '`content-type` == "adsb" && position.`weird name` == 1',
    "list element": 'tags[0] == "heavy" && legs[1].to == "SFO"',
    "computed index": 'tags[zero + 1] == "cargo"',
    "in a list literal": "altitude in [1, 35000.0]",
    "in a field": '"cargo" in tags && 7 in tags',
    "key in an object": '"lat" in position',
    "not in": '!("light" in tags)',
    "contains in text": 'icao.contains("b18")',
    "contains in a list": 'tags.contains("heavy") && tags.contains(7.0)',
    "starts and ends": 'icao.startsWith("4b") && icao.endsWith("06")',
    "matches anywhere": r'icao.matches("b[0-9]+")',
    "matches anchored": r'icao.matches(r"^[0-9a-f]{6}$")',
    "unicode": 'name == "Z\\u00fcrich \\U0001D11E" && name.contains("ü")',
    "size counts characters": "size(name) == 8 && name.size() == 8",
    "size of list and object": "size(tags) == 3 && size(position) == 3",
    "arithmetic": "altitude / 1000 * 2 + 1 == 71 && altitude % 1000 == 0",
    "division cuts towards zero": "-7 / 2 == -3 && -7 % 2 == -1 && 7 / -2 == -3",
    "double division": "altitude / 2.0 == 17500.0",
    "precedence": "1 + 2 * 3 == 7 && (1 + 2) * 3 == 9",
    "&& binds tighter than ||": "true || true && false",
    "minus": "-altitude == -35000 && - -zero == 0",
    "concatenation": 'icao + "-" + squawk == "4b1806-7700"',
    "lists add up": "tags + [8] != tags && size(tags + [8]) == 4",
    "ternary": "on_ground ? altitude == 0 : altitude > 100",
    "ternary groups to the right": "false ? false : false ? false : true",
    "has": "has(altitude) && has(position.lat) && has(legs[0].from)",
    "null is there": "has(callsign)",
    "deep equality": 'tags == ["heavy", "cargo", 7.0] && legs[0] == legs[0]',
    "timestamps are instants": 'seen == timestamp("2024-03-01T13:00:00+01:00")',
    "timestamps on both sides": 'timestamp(seen) < timestamp("2024-03-01T12:00:00.001Z")',
    "as strings they differ": 'seen != "2024-03-01T13:00:00+01:00"',
    "instant in a list": 'timestamp("2024-03-01T12:00:00Z") in [seen]',
    "seconds of an instant": "int(timestamp(seen)) == 1709294400",
    "leap second": 'timestamp("2016-12-31T23:59:60Z") == timestamp("2017-01-01T00:00:00Z")',
    "conversions": 'int("42") == 42 && int(2.9) == 2 && double("0.5") == 0.5 && string(5.0) == "5"',
    "missing differs": "nothing != 5",
    "missing differs from null": "nothing != null",
    "other type differs": 'altitude != "35000"',
    "negated comparison of the missing": "!(nothing > 5) && !(nothing <= 5)",
    "negated test of the missing": '!nothing.startsWith("x")',
    "bare missing is not true": "!nothing",
    "ordering of different types is false": '!(altitude < "x") && !(altitude >= "x")',
    "&& absorbs a failure": "!(false && 1 / zero == 1) && !(1 / zero == 1 && false)",
    "|| absorbs a failure": "1 / zero == 1 || true",
    "guard": "has(nothing) && nothing + 1 > 0 || military",
    "escapes": r""" "\x41\101\u0041\n\t\\\"\'\?\`" == 'AAA\n\t\\"\'?`' """,
    "raw string": r""" r"\d" == "\\d" && R'a\' == "a\\" """,
    "triple quotes": '"""a\n"b" """ == "a\\n\\"b\\" "',
    "comment": "military // and that's all",
    "reserved words of CEL are fields": "package != 1",
    "comma behind the last": "altitude in [1, 35000,]",
    "condition as a value": "(altitude > 1) == true && [altitude > 1][0]",
}

NO_MATCH = {
    "equality": 'squawk == "7600"',
    "number isn't its text": 'altitude == "35000"',
    "literal before an order": "35000 < altitude || 35000 > altitude || 35001 <= altitude",
    "case matters": 'icao == "4B1806"',
    "bool isn't 1": "military == 1",
    "1 isn't true": "zero + 1 == true",
    "nested bool isn't 1": "[military] == [1]",
    "bool in numbers": "military in [1, 2]",
    "rounded integer": "big == 9007199254740992.0",
    "next integer": "big == 9007199254740992",
    "missing equals nothing": "nothing == null || nothing == 0 || nothing == nothing",
    "missing is not less": "nothing < 5 || nothing >= 5",
    "missing in a list": "nothing in [1, null] || 1 in nothing",
    "missing in itself": "[nothing] == [nothing]",
    "missing has nothing": "has(nothing) || has(nothing.more) || has(tags[3]) || has(tags[-1])",
    "field of a scalar": "altitude.feet == 5 || has(altitude.feet)",
    "null isn't ordered": "callsign < 1 || callsign >= null",
    "lists aren't ordered": "tags <= tags",
    "different types": 'altitude < "x" || altitude >= "x" || squawk > 1',
    "bare number isn't true": "altitude || squawk || callsign || tags",
    "text in text": 'squawk in squawk || "7" in squawk',
    "contains of a number": "altitude.contains(3) || squawk.contains(7)",
    "matches needs text": 'altitude.matches("3")',
    "anchored": 'icao.matches("^b")',
    "string as time of another moment": 'seen < timestamp("2024-03-01T12:00:00Z")',
    "text isn't a time": 'icao < timestamp("2024-03-01T12:00:00Z")',
    "time isn't a number": 'altitude < timestamp("2024-03-01T12:00:00Z")',
    "not": "!military",
    "guarded": "has(nothing) && nothing + 1 > 0",
}

FAILS = {
    "arithmetic on the missing": "nothing + 1 > 0",
    "also negated": "!(nothing + 1 > 0)",
    "also with !=": "nothing + 1 != 0",
    "division by zero": "1 / zero == 1",
    "remainder by zero": "1 % zero == 1",
    "double division by zero": "1.0 / zero == 1.0",
    "remainder of doubles": "speed % 2 == 1",
    "overflow": "huge + 1 > 0",
    "overflow below": "-9223372036854775808 - zero - 1 < 0",
    "overflow of doubles": "speed * 1e308 > 1",
    "text times number": "squawk * 2 == 1",
    "adding null": "callsign + 1 == 1",
    "adding bool": "military + 1 == 2",
    "size of a number": "size(altitude) == 1",
    "size of the missing": "size(nothing) == 0",
    "not a time": "timestamp(icao) > timestamp(seen)",
    "not an integer": "int(icao) == 1",
    "not a double": 'double("inf") > 1 || double(name) > 1',
    "undecided &&": "true && 1 / zero == 1",
    "undecided ||": "1 / zero == 1 || false",
    "undecided condition": "1 / zero == 1 ? true : true",
    "in a list": "1 in [1, 1 / zero]",
    "index": 'has(tags[1 / zero])',
}  # fmt: skip


@pytest.mark.parametrize("where", MATCH.values(), ids=MATCH.keys())
def test_matches(where: str) -> None:
    assert compile_filter(where).evaluate(FLIGHT) is True


@pytest.mark.parametrize("where", NO_MATCH.values(), ids=NO_MATCH.keys())
def test_does_not_match(where: str) -> None:
    assert compile_filter(where).evaluate(FLIGHT) is False


@pytest.mark.parametrize("where", FAILS.values(), ids=FAILS.keys())
def test_fails_on_the_document_which_is_no_match(where: str) -> None:
    filter_ = compile_filter(where)
    assert filter_.evaluate(FLIGHT) is None
    assert filter_.matches(FLIGHT) is False


@pytest.mark.parametrize("document", [None, 5, "text", [1], True, {}], ids=repr)
def test_no_filter_matches_every_document(document: object) -> None:
    assert compile_filter(None).evaluate(document) is True


@pytest.mark.parametrize("document", [None, 5, "text", [{"a": 1}], True], ids=repr)
@pytest.mark.parametrize("where", ["true", "a != 5", "1 / 0 == 1"])
def test_a_document_that_is_no_object_matches_no_expression(where: str, document: object) -> None:
    assert compile_filter(where).evaluate(document) is False


def test_documents_that_nest_deeper_than_python_recurses_fail_and_break_nothing() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert compile_filter("a == b").evaluate({"a": deep, "b": [deep]}) is None
    assert compile_filter("a == a").evaluate({"a": deep}) is None
    assert compile_filter("a == 1").evaluate({"a": deep}) is False
    while deep:  # taken apart by hand: freeing it at once would recurse, too
        deep = deep.pop()


def test_concatenation_can_not_multiply_a_large_document() -> None:
    large = {"a": "x" * 40_000}
    assert compile_filter('a + "y" != "z"').evaluate(large) is True
    assert compile_filter('a + a != "z"').evaluate(large) is None


def test_a_long_chain_of_conditions_is_not_deep() -> None:
    where = " || ".join(f"a == {number}" for number in range(300))
    assert compile_filter(where).matches({"a": 299})
    assert not compile_filter(where).matches({"a": 300})
