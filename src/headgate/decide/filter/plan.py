"""From a filter's text to something that answers "does this document match?".

Invariant: a Filter is immutable and its answer depends on nothing but the document. `evaluate`
never raises: True (match), False (no match) or None (the expression failed on this document, which
is no match either, and for the caller to count).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from headgate.decide.filter.check import check
from headgate.decide.filter.compile import Condition, condition
from headgate.decide.filter.parser import parse
from headgate.decide.filter.paths import Path, path_of
from headgate.decide.filter.syntax import And, Compare, Expression, Literal, conjuncts
from headgate.decide.filter.values import key_of


@dataclass(frozen=True, slots=True)
class Anchor:
    """A condition that every match must meet: the field at `path` equals the value of `key`.

    `residual` is what else must hold (None: nothing). Where the anchor holds, the residual's
    answer, a failure included, is the filter's; where it doesn't, the filter's answer is False.
    """

    path: Path
    key: Hashable
    residual: Condition | None


@dataclass(frozen=True, slots=True)
class Filter:
    """`expression` None matches every record, whatever its document is."""

    expression: Expression | None
    condition: Condition | None

    def evaluate(self, document: object) -> bool | None:
        """A document that isn't a JSON object has no fields and matches no expression."""
        if self.condition is None:
            return True
        return self.condition(document) if type(document) is dict else False

    def matches(self, document: object) -> bool:
        return self.evaluate(document) is True

    def anchor(self) -> Anchor | None:
        """The first condition of the form `field == literal` that all else is joined to by &&."""
        if self.expression is None:
            return None
        parts = list(conjuncts(self.expression))
        for number, part in enumerate(parts):
            if (found := _equality(part)) is not None:
                rest = tuple(parts[:number] + parts[number + 1 :])
                return Anchor(*found, _joined(rest))
        return None


def compile_filter(where: str | None) -> Filter:
    """Raises InvalidFilter, which says where `where` is wrong and what was expected there."""
    return Filter(None, None) if where is None else filter_of(parse(where))


def filter_of(expression: Expression) -> Filter:
    """The same for a tree that was built rather than written."""
    check(expression)
    return Filter(expression, condition(expression))


def _equality(part: Expression) -> tuple[Path, Hashable] | None:
    if not isinstance(part, Compare) or part.op != "==":
        return None
    for field, constant in ((part.left, part.right), (part.right, part.left)):
        path = path_of(field)
        if path is not None and isinstance(constant, Literal):
            key = key_of(constant.value)
            return None if key is None else (path, key)
    return None


def _joined(parts: tuple[Expression, ...]) -> Condition | None:
    if len(parts) < 2:
        return condition(parts[0]) if parts else None
    return condition(And(parts))
