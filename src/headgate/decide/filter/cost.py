"""What a filter costs at worst: microseconds for one document, known before any document is.

One lane asks all filters about a record before it goes on, so what one filter may cost is taken
from everybody. Each operation looks at so much of a document and no more (values.py, patterns.py),
beyond which it fails and is counted; what it costs up to there is known, and a filter's cost is the
sum.

Invariant: a filter that was accepted takes at most MAX_COST_US per document, whatever the document.
A record shows a filter two documents at most, the state before the change and the one after it, so
one subscription stays within 5 ms per record. The charges are what was measured on slow cores,
rounded up; tests/decide/filter/test_cost.py tries the worst there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from headgate.decide.filter.paths import path_of
from headgate.decide.filter.patterns import Pattern
from headgate.decide.filter.syntax import (
    Arithmetic,
    Call,
    Compare,
    Conditional,
    Expression,
    Index,
    ListOf,
    Literal,
    children,
    fault,
)
from headgate.decide.filter.unparse import unparse

MAX_COST_US = 2_400

ASKED_US = 10.0
"""To be found in an index and told apart from others."""
NODE_US = 0.4
ITEM_US = 0.1
CONVERTED_US = 5.0
ORDERED_US = 25.0
COMPARED_US = 100.0
"""Two values of the document, which may be long texts, lists or objects."""
BUILT_US = 100.0
NAMED_US = 150.0
"""A field by a name that was made for it: hashed anew each time, a long text's every character."""
SEARCHED_US = 60.0
SEARCHED_PER_CHAR_US = 3.0
"""A text for a part of it: more with every character of the part, up to a hundred."""
LISTED_US = {"string": 60.0, "bool": 200.0, "null": 200.0}
LISTED_NUMBER_US = 350.0
LISTED_ANY_US = 800.0
"""A list for an element, by what the element is known to be."""
BUILT_LIST_US = 150.0
"""More, where the list isn't the document's own."""
STEP_NS = 10.0
"""One step of a pattern on one byte of a text."""

_SHOWN_CHARS = 60


def cost_us(expression: Expression | None) -> int:
    """Of a checked expression; 0 where there is none, which costs nothing but its delivery."""
    if expression is None:
        return 0
    return ceil(ASKED_US + _cost_us(expression))


def check_cost(expression: Expression) -> None:
    """Raises InvalidFilter, with the numbers and the part that costs most."""
    cost = cost_us(expression)
    if cost <= MAX_COST_US:
        return
    worst = max(_parts(expression), key=_own_us)
    text = unparse(worst)
    shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
    raise fault(
        worst.position,
        f"the filter may cost {cost} µs per document, at most {MAX_COST_US} are allowed, and "
        f"{shown} alone may cost {ceil(_own_us(worst))}; ask for less, or split it into "
        "several subscriptions",
        cost_us=cost,
        most_us=MAX_COST_US,
    )


def _cost_us(node: Expression) -> float:
    if isinstance(node, Conditional):  # one of the two is asked
        either = max(_cost_us(node.then), _cost_us(node.otherwise))
        return _own_us(node) + _cost_us(node.condition) + either
    if isinstance(node, ListOf):
        others = (each for each in node.items if not isinstance(each, Literal))
        return _own_us(node) + sum(map(_cost_us, others))
    return _own_us(node) + sum(map(_cost_us, children(node)))


def _parts(node: Expression) -> Iterator[Expression]:
    yield node
    for child in children(node):
        yield from _parts(child)


def _own_us(node: Expression) -> float:
    """Without what is inside it."""
    match node:
        case ListOf():
            return NODE_US + ITEM_US * len(node.items)
        case Compare():
            return NODE_US + _comparison_us(node)
        case Call():
            return NODE_US + _call_us(node)
        case Arithmetic(op="+"):
            known = isinstance(node.left, Literal) or isinstance(node.right, Literal)
            return NODE_US + (CONVERTED_US if known else BUILT_US)
        case Index(key=key) if not isinstance(key, Literal) and path_of(key) is None:
            return NODE_US + NAMED_US
        case _:
            return NODE_US


def _comparison_us(node: Compare) -> float:
    if node.op == "in":
        if isinstance(node.right, ListOf) and _all_literals(node.right) and path_of(node.left):
            return 0.0  # one look into a set
        return _listed_us(node.left, node.right)
    if isinstance(node.left, Literal) or isinstance(node.right, Literal):
        return 0.0
    return COMPARED_US if node.op in ("==", "!=") else ORDERED_US


def _all_literals(items: ListOf) -> bool:
    return all(isinstance(item, Literal) for item in items.items)


def _listed_us(element: Expression, elements: Expression) -> float:
    if not isinstance(element, Literal):
        return LISTED_ANY_US
    known_us = LISTED_US.get(element.kind, LISTED_NUMBER_US)
    return known_us if path_of(elements) else known_us + BUILT_LIST_US


def _call_us(node: Call) -> float:
    if node.name == "matches":
        text = node.arguments[1]
        assert isinstance(text, Literal), "a checked pattern is a literal"
        return CONVERTED_US + Pattern(str(text.value)).work * STEP_NS / 1_000
    if node.name == "contains":
        [whole, part] = node.arguments
        chars = (
            len(part.value) if isinstance(part, Literal) and isinstance(part.value, str) else 100
        )
        searched_us = SEARCHED_US + SEARCHED_PER_CHAR_US * min(chars, 100)
        return max(searched_us, _listed_us(part, whole))
    if node.name in ("startsWith", "endsWith"):
        return 0.0 if isinstance(node.arguments[1], Literal) else COMPARED_US
    return CONVERTED_US
