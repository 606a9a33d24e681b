"""The compiled filter and the naive evaluator say the same of every document."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from headgate.decide.filter.check import check
from headgate.decide.filter.parser import parse
from headgate.decide.filter.plan import filter_of
from headgate.decide.filter.syntax import Expression
from headgate.decide.filter.unparse import unparse
from tests.decide.filter.generated import conditions, documents
from tests.decide.filter.naive import verdict


@settings(max_examples=900, deadline=None)
@given(conditions(), documents)
def test_a_compiled_filter_says_what_the_naive_evaluator_says(
    expression: Expression, document: dict[str, Any]
) -> None:
    assert filter_of(expression).evaluate(document) is verdict(expression, document)


@settings(max_examples=500, deadline=None)
@given(conditions())
def test_unparsed_text_parses_to_the_same_tree(expression: Expression) -> None:
    check(expression)
    assert parse(unparse(expression)) == expression
