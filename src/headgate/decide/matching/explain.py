"""Why a record does or doesn't match a subscription, condition by condition.

For people, so it favours plain words over speed: every condition is asked, also where the index
would have known the answer without asking.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headgate.decide.filter.check import check
from headgate.decide.filter.compile import condition
from headgate.decide.filter.parser import parse
from headgate.decide.filter.plan import filter_of
from headgate.decide.filter.shape import constants_of, generalise
from headgate.decide.filter.syntax import Expression, Or, conjuncts
from headgate.decide.filter.unparse import unparse
from headgate.decide.matching.tree_places import branches_of
from headgate.model.subscription import Subscription

Verdict = Literal["match", "no match", "failed"]
Use = Literal["indexed", "evaluated"]


@dataclass(frozen=True, slots=True)
class Explained:
    """One condition. `indexed` ones the index looks up; `alternative` numbers the sides of an ||
    that the filter hangs on, and is 0 for conditions that must all hold. `node` is what it was
    written as."""

    condition: str
    verdict: Verdict
    use: Use
    alternative: int = 0
    node: Expression | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A filter that is all && has its conditions here, one with an || on top has those of each
    side.

    Without a filter there are none.
    """

    subscription_id: str
    verdict: Verdict
    conditions: tuple[Explained, ...] = ()


def explain(document: object, subscription: Subscription) -> Explanation:
    """Raises InvalidFilter when the subscription has one that doesn't parse."""
    if subscription.where is None:
        return Explanation(subscription.id, "match")
    expression = parse(subscription.where)
    check(expression)
    verdict = _named(filter_of(expression).evaluate(document))
    if isinstance(expression, Or):
        sides = enumerate(expression.operands, 1)
        found = [one for number, side in sides for one in _conditions(side, document, number)]
    else:
        found = list(_conditions(expression, document, 0))
    return Explanation(subscription.id, verdict, tuple(found))


def _conditions(node: Expression, document: object, alternative: int) -> list[Explained]:
    """In the order of the text."""
    parts = list(conjuncts(node))
    indexed: set[int] = set()
    for number, part in enumerate(parts):
        if any(each.index_keys for each in branches_of(generalise(part)[0]).parts):
            indexed.add(number)
    return [
        Explained(
            unparse(part),
            _named(_verdict(part, document)),
            "indexed" if number in indexed else "evaluated",
            alternative,
            part,
        )
        for number, part in enumerate(parts)
    ]


def _verdict(part: Expression, document: object) -> bool | None:
    if type(document) is not dict:
        return False
    shape, sources = generalise(part)
    return condition(shape)(document, constants_of(sources))


def _named(verdict: bool | None) -> Verdict:
    if verdict is None:
        return "failed"
    return "match" if verdict else "no match"
