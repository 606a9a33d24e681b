"""The compiled filter and the naive evaluator say the same of every document."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.filter.check import check
from headgate.decide.filter.parser import parse
from headgate.decide.filter.paths import follow
from headgate.decide.filter.plan import filter_of
from headgate.decide.filter.syntax import And, Compare, Expression
from headgate.decide.filter.unparse import unparse
from headgate.decide.filter.values import key_of
from tests.decide.filter.generated import conditions, documents, literals, paths
from tests.decide.filter.naive import verdict


@settings(max_examples=1_500, deadline=None)
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


equalities = st.builds(Compare, st.just("=="), paths(), literals)
anchored = st.tuples(conditions(1), equalities, conditions(1)).map(And)


@settings(max_examples=500, deadline=None)
@given(anchored | conditions(2), documents)
def test_an_anchor_and_its_residual_say_what_the_filter_says(
    expression: Expression, document: dict[str, Any]
) -> None:
    plan = filter_of(expression)
    anchor = plan.anchor()
    if anchor is None:
        return
    holds = key_of(follow(anchor.path)(document)) == anchor.key
    rest = True if anchor.residual is None else anchor.residual(document)
    assert plan.evaluate(document) is (rest if holds else False)
