"""The filter that a grant adds: claims as constants, joined with what a subscriber asked for.

Joined is the syntax, never the text, so that nothing a subscriber writes can end the grant's part
early or reach into it. Invariants: whatever `joined` matches, the grant's filter holds for; an
error about the joined filter says nothing of the grant's part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headgate.decide.filter.parser import parse
from headgate.decide.filter.plan import Filter, filter_of
from headgate.decide.filter.syntax import (
    INT_MAX,
    INT_MIN,
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
    conjuncts,
)
from headgate.decide.filter.unparse import unparse
from headgate.errors import Forbidden, InvalidFilter
from headgate.model.access import Principal

CLAIMS = "claims"
LIST_MAX = 1_000
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Enforced:
    """A grant's filter, whose claims are constants by now."""

    expression: Expression

    @property
    def filter(self) -> Filter:
        """What says of a record whether the principal may be shown it."""
        return filter_of(self.expression)


def joined(enforced: Enforced | None, where: str | None) -> str | None:
    """The filter that both make together; raises InvalidFilter."""
    if enforced is None:
        return where
    expression = enforced.expression
    if where is not None:
        asked = parse(where)
        filter_of(asked)  # errors name the filter alone, without the grant's
        parts = list(conjuncts(asked))
        is_there = all(part in parts for part in conjuncts(expression))
        expression = asked if is_there else And((expression, asked))
    text = unparse(expression)
    try:
        filter_of(parse(text))
    except InvalidFilter:
        raise InvalidFilter(
            "the filter is too much together with the one that your grant adds: make it simpler"
        ) from None
    return text


def with_claims(node: Expression, principal: Principal) -> Expression:  # noqa: C901  # one case per kind of node
    """`node` with the principal's claims as constants; raises Forbidden for one that it lacks."""

    def inner(one: Expression) -> Expression:
        return with_claims(one, principal)

    path = _claim_path(node)
    if path is not None:
        return _constant(_looked_up(path, principal), ".".join(path), principal)
    match node:
        case Literal():
            return node
        case Field():
            if node.name == CLAIMS:
                raise _lacks("", principal)
            return node
        case ListOf():
            return ListOf(tuple(inner(item) for item in node.items))
        case Select():
            return replace(node, operand=inner(node.operand))
        case Index():
            return replace(node, operand=inner(node.operand), key=inner(node.key))
        case Has():
            claimed = _claim_path(node.target)
            if claimed is not None:
                return Literal("bool", _looked_up(claimed, principal) is not _MISSING)
            target = inner(node.target)
            assert isinstance(target, Field | Select | Index), "only a claim becomes anything else"
            return Has(target)
        case Call():
            return replace(node, arguments=tuple(inner(one) for one in node.arguments))
        case Negate() | Not():
            return replace(node, operand=inner(node.operand))
        case Arithmetic() | Compare():
            return replace(node, left=inner(node.left), right=inner(node.right))
        case And() | Or():
            return replace(node, operands=tuple(inner(one) for one in node.operands))
        case Conditional():
            return Conditional(inner(node.condition), inner(node.then), inner(node.otherwise))


def _claim_path(node: Expression) -> tuple[str, ...] | None:
    """`claims.a.b` as ("a", "b"); None for what isn't a claim."""
    names: list[str] = []
    while isinstance(node, Select):
        names.append(node.name)
        node = node.operand
    if isinstance(node, Field) and node.name == CLAIMS and names:
        return tuple(reversed(names))
    return None


def _looked_up(path: tuple[str, ...], principal: Principal) -> Any:
    found: Any = principal.claims
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return _MISSING
        found = found[name]
    return found


def _constant(value: Any, name: str, principal: Principal) -> Expression:
    match value:
        case bool():
            return Literal("bool", value)
        case int() if INT_MIN <= value <= INT_MAX:
            return Literal("int", value)
        case float() if value - value == 0:
            return Literal("double", value)
        case str():
            return Literal("string", value)
        case list() | tuple() if len(value) <= LIST_MAX:
            return ListOf(tuple(_constant(item, name, principal) for item in value))
        case _:
            raise _lacks(name, principal)


def _lacks(name: str, principal: Principal) -> Forbidden:
    claim = f"claim {name}" if name else "claim that is named"
    return Forbidden(
        f"{principal.name} has no {claim} that a filter can compare with, and a grant's filter "
        "asks for it; ask an administrator",
        claim=name,
    )
