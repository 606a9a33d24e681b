"""What an index can look up: the conditions of a filter that a record is found by.

An index key is a condition on one field, and says in which table of a node a subscription is found
and under which keys. A record that meets the condition looks under one of these keys, at most once
per subscription; it may look there without meeting the condition, unless the index key covers it.

Invariant: where a record isn't found by an index key, its condition doesn't hold and doesn't fail,
so the filter that it is joined to by && is false, whatever else is in it. A list too long to be
looked through, on which a condition fails, is found by everybody who asks about it, and then asked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import frexp
from typing import Literal as OneOf
from typing import cast

import msgspec

from headgate.decide.filter.fast import MIRRORED, ORDERS, Constants
from headgate.decide.filter.paths import Path, path_of
from headgate.decide.filter.syntax import (
    Call,
    Compare,
    Expression,
    Literal,
    Ordering,
    Slot,
    SlotList,
)
from headgate.decide.filter.values import key_of

MAX_KEYS = 256
"""A longer `in` list isn't looked up but evaluated: it would be in too many places."""
MAX_PREFIX_CHARS = 16
LEVEL_MIN, LEVEL_MAX = -60, 900
"""Ranges narrower or wider than 2 to the power of these are treated as such."""

Kind = OneOf["equal", "member", "contains", "prefix", "within", "<", "<=", ">", ">="]
Of = OneOf["any", "text", "number", "instant"]


class Table(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """The name of a table: which field it is about, how it is searched, and for what.

    `level` is the length of its prefixes, or the power of two of its ranges' width.
    """

    path: Path
    kind: Kind
    of: Of = "any"
    level: int = 0


Place = tuple[Table, Hashable]
Spread = Callable[[Constants], list[Place]]


@dataclass(frozen=True, slots=True)
class IndexKey:
    """`spread` says where a subscription with these constants is found; `keys` in how many places.

    `covers` are the numbers of the conditions that hold wherever a record was found by this index
    key. The lower the `rank`, the fewer records are likely to be.
    """

    path: Path
    kind: Kind
    rank: int
    keys: int
    covers: tuple[int, ...]
    spread: Spread


def index_keys_of(conditions: list[Expression]) -> list[IndexKey]:
    """The index keys among conditions that are joined by &&, the most selective first."""
    index_keys: list[IndexKey] = []
    bounds: dict[tuple[Path, Of], list[_Bound]] = {}
    for number, condition in enumerate(conditions):
        if (index_key := _index_key(condition, number)) is not None:
            index_keys.append(index_key)
        elif (bound := _bound(condition, number)) is not None:
            bounds.setdefault((bound.path, bound.of), []).append(bound)
    index_keys.extend(_range(of_field) for of_field in bounds.values())
    index_keys.sort(key=lambda index_key: (index_key.rank, index_key.keys))
    # With two lists a subscription would hang in as many places as the product of their lengths.
    lists = [index_key for index_key in index_keys if index_key.keys > 2]
    return [index_key for index_key in index_keys if index_key not in lists[1:]]


# --- values, elements, prefixes ------------------------------------------------------------------


def _index_key(node: Expression, number: int) -> IndexKey | None:
    match node:
        case Compare(op="=="):
            return _equality(node, number)
        case Compare(op="in", left=field, right=SlotList() as items):
            return _one_of(path_of(field), items, number)
        case Compare(op="in", left=needle, right=field):
            return _element(path_of(field), "member", needle)
        case Call(name="contains"):
            # A text contains texts, too, and these aren't found by hash.
            return _element(path_of(node.arguments[0]), "contains", node.arguments[1])
        case Call(name="startsWith"):
            return _prefix(path_of(node.arguments[0]), node.arguments[1])
        case _:
            return None


def _equality(node: Compare, number: int) -> IndexKey | None:
    for field, constant in ((node.left, node.right), (node.right, node.left)):
        path, key = path_of(field), _key(constant)
        if path is not None and key is not None:
            return IndexKey(path, "equal", 0, 1, (number,), _under(Table(path, "equal"), key))
    return None


def _one_of(path: Path | None, items: SlotList, number: int) -> IndexKey | None:
    if path is None or items.size > MAX_KEYS:
        return None
    table, slot = Table(path, "equal"), items.number

    def spread(constants: Constants) -> list[Place]:
        return [(table, key) for key in constants[slot]]

    # Rank 1 also for a list of one: what a shape says must hold for all its constants.
    return IndexKey(path, "equal", 1, items.size, (number,), spread)


def _element(path: Path | None, kind: Kind, needle: Expression) -> IndexKey | None:
    key = _key(needle)
    if path is None or key is None:
        return None
    return IndexKey(path, kind, 2, 1, (), _under(Table(path, kind), key))


def _prefix(path: Path | None, prefix: Expression) -> IndexKey | None:
    if path is None or not isinstance(prefix, Slot) or prefix.kind != "string":
        return None
    slot = prefix.number

    tables = [Table(path, "prefix", level=length) for length in range(MAX_PREFIX_CHARS + 1)]

    def spread(constants: Constants) -> list[Place]:
        begin = constants[slot][:MAX_PREFIX_CHARS]
        return [(tables[len(begin)], begin)]

    return IndexKey(path, "prefix", 3, 1, (), spread)


def _key(node: Expression) -> Callable[[Constants], Hashable] | None:
    if isinstance(node, Slot):
        slot = node.number
        return None if node.instant else (lambda constants: constants[slot])
    if isinstance(node, Literal):
        key = key_of(node.value)
        return lambda _constants: key
    return None


def _under(table: Table, key: Callable[[Constants], Hashable]) -> Spread:
    return lambda constants: [(table, key(constants))]


# --- ranges --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Bound:
    path: Path
    of: Of
    op: Ordering
    slot: int
    number: int


def _bound(node: Expression, number: int) -> _Bound | None:
    if not isinstance(node, Compare) or node.op not in ORDERS:
        return None
    field, constant, op = node.left, node.right, cast("Ordering", node.op)
    if isinstance(field, Slot):
        field, constant, op = constant, field, cast("Ordering", MIRRORED[op])
    path = path_of(field)
    if path is None or not isinstance(constant, Slot):
        return None
    of: Of = "text" if constant.kind == "string" else "number"
    of = "instant" if constant.instant else of
    return _Bound(path, of, op, constant.number, number)


def _range(bounds: list[_Bound]) -> IndexKey:
    """Of several bounds on a field the first from below and the first from above are taken."""
    path, of = bounds[0].path, bounds[0].of
    lower = next((bound for bound in bounds if bound.op in (">", ">=")), None)
    upper = next((bound for bound in bounds if bound.op in ("<", "<=")), None)
    if lower is not None and upper is not None and of != "text":
        return IndexKey(path, "within", 4, 2, (), _cells(path, of, lower.slot, upper.slot))
    bound = bounds[0]
    table, slot = Table(path, bound.op, of), bound.slot
    if of == "instant":
        spread: Spread = lambda constants: [(table, constants[slot].ns)]  # noqa: E731
    else:
        spread = lambda constants: [(table, constants[slot])]  # noqa: E731
    return IndexKey(path, bound.op, 5, 1, (bound.number,), spread)


def _cells(path: Path, of: Of, lower: int, upper: int) -> Spread:
    """The line is cut into cells as wide as the smallest power of two above the range's width, so
    that the range lies in one or two of them. They are the same whatever else is in the index."""

    tables: dict[int, Table] = {}

    def spread(constants: Constants) -> list[Place]:
        low, high = (coordinate(constants[slot], of) for slot in (lower, upper))
        level = min(max(frexp(max(high - low, 0.0))[1], LEVEL_MIN), LEVEL_MAX)
        if high <= low:
            level = LEVEL_MIN
        scale = cell_scale(level)
        first, last = low * scale // 1.0, high * scale // 1.0
        table = tables.get(level)
        if table is None:
            table = tables[level] = Table(path, "within", of, level)
        return [(table, first)] if last <= first else [(table, first), (table, last)]

    return spread


_FAR = 2.0**899


def coordinate(value: object, of: Of) -> float:
    """A number or an instant as a double, rounded and cut off. That keeps the order (never turns it
    round), which is all that cells need: what is found in a cell is compared exactly."""
    number = cast("int | float", value.ns if of == "instant" else value)  # type: ignore[attr-defined]
    try:
        return min(max(float(number), -_FAR), _FAR)
    except OverflowError:
        return _FAR if number > 0 else -_FAR


def cell_scale(level: int) -> float:
    return float(2.0**-level)
