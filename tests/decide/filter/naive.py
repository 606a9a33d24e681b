"""The filter language once more, as slowly and literally as docs/filters.md states it.

The oracle of the property tests: a tree walk over tagged values that shares nothing with the real
evaluation but the syntax tree. Numbers are fractions, instants are datetimes, patterns are `re`'s.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from headgate.decide.filter import syntax as s

MISSING, ERROR = "«missing»", "«error»"
# A value is a tuple: ("number", Fraction, "int" | "double"), ("string", "x"), a bare (MISSING,).


def verdict(expression: s.Expression, document: dict[str, Any]) -> bool | None:
    return truth(evaluate(expression, document))


def truth(value: tuple[Any, ...]) -> bool | None:
    return None if value[0] == ERROR else value == ("bool", True)


def tag(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ("null",)
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int | float):
        return ("number", Fraction(value), "int" if isinstance(value, int) else "double")
    if isinstance(value, str):
        return ("string", value)
    if isinstance(value, list):
        return ("list", [tag(item) for item in value])
    return ("map", {name: tag(item) for name, item in value.items()})


def of_verdict(value: bool | None) -> tuple[Any, ...]:
    return (ERROR,) if value is None else ("bool", value)


def evaluate(node: s.Expression, document: dict[str, Any]) -> tuple[Any, ...]:
    match node:
        case s.Literal():
            return tag(node.value)
        case s.ListOf():
            items = [evaluate(item, document) for item in node.items]
            return (ERROR,) if (ERROR,) in items else ("list", items)
        case s.Field():
            return tag(document[node.name]) if node.name in document else (MISSING,)
        case s.Select():
            return looked_up(evaluate(node.operand, document), ("string", node.name))
        case s.Index():
            return looked_up(evaluate(node.operand, document), evaluate(node.key, document))
        case s.Has():
            target = evaluate(node.target, document)
            return target if target[0] == ERROR else ("bool", target[0] != MISSING)
        case s.Call():
            return called(node.name, [evaluate(one, document) for one in node.arguments])
        case s.Negate():
            operand = evaluate(node.operand, document)
            # Not 0 - x, which is right for integers only: -(0.0) exists, and -(2**63) doesn't fit.
            if operand[0] != "number":
                return (ERROR,)
            return number(-operand[1], operand[2])
        case s.Arithmetic():
            return computed(node.op, evaluate(node.left, document), evaluate(node.right, document))
        case s.Compare():
            return compared(node.op, evaluate(node.left, document), evaluate(node.right, document))
        case s.Not():
            inner = truth(evaluate(node.operand, document))
            return of_verdict(None if inner is None else not inner)
        case s.And() | s.Or():
            verdicts = {truth(evaluate(operand, document)) for operand in node.operands}
            decisive = isinstance(node, s.Or)
            if decisive in verdicts:
                return ("bool", decisive)
            return of_verdict(None if None in verdicts else not decisive)
        case s.Conditional():
            chosen = truth(evaluate(node.condition, document))
            if chosen is None:
                return (ERROR,)
            return evaluate(node.then if chosen else node.otherwise, document)


def looked_up(whole: tuple[Any, ...], key: tuple[Any, ...]) -> tuple[Any, ...]:
    if ERROR in (whole[0], key[0]):
        return (ERROR,)
    if whole[0] == "map" and key[0] == "string":
        return whole[1].get(key[1], (MISSING,))  # type: ignore[no-any-return]
    if whole[0] == "list" and key[0] == "number" and key[2] == "int":
        place = int(key[1])
        return whole[1][place] if 0 <= place < len(whole[1]) else (MISSING,)
    return (MISSING,)


def time_of(value: tuple[Any, ...]) -> datetime | None:
    if value[0] == "time":
        return value[1]  # type: ignore[no-any-return]
    if value[0] != "string" or not re.match(r"\d{4}-\d\d-\d\dT", value[1]):
        return None
    try:
        return datetime.fromisoformat(value[1]).astimezone(UTC)
    except ValueError:
        return None


def same(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    kinds = {left[0], right[0]}
    if MISSING in kinds:
        return False
    if "time" in kinds:
        return time_of(left) is not None and time_of(left) == time_of(right)
    if len(kinds) == 2:
        return False
    if left[0] == "list":
        return len(left[1]) == len(right[1]) and all(map(same, left[1], right[1]))
    if left[0] == "map":
        return set(left[1]) == set(right[1]) and all(
            same(left[1][key], right[1][key]) for key in left[1]
        )
    return left[1:2] == right[1:2]


def compared(op: str, left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    if ERROR in (left[0], right[0]):
        return (ERROR,)
    if op == "==":
        return ("bool", same(left, right))
    if op == "!=":
        return ("bool", not same(left, right))
    if op == "in":
        if right[0] == "map":
            return ("bool", left[0] == "string" and left[1] in right[1])
        return ("bool", right[0] == "list" and any(same(left, item) for item in right[1]))
    if "time" in (left[0], right[0]):
        one, other = time_of(left), time_of(right)
    elif left[0] == right[0] and left[0] in ("number", "string", "bool"):
        one, other = left[1], right[1]
    else:
        return ("bool", False)
    if one is None or other is None:
        return ("bool", False)
    return (
        "bool",
        {"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[op],
    )


def number(value: Fraction, kind: str) -> tuple[Any, ...]:
    if kind == "int":
        return ("number", value, "int") if s.INT_MIN <= value <= s.UINT_MAX else (ERROR,)
    try:
        return ("number", Fraction(float(value)), "double")
    except OverflowError:
        return (ERROR,)


def computed(op: str, left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    if op == "+" and left[0] == right[0] and left[0] in ("string", "list"):
        return (left[0], left[1] + right[1])
    if left[0] != "number" or right[0] != "number":
        return (ERROR,)
    if left[2] == right[2] == "int":
        one, other = int(left[1]), int(right[1])
        if op in "/%":
            if other == 0:
                return (ERROR,)
            cut = int(Fraction(one, other))
            return number(Fraction(cut if op == "/" else one - cut * other), "int")
        exact = {"+": one + other, "-": one - other, "*": one * other}[op]
        return number(Fraction(exact), "int")
    x, y = Fraction(float(left[1])), Fraction(float(right[1]))
    if op == "%" or (op == "/" and y == 0):
        return (ERROR,)
    # IEEE arithmetic is the exact result, rounded once: just what number() does.
    return number({"+": x + y, "-": x - y, "*": x * y, "/": x / (y or Fraction(1))}[op], "double")


def called(name: str, arguments: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    first = arguments[0]
    if any(argument[0] == ERROR for argument in arguments):
        return (ERROR,)
    if name == "contains":
        if first[0] == "list":
            return compared("in", arguments[1], first)
        both_text = first[0] == arguments[1][0] == "string"
        return ("bool", both_text and arguments[1][1] in first[1])
    if name in ("startsWith", "endsWith", "matches"):
        if first[0] != "string" or arguments[1][0] != "string":
            return ("bool", False)
        text, part = first[1], arguments[1][1]
        if name == "matches":
            return ("bool", re.search(part, text, re.ASCII) is not None)
        return ("bool", text[: len(part)] == part if name == "startsWith" else text.endswith(part))
    return converted(name, first)


def converted(name: str, value: tuple[Any, ...]) -> tuple[Any, ...]:
    if name == "size":
        return tag(len(value[1])) if value[0] in ("string", "list", "map") else (ERROR,)
    if name == "timestamp":
        moment = time_of(value)
        return (ERROR,) if moment is None else ("time", moment)
    if name == "string":
        return text_of(value)
    if value[0] == "string":
        pattern = r"[+-]?[0-9]{1,20}" if name == "int" else r"[+-]?[0-9]+(\.[0-9]+)?"
        if not re.fullmatch(pattern, value[1]):
            return (ERROR,)
        return number(Fraction(value[1]), name)
    if value[0] == "time" and name == "int":
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        return tag((value[1] - epoch).days * 86_400 + (value[1] - epoch).seconds)
    if value[0] != "number":
        return (ERROR,)
    if name == "int" and value[2] == "double":
        cut = Fraction(int(value[1]))
        return number(cut, "int") if s.INT_MIN <= cut <= s.INT_MAX else (ERROR,)
    return number(value[1], name)


def text_of(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if value[0] == "string":
        return value
    if value[0] == "bool":
        return ("string", str(value[1]).lower())
    if value[0] != "number":
        return (ERROR,)
    whole = value[1].denominator == 1 and (value[2] == "int" or abs(value[1]) < 2**63)
    return ("string", str(value[1].numerator) if whole else repr(float(value[1])))
