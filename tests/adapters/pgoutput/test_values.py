"""Each of PostgreSQL's types as JSON, as docs/postgresql.md says."""

from __future__ import annotations

import json
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.adapters.pgoutput.values import Converters, TypeInfo, array_of, text

LONG = "9" * 400
CASES = [
    ("boolean", 16, "t", "true"),
    ("boolean", 16, "f", "false"),
    ("smallint", 21, "-5", "-5"),
    ("integer", 23, "5", "5"),
    ("bigint", 20, "9223372036854775807", "9223372036854775807"),
    ("real", 700, "1.5", "1.5"),
    ("double precision", 701, "1e+300", "1e+300"),
    ("double precision", 701, "NaN", '"NaN"'),
    ("double precision", 701, "-Infinity", '"-Infinity"'),
    ("numeric", 1700, "12.3400", "12.3400"),
    ("numeric", 1700, "0.1234567890123456789012345", "0.1234567890123456789012345"),
    ("numeric", 1700, "NaN", '"NaN"'),
    ("numeric", 1700, LONG, f'"{LONG}"'),
    ("text", 25, 'a "b"\n\u00fc', '"a \\"b\\"\\n\u00fc"'),
    ("varchar", 1043, "", '""'),
    ("bytea", 17, "\\x00ff10", '"AP8Q"'),
    ("bytea", 17, "\\x", '""'),
    ("date", 1082, "2026-01-02", '"2026-01-02"'),
    ("date", 1082, "infinity", '"infinity"'),
    ("date", 1082, "0044-03-15 BC", '"0044-03-15 BC"'),
    ("time", 1083, "03:04:05.678901", '"03:04:05.678901"'),
    ("timetz", 1266, "03:04:05+02", '"03:04:05+02"'),
    ("timestamp", 1114, "2026-01-02 03:04:05.678901", '"2026-01-02T03:04:05.678901"'),
    ("timestamptz", 1184, "2026-01-02 03:04:05+00", '"2026-01-02T03:04:05Z"'),
    ("timestamptz", 1184, "0044-03-15 00:00:00+00 BC", '"0044-03-15T00:00:00Z BC"'),
    ("timestamptz", 1184, "-infinity", '"-infinity"'),
    ("interval", 1186, "P1Y2M3DT4H5M6.7S", '"P1Y2M3DT4H5M6.7S"'),
    ("uuid", 2950, "00000000-0000-0000-0000-000000000001", None),
    ("jsonb", 3802, '{"a": [1, 2.50], "b": null}', '{"a": [1, 2.50], "b": null}'),
    ("jsonb", 3802, f'{{"a": {LONG}.5}}', f'"{{\\"a\\": {LONG}.5}}"'),
    ("jsonb of 500 levels", 3802, "[" * 500 + "]" * 500, "[" * 500 + "]" * 500),
    ("jsonb of 501 levels", 3802, "[" * 501 + "]" * 501, '"' + "[" * 501 + "]" * 501 + '"'),
    ("json", 114, '{ "a" : 1,\n "a":2 }', '{"a":1,"a":2}'),
    ("json", 114, "1e400", '"1e400"'),
    ("inet", 869, "10.0.0.0/8", '"10.0.0.0/8"'),
    ("an unknown type", 600, "(1,2)", '"(1,2)"'),
    ("integer[]", 1007, "{1,NULL,-3}", "[1,null,-3]"),
    ("integer[]", 1007, "{}", "[]"),
    ("integer[][]", 1007, "{{1,2},{3,4}}", "[[1,2],[3,4]]"),
    ("integer[] from 0", 1007, "[0:1]={1,2}", "[1,2]"),
    ("text[]", 1009, '{a,"b,c","d\\"e","NULL",NULL,"","{}"}', None),
    ("timestamptz[]", 1185, '{"2026-01-02 03:04:05+00"}', '["2026-01-02T03:04:05Z"]'),
    ("jsonb[]", 3807, '{"{\\"a\\": 1}"}', '[{"a": 1}]'),
    ("int4range", 3904, "[1,5)", '{"lower":1,"upper":5,"bounds":"[)"}'),
    ("int4range", 3904, "(,5)", '{"lower":null,"upper":5,"bounds":"()"}'),
    ("int4range", 3904, "empty", '{"empty":true}'),
    (
        *("tstzrange", 3910, '["2026-01-02 00:00:00+00",)'),
        '{"lower":"2026-01-02T00:00:00Z","upper":null,"bounds":"[)"}',
    ),
    ("int4range[]", 3905, '{"[1,5)"}', '[{"lower":1,"upper":5,"bounds":"[)"}]'),
    ("int4multirange", 4451, "{}", "[]"),
    (
        *("int4multirange", 4451, "{[1,3),[7,)}"),
        '[{"lower":1,"upper":3,"bounds":"[)"},{"lower":7,"upper":null,"bounds":"[)"}]',
    ),
]


@pytest.mark.parametrize(
    ("oid", "written", "wanted"), [pytest.param(*c[1:], id=f"{c[0]} {c[2][:30]}") for c in CASES]
)
def test_a_value_as_json(oid: int, written: str, wanted: str | None) -> None:
    found = Converters().of(oid)(written.encode()).decode()
    msgspec.json.decode(found)
    if wanted is not None:
        assert found == wanted


def test_texts_in_an_array_are_told_from_null_and_from_what_holds_them() -> None:
    found = Converters().of(1009)(rb'{a,"b,c","d\"e","NULL",NULL,"","{}"}')
    assert json.loads(found) == ["a", "b,c", 'd"e', "NULL", None, "", "{}"]


def test_numeric_as_text_where_that_is_asked_for() -> None:
    assert Converters("text").of(1700)(b"1.50") == b'"1.50"'
    assert Converters("text").of(1231)(b"{1.50}") == b'["1.50"]'


@given(st.decimals(allow_nan=False, allow_infinity=False, places=20))
def test_no_digit_of_a_number_is_lost(value: Decimal) -> None:
    written = f"{value:f}"
    found = Converters().of(1700)(written.encode())
    assert json.loads(found, parse_float=Decimal, parse_int=Decimal) == value


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
NESTED = st.recursive(
    st.lists(st.none() | TEXTS, max_size=4),
    lambda inner: st.lists(inner, min_size=1, max_size=3),
    max_leaves=6,
)


def as_postgres(value: object) -> str:
    """As array_out writes it, with everything in quotes that may be."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + ",".join(map(as_postgres, value)) + "}"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(NESTED)
def test_any_array_of_texts_is_read_as_it_was(value: list[object]) -> None:
    assert json.loads(array_of(text)(as_postgres(value).encode())) == value


def test_types_of_ones_own_go_by_what_the_catalog_says() -> None:
    converters = Converters()
    mood, moods, money, spans = 20_000, 20_001, 20_002, 20_003
    assert converters.unknown(mood)
    assert not converters.unknown(23)
    converters.learn(mood, TypeInfo("mood", "e"))
    converters.learn(moods, TypeInfo("_mood", "b", mood, is_array=True))
    converters.learn(money, TypeInfo("price", "d", 1700))
    converters.learn(spans, TypeInfo("spans", "r", money))
    assert converters.of(mood)(b"sad") == b'"sad"'
    assert converters.of(moods)(b"{sad,ok}") == b'["sad","ok"]'
    assert converters.of(money)(b"1.50") == b"1.50"
    assert converters.of(spans)(b"[1.50,2]") == b'{"lower":1.50,"upper":2,"bounds":"[]"}'


@pytest.mark.parametrize(
    ("oid", "wrong"),
    [
        (1007, b"{1,2"),
        (1007, b"1,2}"),
        (1009, b'{"a'),
        (3904, b"1,5"),
        (3904, b"[1]"),
        (4451, b"[1,2)"),
        (17, b"AP8Q"),
        (25, b"\xff"),
    ],
)
def test_what_is_not_of_its_type_is_refused(oid: int, wrong: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whoever reads it adds the sentence
        Converters().of(oid)(wrong)
