"""Filters as data instead of text: a list of conditions that must all hold.

    [{"field": "position.lat", "op": ">", "value": 47}, {"field": "tags", "op": "exists"}]

They become the same syntax tree as an expression, and from there on nothing knows the difference.
Invariant: names and values are bound as nodes of the tree, never pasted into a text; `where_of`
quotes them again, and what it returns parses to the same tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from headgate.decide.filter.check import check
from headgate.decide.filter.syntax import (
    INT_MAX,
    INT_MIN,
    MAX_DEPTH,
    MAX_LIST_ITEMS,
    MAX_TEXT_CHARS,
    UINT_MAX,
    And,
    Call,
    Compare,
    CompareOp,
    Expression,
    Field,
    Has,
    Index,
    ListOf,
    Literal,
    Not,
    Select,
)
from headgate.decide.filter.unparse import unparse
from headgate.decide.filter.values import instant_of
from headgate.errors import InvalidFilter

MAX_CONDITIONS = 64
_KEYS = frozenset({"field", "op", "value"})
_STEP = re.compile(r"`([^`\n]+)`|([^.`\n]+)")
_COMPARISONS: tuple[CompareOp, ...] = ("==", "!=", ">", ">=", "<", "<=")
OPS = (*_COMPARISONS, "in", "contains", "prefix", "exists")

Target = Field | Select | Index


def where_of(conditions: object) -> str:
    """The same filter as an expression. Raises InvalidFilter."""
    text = unparse(structured(conditions))
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidFilter(
            f"The filter has {len(text)} characters as an expression, expected at most "
            f"{MAX_TEXT_CHARS}.",
            limit=MAX_TEXT_CHARS,
        )
    return text


def structured(conditions: object) -> Expression:
    """Raises InvalidFilter, which says which condition is wrong and what was expected in it."""
    if not isinstance(conditions, Sequence) or isinstance(conditions, str) or not conditions:
        raise InvalidFilter(
            "The filter must be a list of conditions such as "
            '{"field": "altitude", "op": ">", "value": 30000}.',
            expected="a list of conditions",
        )
    if len(conditions) > MAX_CONDITIONS:
        raise InvalidFilter(
            f"The filter has {len(conditions)} conditions, expected at most {MAX_CONDITIONS}.",
            limit=MAX_CONDITIONS,
        )
    parts = tuple(_condition(number, each) for number, each in enumerate(conditions))
    expression = parts[0] if len(parts) == 1 else And(parts)
    check(expression)
    return expression


def _condition(number: int, given: object) -> Expression:
    if not isinstance(given, dict):
        raise _fault(
            number, "", f"found {_shown(given)}, expected an object with field, op and value"
        )
    for key in given:
        if key not in _KEYS:
            raise _fault(number, str(key), f"{key} is unknown, expected field, op and value")
    target = _target(number, given.get("field"))
    op = given.get("op")
    if op not in OPS:
        raise _fault(number, "op", f"found {_shown(op)}, expected one of {', '.join(OPS)}")
    if "value" not in given and op != "exists":
        raise _fault(number, "value", f"it is missing, and {op} needs one")
    if op in _COMPARISONS:
        return Compare(op, target, _value(number, given["value"]))
    return _TESTS[op](number, target, given.get("value", True))


# --- fields --------------------------------------------------------------------------------------


def _target(number: int, field: object) -> Target:
    """`legs.0.from`: names and element numbers; a name with a dot stands in backticks."""
    if not isinstance(field, str) or not field:
        raise _fault(
            number, "field", f"found {_shown(field)}, expected a path such as position.lat"
        )
    target: Target | None = None
    at = steps = 0
    while at <= len(field):
        step = _STEP.match(field, at)
        ends = step is not None and field[step.end() : step.end() + 1] in ("", ".")
        if step is None or not ends:
            raise _fault(
                number,
                "field",
                f"found {_shown(field)}, expected names with a dot between them",
                at,
            )
        target = _step(target, step)
        at = step.end() + 1
        steps += 1
    if steps >= MAX_DEPTH:
        raise _fault(number, "field", f"it has {steps} steps, expected less than {MAX_DEPTH}")
    assert target is not None
    return target


def _step(above: Target | None, step: re.Match[str]) -> Target:
    name = step[1] or step[2]
    if above is None:
        return Field(name)
    if step[2] and re.fullmatch(r"[0-9]{1,9}", name):
        return Index(above, Literal("int", int(name)))
    return Select(above, name)


# --- values --------------------------------------------------------------------------------------


def _value(number: int, value: object) -> Expression:
    if isinstance(value, dict) and value.keys() == {"timestamp"}:
        return _timestamp(number, value["timestamp"])
    if isinstance(value, list):
        if len(value) > MAX_LIST_ITEMS:
            problem = f"the list has {len(value)} elements, expected at most {MAX_LIST_ITEMS}"
            raise _fault(number, "value", problem)
        return ListOf(tuple(_scalar(number, item) for item in value))
    return _scalar(number, value)


def _scalar(number: int, value: object) -> Literal:
    match value:
        case None:
            return Literal("null", None)
        case bool():
            return Literal("bool", value)
        case int() if INT_MIN <= value <= INT_MAX:
            return Literal("int", value)
        case int() if 0 <= value <= UINT_MAX:
            return Literal("uint", value)
        case float() if value - value == 0:
            return Literal("double", value)
        case str() if not any("\ud800" <= char <= "\udfff" for char in value):
            return Literal("string", value)
        case _:
            expected = "null, true, false, a 64-bit number, a text, a list of these or a timestamp"
            raise _fault(number, "value", f"found {_shown(value)}, expected {expected}")


def _timestamp(number: int, text: object) -> Expression:
    if not isinstance(text, str) or instant_of(text) is None:
        expected = "a time in RFC 3339 such as 2025-01-31T12:00:00Z"
        raise _fault(number, "value", f"found {_shown(text)}, expected {expected}")
    return Call("timestamp", (Literal("string", text),))


# --- tests ---------------------------------------------------------------------------------------


def _in(number: int, target: Target, value: object) -> Expression:
    if not isinstance(value, list):
        raise _fault(number, "value", f"found {_shown(value)}, expected a list behind in")
    return Compare("in", target, _value(number, value))


def _contains(number: int, target: Target, value: object) -> Expression:
    return Call("contains", (target, _scalar(number, value)))


def _prefix(number: int, target: Target, value: object) -> Expression:
    if not isinstance(value, str):
        raise _fault(number, "value", f"found {_shown(value)}, expected a text behind prefix")
    return Call("startsWith", (target, _scalar(number, value)))


def _exists(number: int, target: Target, value: object) -> Expression:
    if not isinstance(value, bool):
        raise _fault(number, "value", f"found {_shown(value)}, expected true or false for exists")
    return Has(target) if value else Not(Has(target))


_TESTS: dict[Any, Callable[[int, Target, object], Expression]] = {
    "in": _in,
    "contains": _contains,
    "prefix": _prefix,
    "exists": _exists,
}


def _shown(value: object) -> str:
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _fault(number: int, key: str, problem: str, position: int = 0) -> InvalidFilter:
    where = f"condition {number + 1}" + (f", {key}" if key else "")
    return InvalidFilter(
        f"The filter is wrong in {where}: {problem}.", condition=number, key=key, position=position
    )
