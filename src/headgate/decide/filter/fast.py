"""The comparisons that most filters are made of: a field of the document against a constant.

Invariant: a shortcut, which gives the same answer as the general form in compile.py on every
document, and never fails.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

from headgate.decide.filter.paths import Document, Path, Reader, follow, path_of
from headgate.decide.filter.syntax import Compare, CompareOp, Expression, Literal, Slot, SlotList
from headgate.decide.filter.values import Order, key_of

Constants = tuple[Any, ...]
"""What a shape's slots stand for, in their order."""

Test = Callable[[Document, Constants], bool | None]

ORDERS: dict[str, Order] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MIRRORED: dict[str, CompareOp] = {
    "==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<=",
}  # fmt: skip
"""What a comparison becomes when its sides change places."""


def fast_comparison(node: Compare) -> Test | None:
    """The comparisons that most filters are made of, without the general machinery."""
    left, op, right = node.left, node.op, node.right
    if op in MIRRORED and isinstance(left, Literal):
        left, op, right = right, MIRRORED[op], left
    path = path_of(left)
    if path is None:
        return None
    if op == "in":
        return _fast_membership(follow(path), right)
    if not isinstance(right, Slot):
        return _is_exactly(follow(path), right) if op == "==" else None
    if right.instant:
        return None
    if op == "==":
        return _fast_equality(follow(path), right)
    return _fast_order(path, ORDERS[op], right)


def _is_exactly(read: Reader, right: Expression) -> Test | None:
    if not isinstance(right, Literal) or right.kind not in ("bool", "null"):
        return None
    constant = right.value
    return lambda document, _given: read(document) is constant


def _fast_equality(read: Reader, slot: Slot) -> Test:
    number = slot.number
    if slot.kind == "string":
        return lambda document, given: read(document) == given[number]

    def same_number(document: Document, given: Constants) -> bool:
        found = read(document)
        return found == given[number] and found is not True and found is not False

    return same_number


def _fast_order(path: Path, order: Order, slot: Slot) -> Test:
    number = slot.number
    if len(path) == 1 and slot.kind != "string":
        return _plain_order(cast("str", path[0]), order, number)
    read = follow(path)
    if slot.kind == "string":

        def text(document: Document, given: Constants) -> bool:
            found = read(document)
            return type(found) is str and order(found, given[number])

        return text

    def numeric(document: Document, given: Constants) -> bool:
        found = read(document)
        kind = type(found)
        return (kind is int or kind is float) and order(found, given[number])

    return numeric


def _plain_order(name: str, order: Order, number: int) -> Test:
    """The commonest of all that is asked, without the call of a reader."""

    def numeric(document: Document, given: Constants) -> bool:
        found = document.get(name)
        kind = type(found)
        return (kind is int or kind is float) and order(found, given[number])

    return numeric


def _fast_membership(read: Reader, items: Expression) -> Test | None:
    if not isinstance(items, SlotList):
        return None
    number = items.number

    def listed(document: Document, given: Constants) -> bool:
        key = key_of(read(document))
        return key is not None and key in given[number]

    return listed
