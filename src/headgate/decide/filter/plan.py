"""From a filter's text to something that answers "does this document match?".

Invariant: a Filter is immutable and its answer depends on nothing but the document. `evaluate`
never raises: True (match), False (no match) or None (the expression failed on this document, which
is no match either, and for the caller to count).
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.decide.filter.check import check
from headgate.decide.filter.compile import condition
from headgate.decide.filter.cost import cost_us
from headgate.decide.filter.exclusion import excludes, exclusion_of, known_of
from headgate.decide.filter.fast import Constants, Test
from headgate.decide.filter.parser import parse
from headgate.decide.filter.shape import constants_of, generalise
from headgate.decide.filter.syntax import Expression


@dataclass(frozen=True, slots=True)
class Filter:
    """`expression` None matches every record, whatever its document is. `exclusion` says which
    collections it wants nothing of (decide.filter.exclusion)."""

    expression: Expression | None
    test: Test | None
    constants: Constants = ()
    exclusion: Test | None = None

    def evaluate(self, document: object) -> bool | None:
        """A document that isn't a JSON object has no fields and matches no expression."""
        if self.test is None:
            return True
        return self.test(document, self.constants) if type(document) is dict else False

    @property
    def cost_us(self) -> int:
        """What the filter costs per document, at worst."""
        return cost_us(self.expression)

    def matches(self, document: object) -> bool:
        return self.evaluate(document) is True

    def excludes(self, *collections: str) -> bool:
        """Whether a record about the whole of these doesn't concern it."""
        return excludes(self.exclusion, self.constants, [*map(known_of, collections)])


def compile_filter(where: str | None) -> Filter:
    """Raises InvalidFilter, which says where `where` is wrong and what was expected there."""
    return Filter(None, None) if where is None else filter_of(parse(where))


def filter_of(expression: Expression) -> Filter:
    """The same for a tree that was built rather than written."""
    check(expression)
    shape, sources = generalise(expression)
    return Filter(expression, condition(shape), constants_of(sources), exclusion_of(shape))
