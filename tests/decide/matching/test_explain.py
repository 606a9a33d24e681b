"""An explanation says what each condition said, and agrees with the match."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from headgate.decide.filter.syntax import Expression
from headgate.decide.filter.unparse import unparse
from headgate.decide.matching.explain import Explained, Explanation, explain
from headgate.decide.matching.index import MatchIndex
from headgate.model.subscription import Subscription
from tests.decide.filter.generated import conditions, documents
from tests.decide.filter.naive import verdict
from tests.decide.filter.test_matching import record, sub

FLIGHT = {"icao": "4b1806", "altitude": 35_000}

CASES: dict[str, tuple[str | None, str, list[tuple[str, str, str, int]]]] = {
    "no filter": (None, "match", []),
    "all hold": (
        'icao == "4b1806" && altitude > 30000',
        "match",
        [
            ('icao == "4b1806"', "match", "indexed", 0),
            ("altitude > 30000", "match", "indexed", 0),
        ],
    ),
    "one doesn't": (
        'icao == "4b1806" && altitude != 35000',
        "no match",
        [
            ('icao == "4b1806"', "match", "indexed", 0),
            ("altitude != 35000", "no match", "evaluated", 0),
        ],
    ),
    "one fails": (
        "altitude > 0 && speed + 1 > 0",
        "failed",
        [
            ("altitude > 0", "match", "indexed", 0),
            ("speed + 1 > 0", "failed", "evaluated", 0),
        ],
    ),
    "alternatives": (
        'icao == "x" || altitude > 30000 && icao != "x"',
        "match",
        [
            ('icao == "x"', "no match", "indexed", 1),
            ("altitude > 30000", "match", "indexed", 2),
            ('icao != "x"', "match", "evaluated", 2),
        ],
    ),
}


@pytest.mark.parametrize(("where", "overall", "expected"), CASES.values(), ids=CASES.keys())
def test_every_condition_has_its_verdict(
    where: str | None, overall: str, expected: list[tuple[str, str, str, int]]
) -> None:
    found = MatchIndex.of([sub("s", where)]).explain(FLIGHT, "s")
    explained = tuple(Explained(*each) for each in expected)  # type: ignore[arg-type]
    assert found == Explanation("s", overall, explained)  # type: ignore[arg-type]


def test_an_unknown_subscription_has_no_explanation() -> None:
    assert MatchIndex.empty().explain(FLIGHT, "s") is None


def test_what_is_no_object_matches_nothing_but_no_filter() -> None:
    assert explain(5, sub("s")).verdict == "match"
    found = explain(5, sub("s", "a != 5"))
    assert (found.verdict, found.conditions[0].verdict) == ("no match", "no match")


@settings(max_examples=300, deadline=None)
@given(conditions(2), documents)
def test_the_explanation_agrees_with_the_filter(
    expression: Expression, document: dict[str, Any]
) -> None:
    names = {True: "match", False: "no match", None: "failed"}
    subscription = Subscription("s", "g1", "flights", unparse(expression))
    found = explain(document, subscription)
    assert found.verdict == names[verdict(expression, document)]
    matched = MatchIndex.of([subscription]).match(record(), document)
    assert (found.verdict == "match") is bool(matched.by_gateway)
    for alternative in {each.alternative for each in found.conditions}:
        all_hold = all(
            each.verdict == "match" for each in found.conditions if each.alternative == alternative
        )
        assert not all_hold or found.verdict == "match"
