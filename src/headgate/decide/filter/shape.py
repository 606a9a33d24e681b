"""What two filters have in common that differ only in the values they compare with.

`icao == "4b1806"` and `icao == "3c6444"` have one shape, `icao == $0`, with different constants. A
shape is compiled once, a subscription keeps only its constants.

Only constants that a field is compared with become slots, for only these differ from subscription
to subscription in practice. Everything else (patterns, arithmetic, true, null) stays in the shape.
Invariant: a shape with its constants means what the expression meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from headgate.decide.filter.fast import Constants
from headgate.decide.filter.paths import path_of
from headgate.decide.filter.syntax import (
    And,
    Call,
    Compare,
    Conditional,
    Expression,
    ListOf,
    Literal,
    Not,
    Or,
    Slot,
    SlotList,
)
from headgate.decide.filter.values import instant_of, key_of

_SLOT_KINDS = ("int", "uint", "double", "string")
_SLOT_METHODS = ("contains", "startsWith", "endsWith")


@dataclass(frozen=True, slots=True)
class Source:
    """Where the constant of a slot comes from in the text."""

    node: Literal | ListOf
    instant: bool = False

    def constant(self) -> object:
        if isinstance(self.node, ListOf):
            return frozenset(key_of(cast("Literal", item).value) for item in self.node.items)
        return instant_of(self.node.value) if self.instant else self.node.value


def constants_of(sources: tuple[Source, ...]) -> Constants:
    return tuple(source.constant() for source in sources)


def generalise(expression: Expression) -> tuple[Expression, tuple[Source, ...]]:
    """The shape of a checked expression, and the sources of its constants in their order."""
    sources: list[Source] = []
    return _condition(expression, sources), tuple(sources)


def _condition(node: Expression, sources: list[Source]) -> Expression:
    match node:
        case And():
            return And(tuple(_condition(operand, sources) for operand in node.operands))
        case Or():
            return Or(tuple(_condition(operand, sources) for operand in node.operands))
        case Not():
            return Not(_condition(node.operand, sources))
        case Conditional():
            parts = (node.condition, node.then, node.otherwise)
            return Conditional(*(_condition(part, sources) for part in parts))
        case Compare():
            return _comparison(node, sources)
        case Call() if node.name in _SLOT_METHODS and path_of(node.arguments[0]) is not None:
            subject, part = node.arguments
            return Call(node.name, (subject, _constant(part, sources)))
        case _:
            return node


def _comparison(node: Compare, sources: list[Source]) -> Expression:
    if path_of(node.left) is not None:
        right = node.right
        if node.op == "in" and isinstance(right, ListOf):
            return Compare(node.op, node.left, _list(right, sources))
        return Compare(node.op, node.left, _constant(right, sources))
    if path_of(node.right) is not None:
        return Compare(node.op, _constant(node.left, sources), node.right)
    return node


def _constant(node: Expression, sources: list[Source]) -> Expression:
    match node:
        case Literal(kind=kind) if kind in _SLOT_KINDS:
            sources.append(Source(node))
            return Slot(kind, None, len(sources) - 1)
        case Call(name="timestamp", arguments=(Literal() as text,)):
            sources.append(Source(text, instant=True))
            return Slot(text.kind, None, len(sources) - 1, instant=True)
        case _:
            return node


def _list(node: ListOf, sources: list[Source]) -> Expression:
    if not node.items or not all(isinstance(item, Literal) for item in node.items):
        return node
    sources.append(Source(node))
    return SlotList((), len(sources) - 1, len(node.items))
