"""A checked syntax tree to a Python function of the document.

Two kinds of functions come out. A *value* returns what an expression is for a document (MISSING for
a field that isn't there) or raises Failed. A *condition* returns True, False or, when it failed,
None, and never raises. `&&` and `||` are Kleene's: a side that decides the answer decides it
whether the other one failed or not, in either order.

Invariant: names and constants are bound as Python values; no program text is ever built. The fast
forms below are shortcuts for the general ones and must give the same answer on every document.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

from headgate.decide.filter.automaton import MAX_SUBJECT_CHARS, Pattern
from headgate.decide.filter.paths import Document, Value, follow, path_of, step_into
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
    children,
)
from headgate.decide.filter.values import (
    MISSING,
    Failed,
    Order,
    compute,
    contains,
    double_of,
    equal,
    int_of,
    key_of,
    member,
    negative,
    ordered,
    size_of,
    string_of,
    timestamp_of,
)

Condition = Callable[[Document], bool | None]

ORDERS: dict[str, Order] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_FUNCTIONS: dict[str, Callable[[object], object]] = {
    "size": size_of,
    "int": int_of,
    "double": double_of,
    "string": string_of,
    "timestamp": timestamp_of,
}


# --- conditions ----------------------------------------------------------------------------------


def condition(node: Expression) -> Condition:
    match node:
        case And():
            return _all(tuple(condition(operand) for operand in node.operands))
        case Or():
            return _any(tuple(condition(operand) for operand in node.operands))
        case Not():
            return _negation(condition(node.operand))
        case Compare():
            return _comparison(node)
        case Has():
            target = value(node.target)
            return _guarded(lambda document: target(document) is not MISSING)
        case Conditional():
            return _conditional(node)
        case Call() if node.name not in _FUNCTIONS:
            return _text_test(node)
        case _:
            # A bare value is a condition that holds when it is true, and only then.
            bare = value(node)
            return _guarded(lambda document: bare(document) is True)


def _guarded(test: Callable[[Document], bool]) -> Condition:
    def guarded(document: Document) -> bool | None:
        try:
            return test(document)
        except Failed:
            return None

    return guarded


def _all(tests: tuple[Condition, ...]) -> Condition:
    def conjunction(document: Document) -> bool | None:
        verdict: bool | None = True
        for test in tests:
            outcome = test(document)
            if outcome is False:
                return False
            if outcome is None:
                verdict = None
        return verdict

    return conjunction


def _any(tests: tuple[Condition, ...]) -> Condition:
    def disjunction(document: Document) -> bool | None:
        verdict: bool | None = False
        for test in tests:
            outcome = test(document)
            if outcome is True:
                return True
            if outcome is None:
                verdict = None
        return verdict

    return disjunction


def _negation(test: Condition) -> Condition:
    def negation(document: Document) -> bool | None:
        outcome = test(document)
        return None if outcome is None else not outcome

    return negation


def _conditional(node: Conditional) -> Condition:
    test, then, otherwise = map(condition, (node.condition, node.then, node.otherwise))

    def chosen(document: Document) -> bool | None:
        outcome = test(document)
        if outcome is None:
            return None
        return then(document) if outcome else otherwise(document)

    return chosen


def _comparison(node: Compare) -> Condition:
    if node.op == "!=":
        return _negation(_comparison(Compare("==", node.left, node.right)))
    if (fast := _fast_comparison(node)) is not None:
        return fast
    left, right = value(node.left), value(node.right)
    if node.op == "==":
        return _guarded(lambda document: equal(left(document), right(document)))
    if node.op == "in":
        return _guarded(lambda document: member(left(document), right(document)))
    order = ORDERS[node.op]
    return _guarded(lambda document: ordered(order, left(document), right(document)))


def _text_test(node: Call) -> Condition:
    left, right = value(node.arguments[0]), value(node.arguments[1])
    if node.name == "matches":
        return _guarded(_pattern_test(left, Pattern(str(cast("Literal", node.arguments[1]).value))))
    if node.name == "contains":
        return _guarded(lambda document: contains(left(document), right(document)))
    begins = node.name == "startsWith"

    def affix(document: Document) -> bool:
        text, part = left(document), right(document)
        if type(text) is not str or type(part) is not str:
            return False
        return text.startswith(part) if begins else text.endswith(part)

    return _guarded(affix)


def _pattern_test(subject: Value, pattern: Pattern) -> Callable[[Document], bool]:
    def matches(document: Document) -> bool:
        text = subject(document)
        if type(text) is not str:
            return False
        if len(text) > MAX_SUBJECT_CHARS:
            raise Failed
        return pattern.found_in(text)

    return matches


# --- fast forms: a field of the document against a constant --------------------------------------


def _fast_comparison(node: Compare) -> Condition | None:
    """The comparisons that most filters are made of, without the general machinery."""
    left, op, right = node.left, node.op, node.right
    if op in _MIRRORED and isinstance(left, Literal):
        left, op, right = right, cast("Any", _MIRRORED[op]), left
    if path_of(left) is None:
        return None
    if op == "in":
        return _fast_membership(value(left), right)
    if not isinstance(right, Literal):
        return None
    constant = right.value
    if op == "==":
        return _fast_equality(value(left), constant)
    return _fast_order(value(left), ORDERS[op], constant)


def _fast_equality(field: Value, constant: object) -> Condition:
    if constant is None or type(constant) is bool:
        return lambda document: field(document) is constant
    if type(constant) is str:
        return lambda document: field(document) == constant

    def number(document: Document) -> bool:
        found = field(document)
        return found == constant and found is not True and found is not False

    return number


def _fast_order(field: Value, order: Order, constant: Any) -> Condition | None:
    if type(constant) is str:

        def text(document: Document) -> bool:
            found = field(document)
            return type(found) is str and order(found, constant)

        return text
    if type(constant) is int or type(constant) is float:

        def number(document: Document) -> bool:
            found = field(document)
            kind = type(found)
            return (kind is int or kind is float) and order(found, constant)

        return number
    return None


def _fast_membership(field: Value, items: Expression) -> Condition | None:
    if not isinstance(items, ListOf):
        return None
    if not all(isinstance(item, Literal) for item in items.items):
        return None
    keys = frozenset(key_of(cast("Literal", item).value) for item in items.items)

    def listed(document: Document) -> bool:
        key = key_of(field(document))
        return key is not None and key in keys

    return listed


# --- values --------------------------------------------------------------------------------------


def value(node: Expression) -> Value:
    function = _value(node)
    if isinstance(node, Literal) or not _is_constant(node):
        return function
    try:
        constant = function({})
    except Failed:
        return function  # it fails on every document, and each failure is counted
    return lambda _document: constant


def _is_constant(node: Expression) -> bool:
    return not isinstance(node, Field) and all(_is_constant(child) for child in children(node))


def _value(node: Expression) -> Value:
    match node:
        case Literal():
            literal = node.value
            return lambda _document: literal
        case ListOf():
            items = tuple(value(item) for item in node.items)
            return lambda document: [item(document) for item in items]
        case Field() | Select() | Index():
            path = path_of(node)
            return follow(path) if path is not None else _lookup(node)
        case Call() if node.name in _FUNCTIONS:
            function, argument = _FUNCTIONS[node.name], value(node.arguments[0])
            return lambda document: function(argument(document))
        case Negate():
            operand = value(node.operand)
            return lambda document: negative(operand(document))
        case Arithmetic():
            op, left, right = node.op, value(node.left), value(node.right)
            return lambda document: compute(op, left(document), right(document))
        case Conditional():
            return _chosen_value(node)
        case _:
            return _as_value(condition(node))


def _as_value(test: Condition) -> Value:
    def verdict(document: Document) -> bool:
        outcome = test(document)
        if outcome is None:
            raise Failed
        return outcome

    return verdict


def _chosen_value(node: Conditional) -> Value:
    test = _as_value(condition(node.condition))
    then, otherwise = value(node.then), value(node.otherwise)
    return lambda document: then(document) if test(document) else otherwise(document)


def _lookup(node: Field | Select | Index) -> Value:
    """A field of what isn't itself on a plain path: `tags[i]`, `[a, b][0].c`."""
    if isinstance(node, Select):
        inner, name = value(node.operand), node.name
        return lambda document: step_into(inner(document), name)
    operand, key = value(cast("Index", node).operand), value(cast("Index", node).key)
    return lambda document: step_into(operand(document), key(document))
