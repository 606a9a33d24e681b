"""A text that is recognised means what it would mean if it were parsed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.filter import syntax as s
from headgate.decide.filter import templates as module
from headgate.decide.filter.check import check
from headgate.decide.filter.parser import parse
from headgate.decide.filter.shape import constants_of, generalise
from headgate.decide.filter.syntax import Expression
from headgate.decide.filter.templates import Templates
from headgate.decide.filter.unparse import unparse
from headgate.errors import InvalidFilter
from tests.decide.filter.generated import conditions


def parsed(text: str) -> tuple[Expression, Any]:
    expression = parse(text)
    check(expression)
    shape, sources = generalise(expression)
    return shape, constants_of(sources)


def same(found: tuple[Expression, Any], expected: tuple[Expression, Any]) -> bool:
    return found == expected and repr(found[1]) == repr(expected[1])


def shapes() -> Templates[Expression]:
    return Templates(lambda shape: shape)


class Counting:
    def __init__(self) -> None:
        self.made = 0

    def __call__(self, shape: Expression) -> Expression:
        self.made += 1
        return shape


RECOGNISED = {
    "strings": ('a == "x"', "a == 'y\"z'"),
    "empty string": ('a == "x"', 'a == ""'),
    "what looks like syntax": ('a == "x"', 'a == "b == 5 // `é`"'),
    "integers": ("a > 5 && b < 7", "a > 0 && b < 999999999999999999"),
    "doubles": ("a > 5.5", "a > 0.25"),
    "negative": ("a > -5", "a > -70"),
    "negative with a blank": ("a > - 5", "a > - 70"),
    "lists": ('a in ["x", 5, true, -2.5]', 'a in ["y", 6, true, -0.5]'),
    "methods": ('a.startsWith("x") && b.contains(5)', 'a.startsWith("yy") && b.contains(6)'),
    "timestamps": (
        'a > timestamp("2024-01-01T00:00:00Z")',
        'a > timestamp("2025-01-01T00:00:00+01:00")',
    ),
    "fixed literals that agree": ("a[0] == 5 && b + 1 > 2", "a[0] == 6 && b + 1 > 2"),
    "frills are words": ("a == 5 && b == 0x1F && c == 1e3", "a == 6 && b == 0x1F && c == 1e3"),
}


@pytest.mark.parametrize(("first", "second"), RECOGNISED.values(), ids=RECOGNISED.keys())
def test_the_second_of_a_make_is_not_parsed(first: str, second: str) -> None:
    counting = Counting()
    templates = Templates(counting)
    assert same(templates.compiled(first), parsed(first))
    assert same(templates.compiled(second), parsed(second))
    assert same(templates.compiled(first), parsed(first))
    assert counting.made == 1


OTHERS = {
    "another kind": ["a == 5", 'a == "5"', "a == 5.0", "a == 5u", "a == 0x5", "a == 5e0"],
    "element numbers": ["a[0] == 1", "a[1] == 1", 'a["0"] == 1', 'a["1"] == 1'],
    "patterns": ['a.matches("x")', 'a.matches("y+")'],
    "arithmetic": ["a + 1 == 2", "a + 2 == 2", "1 + 2 == a"],
    "signs": ["a > 5", "a > -5", "a > - -5", "1 - 5 < a", "1 -5 < a", "a > -  5"],
    "raw strings": ['a == "n"', 'a == r"n"', r'a == "\n"', r'a == r"\n"', 'a == R"n"'],
    "triple quotes": ['a == ""', 'a == """x"""', "a == '''x'''", 'a == """x"y"""'],
    "comments": ['a == 5 // "x"', 'a == 6 // "y"', '// "x"\na == "x"', '// "y\na == "x"'],
    "backticks": ["`5` == 5", "`6` == 5", '`"x"` == "x"', '`a "b` == "x"', '`a" b` == "x"'],
    "large numbers": ["a == 1", "a == 9223372036854775807", "a == 18446744073709551615u"],
    "long numbers": ["a == 1.5", "a == 0.1234567890123456789", "a == 12345678901234567890.5"],
    "names with digits": ["a1 == 1", "a2 == 1", "a1 == 2"],
    "other blanks": ["a == 5", "a==5", "a ==\t5"],
}


@pytest.mark.parametrize("texts", OTHERS.values(), ids=OTHERS.keys())
def test_texts_that_look_alike_are_kept_apart(texts: list[str]) -> None:
    templates = shapes()
    for text in [*texts, *reversed(texts), *texts]:
        assert same(templates.compiled(text), parsed(text)), text


WRONG = {
    "behind a right one": ['a == "x"', 'a == "x" "y"', 'a == "x"y'],
    "too large": ["a == 5", "a == 9223372036854775808"],
    "not a time": ['a > timestamp("2024-01-01T00:00:00Z")', 'a > timestamp("soon")'],
    "a bad pattern": ['a.matches("x")', 'a.matches("(")'],
    "too long": ['a == "x"', f'a == "{"x" * 5_000}"'],
    "no closing quote": ['a == "x"', 'a == "x'],
    "no such token": ["a == 5", "a \0== 5", "a == 5\0"],
}


@pytest.mark.parametrize("texts", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_text_is_refused_as_the_parser_refuses_it(texts: list[str]) -> None:
    templates = shapes()
    right, *wrong = texts
    for _ in range(2):
        templates.compiled(right)
        for text in wrong:
            with pytest.raises(InvalidFilter) as expected:
                parsed(text)
            with pytest.raises(InvalidFilter) as caught:
                templates.compiled(text)
            assert caught.value.message == expected.value.message


VALUES: dict[str, list[Any]] = {
    "int": [0, 7, -3],
    "uint": [7],
    "double": [0.5, -1.5],
    "string": ["", "z", 'q"', "new\nline"],
    "null": [None],
    "bool": [True, False],
}


def with_other_values(node: Any, draw: Any) -> Any:
    if isinstance(node, s.Literal):
        return replace(node, value=draw(st.sampled_from([node.value, *VALUES[node.kind]])))
    if isinstance(node, tuple):
        return tuple(with_other_values(one, draw) for one in node)
    if isinstance(node, s.Node):
        names = [field.name for field in fields(node) if field.name != "position"]
        return replace(node, **{n: with_other_values(getattr(node, n), draw) for n in names})
    return node


@settings(max_examples=400, deadline=None)
@given(conditions(2), st.data())
def test_recognised_or_not_it_means_the_same(expression: Expression, data: st.DataObject) -> None:
    templates = shapes()
    trees = [expression, *(with_other_values(expression, data.draw) for _ in range(3))]
    for text in map(unparse, trees):
        try:
            expected = parsed(text)
        except InvalidFilter:
            continue  # another value may be no time, no pattern, …
        assert same(templates.compiled(text), expected)
        assert same(templates.compiled(text), expected)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TEMPLATES", 10)
    templates = shapes()
    for number in range(100):
        for text in (f"a{number} == 1", f"a[{number}] == 1", f"`a` == {number}"):
            assert same(templates.compiled(text), parsed(text))
            known = templates._wordings.values()
            assert sum(len(one.templates) if one else 1 for one in known) <= 10
