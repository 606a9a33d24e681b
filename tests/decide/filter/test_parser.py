"""Text to tree: what groups how, what is refused, and how exactly it is said."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.decide.filter.parser import parse
from headgate.decide.filter.plan import compile_filter
from headgate.decide.filter.syntax import (
    MAX_DEPTH,
    MAX_LIST_ITEMS,
    MAX_TEXT_CHARS,
    And,
    Compare,
    Field,
    Literal,
)
from headgate.decide.filter.unparse import unparse
from headgate.errors import InvalidFilter

GROUPING = {
    "|| is loosest": ("a || b && c", "a || (b && c)"),
    "! is tight": ("!a == b", "(!a) == b"),
    "- is tight": ("-a * b", "(-a) * b"),
    "members are tightest": ("-a.b[0]", "-(a.b[0])"),
    "* before +": ("a + b * c - d", "(a + (b * c)) - d"),
    "left to right": ("a - b - c", "(a - b) - c"),
    "comparison below arithmetic": ("a + 1 < b * 2 && c", "((a + 1) < (b * 2)) && c"),
    "?: is loosest": ("a || b ? c : d", "(a || b) ? c : d"),
    "?: groups to the right": ("a ? b : c ? d : e", "a ? b : (c ? d : e)"),
    "minus of a number is a number": ("a - -5", "a - (-5)"),
    "size both ways": ("a.size() == 1", "size(a) == 1"),
    "blanks": ("a==1&&b", " a \t==\n1 // one\n&& b "),
}


@pytest.mark.parametrize(("text", "explicit"), GROUPING.values(), ids=GROUPING.keys())
def test_groups_as_the_parentheses_say(text: str, explicit: str) -> None:
    assert parse(text) == parse(explicit)


DIFFERENT = {
    "kinds of numbers": ("a == 5", "a == 5.0"),
    "unsigned": ("a == 5", "a == 5u"),
    "bool and number": ("a == true", "a == 1"),
    "negated number": ("a == -5", "a == -(5)"),
    "written grouping": ("a && b && c", "(a && b) && c"),
    "keyword as a field": ("true", "`true`"),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_different_texts_are_different_trees(one: str, other: str) -> None:
    assert parse(one) != parse(other)


def test_positions_take_no_part_in_equality() -> None:
    assert parse("a == 5").position != parse("  a == 5").position
    assert parse("a == 5") == Compare("==", Field("a"), Literal("int", 5))


def test_a_chain_is_one_node() -> None:
    assert parse("a && b && c") == And((Field("a"), Field("b"), Field("c")))


REFUSED = {
    # text, column (1-based), a part of the sentence
    "empty": ("", 1, "empty"),
    "blank": ("  // nothing", 1, "empty"),
    "single =": ("a = 5", 3, "use == to compare"),
    "single &": ("a & b", 3, "expected &&"),
    "single |": ("a | b", 3, "expected ||"),
    "and": ("a and b", 3, "write && for and"),
    "not": ("not a", 5, "write ! for not"),
    "no operand": ("a == ", 6, "found the end of the filter, expected a field"),
    "two operands": ("a == 1 b", 8, "found b, expected an operator or the end"),
    "chained": ("1 < a < 5", 7, "join the two with &&"),
    "open (": ("(a", 3, "expected an operator or the closing )"),
    "stray )": ("a)", 2, "found ), expected an operator or the end"),
    "open [": ("a in [1, 2", 11, "a comma or the closing ]"),
    "open index": ("a[0", 4, "the closing ]"),
    "empty index": ("a[]", 3, "found ], expected a field"),
    "no :": ("a ? b", 6, "the : of the ?"),
    "open string": ('a == "x', 6, 'no closing "'),
    "newline in a string": ('a == "x\ny"', 6, 'no closing "'),
    "open triple": ("a == '''x''", 6, "no closing '''"),
    "unknown escape": (r'a == "\q"', 7, r"found \q"),
    "escape at the end": ('a == "\\', 7, "expected an escape"),
    "short \\u": (r'a == "\u12"', 7, "4 hexadecimal digits"),
    "surrogate": (r'a == "\ud800"', 7, "not the code of a Unicode character"),
    "beyond Unicode": (r'a == "\U00110000"', 7, "not the code of a Unicode character"),
    "bad octal": (r'a == "\400"', 7, "000 to"),
    "bytes": ('a == b"x"', 6, "bytes literals"),
    "int too large": ("a == 9223372036854775808", 6, "not a 64-bit integer"),
    "int too small": ("a == -9223372036854775809", 6, "not a 64-bit integer"),
    "uint too large": ("a == 18446744073709551616u", 6, "not an unsigned 64-bit integer"),
    "negative uint": ("a == -5u", 6, "unsigned"),
    "double too large": ("a == 1e999", 6, "too large"),
    "letters behind a number": ("a == 5x", 7, "right behind the number 5"),
    "unfinished exponent": ("a == 1e", 7, "right behind the number 1"),
    "umlaut": ("größe == 1", 3, "backticks"),
    "open backtick": ("`a == 1", 1, "without a closing one"),
    "no-break space": ("a\u00a0== 1", 2, r"found '\xa0'"),
    "map literal": ('a == {"x": 1}', 6, "map literals"),
    "keyword as a field": ("a.in == 1", 3, "backticks"),
    "unknown function": ("foo(1)", 1, "unknown function foo, expected one of has, size"),
    "nearest function": ("sized(a) > 1", 1, "the nearest is size"),
    "nearest method": ('name.startswith("x")', 6, "the nearest is startsWith"),
    "macro": ("a.exists(x, x > 1)", 3, "unknown method exists"),
    "method as a function": ('contains(a, "b")', 1, "contains is written x.contains(…)"),
    "function as a method": ("a.timestamp()", 3, "timestamp is written timestamp(x)"),
    "too many arguments": ("size(a, b) > 1", 1, "size takes 1 argument, found 2"),
    "too few arguments": ("a.contains()", 3, "contains takes 1 argument, found 0"),
    "has of a literal": ("has(5)", 5, "has takes a field"),
    "number as a filter": ("5", 1, "found a number, expected a condition"),
    "sum as a filter": ("a + 1", 3, "found a number, expected a condition"),
    "text as a condition": ('a && "x"', 6, "found a string, expected a condition"),
    "number negated": ("!5", 2, "found a number, expected a condition"),
    "arm of ?:": ("a ? 5 : b", 5, "found a number, expected a condition"),
    "in a string": ('a in "abc"', 6, "found a string, expected a list"),
    "minus a string": ('-"x" == 1', 2, "found a string, expected a number"),
    "bool plus": ("true + 1 == 2", 1, "found a bool"),
    "string plus number": ('"a" + 1 == a', 5, "a string on its left and a number on its right"),
    "string times": ('a * "x" == 1', 5, "found a string, expected number beside *"),
    "field of a number": ("5.feet == 1", 1, "found a number"),
    "index by bool": ("a[true]", 3, "found a bool"),
    "size of a number": ("size(5) == 1", 6, "found a number, expected string or list for size"),
    "prefix of a number": ("5.startsWith(a)", 1, "expected string for startsWith"),
    "not a time": ('timestamp("today") < a', 11, "RFC 3339"),
    "no such day": ('timestamp("2023-02-29T00:00:00Z") < a', 11, "RFC 3339"),
    "time without zone": ('timestamp("2023-02-01T00:00:00") < a', 11, "RFC 3339"),
    "computed pattern": ("a.matches(b)", 11, "matches takes a string literal"),
    "bad pattern": ('a.matches("x(")', 11, "the pattern is refused: missing ): x("),
}


@pytest.mark.parametrize(("text", "column", "part"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_with_the_place_and_what_was_expected(text: str, column: int, part: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        compile_filter(text)
    message = str(caught.value)
    assert message.startswith(f"The filter is wrong at column {column}: ")
    assert part in message
    assert message.endswith(".")
    assert message.isprintable()
    assert caught.value.details["position"] == column - 1
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


LIMITS = {
    "length": ("a" * MAX_TEXT_CHARS, "a" * (MAX_TEXT_CHARS + 1)),
    "parentheses": ("(" * (MAX_DEPTH - 1) + "a" + ")" * (MAX_DEPTH - 1), "(" * 2_000 + "a"),
    "!": ("!" * (MAX_DEPTH - 1) + "a", "!" * 2_000 + "a"),
    "-": ("-" * (MAX_DEPTH - 3) + "a == 1", "-" * 2_000 + "a == 1"),
    "terms": ("+".join("a" * 31) + " == 1", "+".join("a" * 1_000) + " == 1"),
    "members": (".".join("a" * 32), ".".join("a" * 1_000)),
    "indexes": ("a" + "[0]" * 29, "a" + "[0]" * 1_000),
    "nested indexes": ("a[" * 15 + "0" + "]" * 15, "a[" * 1_000 + "0" + "]" * 1_000),
    "lists": ("a in " + "[" * 29 + "]" * 29, "a in " + "[" * 1_000),
    "list items": (f"a in [{'1,' * MAX_LIST_ITEMS}]", f"a in [{'1,' * (MAX_LIST_ITEMS + 1)}]"),
    "?:": ("a ? b : " * (MAX_DEPTH - 1) + "c", "a ? b : " * 400 + "c"),
    "calls": ("size(" * 29 + "a" + ")" * 29 + " == 1", "size(" * 700 + "a"),
}


@pytest.mark.parametrize(("within", "beyond"), LIMITS.values(), ids=LIMITS.keys())
def test_limits_hold(within: str, beyond: str) -> None:
    parse(within)
    with pytest.raises(InvalidFilter) as caught:
        parse(beyond)
    assert "limit" in caught.value.details


CHARACTERS = st.text(st.sampled_from("ab.[]()!=<>&|?:+-*/%,'\"`\\r019eux_ \n\x00é"), max_size=40)


@given(CHARACTERS)
@example("0x")
@example("a..b")
def test_any_text_parses_or_is_refused_within_itself(text: str) -> None:
    try:
        tree = parse(text)
    except InvalidFilter as refused:
        position = refused.details["position"]
    else:
        position = 0
        assert parse(unparse(tree)) == tree
    assert isinstance(position, int)
    assert 0 <= position <= len(text)


@given(st.text())
def test_any_string_survives_unparsing(text: str) -> None:
    literal = Compare("==", Field("a"), Literal("string", text))
    assert parse(unparse(literal)) == literal
