"""Refuses expressions that are well formed but can never mean anything: `5 && a`, `name * "x"`; and
those that could cost everybody else too much (cost.py).

What a field holds is only known per document, so only kinds that show in the text itself are
checked. A checked expression still may fail on a document; a refused one would fail on all.
"""

from __future__ import annotations

from typing import Literal as OneOf

from headgate.decide.filter.cost import check_cost
from headgate.decide.filter.patterns import Pattern, PatternRefused
from headgate.decide.filter.syntax import (
    And,
    Arithmetic,
    Call,
    Compare,
    Conditional,
    Expression,
    Field,
    Has,
    Index,
    ListOf,
    Literal,
    Negate,
    Not,
    Or,
    Select,
    fault,
)
from headgate.decide.filter.values import instant_of

Kind = OneOf["any", "null", "bool", "number", "string", "list", "timestamp"]

_OF_LITERAL: dict[str, Kind] = {"int": "number", "uint": "number", "double": "number"}
_OF_LITERAL |= {"null": "null", "bool": "bool", "string": "string"}

_TAKES: dict[str, tuple[tuple[Kind, ...], ...]] = {
    "size": (("string", "list"),),
    "timestamp": (("string", "timestamp"),),
    "int": (("number", "string", "timestamp"),),
    "double": (("number", "string"),),
    "string": (("string", "number", "bool"),),
    "contains": (("string", "list"), ("null", "bool", "number", "string", "list", "timestamp")),
    "startsWith": (("string",), ("string",)),
    "endsWith": (("string",), ("string",)),
    "matches": (("string",), ("string",)),
}
_GIVES: dict[str, Kind] = {"size": "number", "int": "number", "double": "number"}
_GIVES |= {"string": "string", "timestamp": "timestamp"}


def check(expression: Expression) -> None:
    """Raises InvalidFilter unless `expression` can serve as a filter's condition."""
    _condition(expression)
    check_cost(expression)


def _condition(node: Expression) -> None:
    if isinstance(node, Conditional):
        _condition(node.condition)
        _condition(node.then)
        _condition(node.otherwise)
        return
    kind = _kind(node)
    if kind not in ("bool", "any"):
        raise fault(
            node.position, f"found a {kind}, expected a condition such as a comparison", found=kind
        )


def _kind(node: Expression) -> Kind:  # noqa: C901  # one case per kind of node
    """The kind of value `node` has, as far as the text tells; checks everything inside it."""
    match node:
        case Literal():
            return _OF_LITERAL[node.kind]
        case ListOf():
            for item in node.items:
                _kind(item)
            return "list"
        case Field():
            return "any"
        case Select():
            _one_of(node.operand, "something with fields")
            return "any"
        case Index():
            _one_of(node.operand, "a list or something with fields", "list")
            _one_of(node.key, "a number or a field name", "number", "string")
            return "any"
        case Has():
            _kind(node.target)
            return "bool"
        case Call():
            return _call(node)
        case Negate():
            _one_of(node.operand, "a number", "number")
            return "number"
        case Arithmetic():
            return _arithmetic(node)
        case Compare():
            return _comparison(node)
        case Not():
            _condition(node.operand)
            return "bool"
        case And() | Or():
            for operand in node.operands:
                _condition(operand)
            return "bool"
        case Conditional():
            _condition(node.condition)
            then, otherwise = _kind(node.then), _kind(node.otherwise)
            return then if then == otherwise else "any"


def _one_of(node: Expression, expected: str, *allowed: Kind) -> Kind:
    kind = _kind(node)
    if kind != "any" and kind not in allowed:
        problem = f"found a {kind}, expected {expected}"
        raise fault(node.position, problem, found=kind, expected=expected)
    return kind


def _arithmetic(node: Arithmetic) -> Kind:
    allowed: tuple[Kind, ...] = ("number", "string", "list") if node.op == "+" else ("number",)
    expected = f"{' or '.join(allowed)} beside {node.op}"
    left, right = (_one_of(side, expected, *allowed) for side in (node.left, node.right))
    if left != right and "any" not in (left, right):
        problem = f"{node.op} has a {left} on its left and a {right} on its right"
        raise fault(node.position, problem, found=right, expected=left)
    return left if left != "any" else right


def _comparison(node: Compare) -> Kind:
    _kind(node.left)
    if node.op == "in":
        _one_of(node.right, "a list or something with fields behind in", "list")
    else:
        _kind(node.right)
    return "bool"


def _call(node: Call) -> Kind:
    for argument, allowed in zip(node.arguments, _TAKES[node.name], strict=True):
        _one_of(argument, f"{' or '.join(allowed)} for {node.name}", *allowed)
    if node.name == "matches":
        _pattern(node.arguments[1])
    elif node.name == "timestamp":
        _timestamp(node.arguments[0])
    return _GIVES.get(node.name, "bool")


def _pattern(node: Expression) -> None:
    # A pattern from the document couldn't be checked before it runs.
    if not isinstance(node, Literal):
        raise fault(node.position, "matches takes a string literal", expected="a string literal")
    try:
        Pattern(str(node.value))
    except PatternRefused as refused:
        raise fault(node.position, f"the pattern is refused: {refused.problem}") from None


def _timestamp(node: Expression) -> None:
    if isinstance(node, Literal) and instant_of(node.value) is None:
        example = "a time in RFC 3339 such as 2025-01-31T12:00:00Z"
        raise fault(node.position, f"found {node.value!r}, expected {example}", expected=example)
