"""What a filter computes with: JSON values, instants, "not there" and "failed".

Invariants. Comparing never fails for what values are: what can't be compared is simply not equal
and not ordered. Computing (arithmetic, size, conversions) with what is missing or of the wrong type
raises Failed. Whatever would take too long raises Failed, too: the MAX_… below say when, and
cost.py what it takes up to there.
Numbers compare exactly, whatever their size: Python compares int with float without rounding.
A value of a document is never an Instant, so a string is read as one where it meets one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, Final, cast

from headgate.decide.filter.syntax import INT_MAX, INT_MIN, UINT_MAX, ArithmeticOp


class Failed(Exception):
    """This expression has no value for this document. Never leaves the filter package."""


class Mark(Enum):
    MISSING = "missing"


MISSING: Final = Mark.MISSING
"""The value of a field that isn't there."""

MAX_BUILT_LENGTH = 65_536
"""Longest string or list that + may build: `a + a + …` must not multiply a large document."""
MAX_ORDERED_CHARS = 65_536
"""Of the shorter one of two texts that are brought in order."""
MAX_SEARCHED_CHARS = 16_384
"""Longest text that `contains` searches."""
MAX_LISTED = 4_096
"""Most elements of a list that `in` and `contains` look through."""
MAX_COMPARED = 256
"""Most elements of lists and fields of objects that one comparison looks at, in all."""


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment, as nanoseconds since 1970-01-01T00:00:00Z."""

    ns: int


# --- instants ------------------------------------------------------------------------------------

_RFC_3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?"
    r"(?:([Zz])|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MAX_TIME_CHARS = 64


def instant_of(value: object) -> Instant | None:
    """`value` as an instant: itself, or a string in RFC 3339; None for everything else.

    Digits beyond nanoseconds are cut off, and a leap second is the first moment after it.
    """
    if type(value) is Instant:
        return value
    if type(value) is not str or len(value) > _MAX_TIME_CHARS:
        return None
    parts = _RFC_3339.fullmatch(value)
    if parts is None:
        return None
    hour, minute, second = int(parts[4]), int(parts[5]), int(parts[6])
    offset_hour, offset_minute = int(parts[10] or 0), int(parts[11] or 0)
    if hour > 23 or minute > 59 or second > 60 or offset_hour > 23 or offset_minute > 59:
        return None
    try:
        day = date(int(parts[1]), int(parts[2]), int(parts[3])).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    offset_s = (offset_hour * 3_600 + offset_minute * 60) * (-1 if parts[9] == "-" else 1)
    seconds = day * 86_400 + hour * 3_600 + minute * 60 + second - offset_s
    return Instant(seconds * 1_000_000_000 + int((parts[7] or "")[:9].ljust(9, "0")))


# --- comparing -----------------------------------------------------------------------------------


def equal(left: object, right: object) -> bool:
    """Deep equality."""
    if type(left) not in _CONTAINERS or type(right) not in _CONTAINERS:
        return _scalars_equal(left, right)
    return _deep_equal(left, right, _Allowance())


class _Allowance:
    """How many elements may still be compared."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_COMPARED

    def take(self, elements: int) -> None:
        self._left -= elements
        if self._left < 0:
            raise Failed


def _deep_equal(left: object, right: object, allowance: _Allowance) -> bool:
    """A stack instead of recursion: documents may nest deeper than Python can."""
    pending: list[tuple[Any, Any]] = [(left, right)]
    while pending:
        one, other = pending.pop()
        kind = type(one)
        if kind is not type(other) or kind not in _CONTAINERS:
            if not _scalars_equal(one, other):
                return False
            continue
        if len(one) != len(other):
            return False
        allowance.take(1 + len(one))
        if kind is list:
            pending.extend(zip(one, other, strict=True))
        elif one.keys() != other.keys():
            return False
        else:
            pending.extend((value, other[key]) for key, value in one.items())
    return True


_CONTAINERS = (list, dict)


def _scalars_equal(left: object, right: object) -> bool:
    if type(left) is bool or type(right) is bool or left is None or right is None:
        return left is right
    if left is MISSING or right is MISSING:
        return False
    if type(left) is Instant or type(right) is Instant:
        one, other = instant_of(left), instant_of(right)
        return one is not None and other is not None and one.ns == other.ns
    # Of two different types only int and float can be equal here.
    return type(left) not in _CONTAINERS and type(right) not in _CONTAINERS and left == right


Order = Callable[[Any, Any], bool]
"""One of operator.lt, le, gt, ge."""


def ordered(order: Order, left: object, right: object) -> bool:
    kind, other_kind = type(left), type(right)
    if kind in _NUMBERS and other_kind in _NUMBERS:
        return order(left, right)
    if kind is other_kind and (kind is str or kind is bool):
        if kind is str and min(len(left), len(right)) > MAX_ORDERED_CHARS:  # type: ignore[arg-type]
            raise Failed
        return order(left, right)
    if kind is Instant or other_kind is Instant:
        one, other = instant_of(left), instant_of(right)
        return one is not None and other is not None and order(one.ns, other.ns)
    return False


_NUMBERS = (int, float)


def member(needle: object, haystack: object, *, instants: bool = True) -> bool:
    """`instants`: the list may have some, because it was built and isn't the document's own."""
    if type(haystack) is list:
        if len(haystack) > MAX_LISTED:
            raise Failed
        return _listed(needle, haystack, instants)
    if type(haystack) is dict:
        return type(needle) is str and needle in haystack
    return False


def _listed(needle: object, elements: list[Any], instants: bool) -> bool:
    kind = type(needle)
    if kind is str:
        if needle in elements:
            return True
        if not instants or Instant not in map(type, elements):
            return False
        return any(type(each) is Instant and _scalars_equal(needle, each) for each in elements)
    if kind in _NUMBERS:
        return _listed_number(needle, elements)
    if kind is bool or needle is None:
        return any(each is needle for each in elements)
    if kind not in _CONTAINERS and kind is not Instant:
        return False
    allowance = _Allowance()
    for each in elements:
        if kind is Instant:
            allowance.take(1)
            if _scalars_equal(needle, each):
                return True
        elif type(each) is kind:
            allowance.take(1)
            if _deep_equal(needle, each, allowance):
                return True
    return False


def _listed_number(needle: object, elements: list[Any]) -> bool:
    """Python finds what is equal, at its own speed; true and false, which equal 1 and 0, don't
    count."""
    at = 0
    while True:
        try:
            at = elements.index(needle, at)
        except ValueError:
            return False
        if type(elements[at]) is not bool:
            return True
        at += 1


def contains(whole: object, part: object, *, instants: bool = True) -> bool:
    """A text that contains a text, or a list that contains an element; `instants` as in member."""
    if type(whole) is str:
        if type(part) is not str:
            return False
        if len(whole) > MAX_SEARCHED_CHARS:
            raise Failed
        return part in whole
    return type(whole) is list and member(part, whole, instants=instants)


_TRUE, _FALSE, _NULL = ("bool", True), ("bool", False), ("null",)


def key_of(value: object) -> Hashable | None:
    """A dict key under which equal values of a document, and only they, meet; None: not a scalar.

    Numbers are their own keys (Python hashes 5 and 5.0 alike); true and null aren't, because
    Python's True equals 1.
    """
    kind = type(value)
    if kind is str or kind is int or kind is float:
        return value
    if kind is bool:
        return _TRUE if value else _FALSE
    return _NULL if value is None else None


# --- computing -----------------------------------------------------------------------------------


def negative(value: object) -> int | float:
    if type(value) is int:
        return _in_range(-value)
    if type(value) is float:
        return -value
    raise Failed


def compute(op: ArithmeticOp, left: object, right: object) -> object:
    if type(left) is int and type(right) is int:
        return _in_range(_on_ints(op, _in_range(left), _in_range(right)))
    if type(left) in _NUMBERS and type(right) in _NUMBERS:
        return _on_doubles(op, double_of(left), double_of(right))
    if op == "+" and type(left) is type(right) and type(left) in (str, list):
        one, other = cast("Any", left), cast("Any", right)
        if len(one) + len(other) <= MAX_BUILT_LENGTH:
            return one + other
    raise Failed


def _in_range(value: int) -> int:
    if INT_MIN <= value <= UINT_MAX:
        return value
    raise Failed


def _on_ints(op: ArithmeticOp, left: int, right: int) -> int:
    if op == "+":
        return left + right
    if op == "-":
        return left - right
    if op == "*":
        return left * right
    if right == 0:
        raise Failed
    # As in CEL, division cuts towards zero and the remainder has the sign of the dividend.
    quotient = abs(left) // abs(right)
    quotient = quotient if (left < 0) == (right < 0) else -quotient
    return quotient if op == "/" else left - quotient * right


def _on_doubles(op: ArithmeticOp, left: float, right: float) -> float:
    if op == "%" or (op == "/" and right == 0):
        raise Failed
    if op == "+":
        result = left + right
    elif op == "-":
        result = left - right
    else:
        result = left * right if op == "*" else left / right
    # Neither infinity nor NaN is a JSON value, so neither may come into being here.
    if result - result != 0:
        raise Failed
    return result


def size_of(value: object) -> int:
    if type(value) in (str, list, dict):
        return len(value)  # type: ignore[arg-type]  # narrowed by identity of the type
    raise Failed


_DECIMAL = re.compile(r"[+-]?[0-9]{1,20}")
_DOUBLE = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MAX_NUMBER_CHARS = 400


def int_of(value: object) -> int:
    """Doubles are cut towards zero; an instant becomes seconds since 1970."""
    if type(value) is int:
        return _in_range(value)
    if type(value) is float and INT_MIN <= value <= INT_MAX:
        return _in_range(int(value))
    if type(value) is str and _DECIMAL.fullmatch(value):
        return _in_range(int(value))
    if type(value) is Instant:
        return value.ns // 1_000_000_000
    raise Failed


def double_of(value: object) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(_in_range(value))
    if type(value) is str and len(value) <= _MAX_NUMBER_CHARS and _DOUBLE.fullmatch(value):
        result = float(value)
        if result - result == 0:
            return result
    raise Failed


def string_of(value: object) -> str:
    """Equal numbers give equal texts, so 5.0 becomes 5."""
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is float:
        return str(int(value)) if value.is_integer() and abs(value) < 2**63 else repr(value)
    if type(value) is int:
        return str(_in_range(value))
    raise Failed


def timestamp_of(value: object) -> Instant:
    instant = instant_of(value)
    if instant is None:
        raise Failed
    return instant
