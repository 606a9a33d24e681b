"""A checked syntax tree to a Python function of the document and the constants.

The tree is a shape (see shape.py): its slots are filled from the constants, so that a million
filters of one shape are one function. Two kinds of functions come out. A *value* returns what an
expression is for a document (MISSING for a field that isn't there) or raises Failed. A *test*
returns True, False or, when it failed, None, and never raises. `&&` and `||` are Kleene's: a side
that decides the answer decides it whether the other one failed or not, in either order.

Invariant: names and constants are bound as Python values; no program text is ever built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from headgate.decide.filter.fast import ORDERS, Constants, Test, fast_comparison
from headgate.decide.filter.paths import Document, follow, path_of, step_into
from headgate.decide.filter.patterns import Pattern
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
    Slot,
    SlotList,
    children,
)
from headgate.decide.filter.values import (
    MISSING,
    Failed,
    compute,
    contains,
    double_of,
    equal,
    int_of,
    member,
    negative,
    ordered,
    size_of,
    string_of,
    timestamp_of,
)

Value = Callable[[Document, Constants], object]

_FUNCTIONS: dict[str, Callable[[object], object]] = {
    "size": size_of,
    "int": int_of,
    "double": double_of,
    "string": string_of,
    "timestamp": timestamp_of,
}


# --- conditions ----------------------------------------------------------------------------------


def condition(node: Expression) -> Test:
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
            return _guarded(lambda document, given: target(document, given) is not MISSING)
        case Conditional():
            return _conditional(node)
        case Call() if node.name not in _FUNCTIONS:
            return _text_test(node)
        case _:
            # A bare value is a condition that holds when it is true, and only then.
            bare = value(node)
            return _guarded(lambda document, given: bare(document, given) is True)


def _guarded(test: Callable[[Document, Constants], bool]) -> Test:
    def guarded(document: Document, given: Constants) -> bool | None:
        try:
            return test(document, given)
        except Failed:
            return None

    return guarded


def _all(tests: tuple[Test, ...]) -> Test:
    def conjunction(document: Document, given: Constants) -> bool | None:
        verdict: bool | None = True
        for test in tests:
            outcome = test(document, given)
            if outcome is False:
                return False
            if outcome is None:
                verdict = None
        return verdict

    return conjunction


def _any(tests: tuple[Test, ...]) -> Test:
    def disjunction(document: Document, given: Constants) -> bool | None:
        verdict: bool | None = False
        for test in tests:
            outcome = test(document, given)
            if outcome is True:
                return True
            if outcome is None:
                verdict = None
        return verdict

    return disjunction


def _negation(test: Test) -> Test:
    def negation(document: Document, given: Constants) -> bool | None:
        outcome = test(document, given)
        return None if outcome is None else not outcome

    return negation


def _conditional(node: Conditional) -> Test:
    test, then, otherwise = map(condition, (node.condition, node.then, node.otherwise))

    def chosen(document: Document, given: Constants) -> bool | None:
        outcome = test(document, given)
        if outcome is None:
            return None
        return then(document, given) if outcome else otherwise(document, given)

    return chosen


def _comparison(node: Compare) -> Test:
    if node.op == "!=":
        return _negation(_comparison(Compare("==", node.left, node.right)))
    if (fast := fast_comparison(node)) is not None:
        return fast
    left, right = value(node.left), value(node.right)
    if node.op == "==":
        return _guarded(
            lambda document, given: equal(left(document, given), right(document, given))
        )
    if node.op == "in":
        built = path_of(node.right) is None
        return _guarded(
            lambda document, given: member(
                left(document, given), right(document, given), instants=built
            )
        )
    order = ORDERS[node.op]
    return _guarded(
        lambda document, given: ordered(order, left(document, given), right(document, given))
    )


def _text_test(node: Call) -> Test:
    left, right = value(node.arguments[0]), value(node.arguments[1])
    if node.name == "matches":
        return _guarded(_pattern_test(left, Pattern(str(cast("Literal", node.arguments[1]).value))))
    if node.name == "contains":
        built = path_of(node.arguments[0]) is None
        return _guarded(
            lambda document, given: contains(
                left(document, given), right(document, given), instants=built
            )
        )
    begins = node.name == "startsWith"

    def affix(document: Document, given: Constants) -> bool:
        text, part = left(document, given), right(document, given)
        if type(text) is not str or type(part) is not str:
            return False
        return text.startswith(part) if begins else text.endswith(part)

    return _guarded(affix)


def _pattern_test(subject: Value, pattern: Pattern) -> Callable[[Document, Constants], bool]:
    def matches(document: Document, given: Constants) -> bool:
        text = subject(document, given)
        if type(text) is not str:
            return False
        found = pattern.found_in(text)
        if found is None:
            raise Failed
        return found

    return matches


# --- values --------------------------------------------------------------------------------------


def value(node: Expression) -> Value:
    function = _value(node)
    if isinstance(node, Literal) or not _is_constant(node):
        return function
    try:
        constant = function({}, ())
    except Failed:
        return function  # it fails on every document, and each failure is counted
    return lambda _document, _given: constant


def _is_constant(node: Expression) -> bool:
    if isinstance(node, Field | Slot | SlotList):
        return False
    return all(_is_constant(child) for child in children(node))


def _value(node: Expression) -> Value:  # one case per kind of node
    match node:
        case Slot():
            number = node.number
            return lambda _document, given: given[number]
        case Literal():
            literal = node.value
            return lambda _document, _given: literal
        case ListOf():
            items = tuple(value(item) for item in node.items)
            return lambda document, given: [item(document, given) for item in items]
        case Field() | Select() | Index():
            return _field(node)
        case Call() if node.name in _FUNCTIONS:
            function, argument = _FUNCTIONS[node.name], value(node.arguments[0])
            return lambda document, given: function(argument(document, given))
        case Negate():
            operand = value(node.operand)
            return lambda document, given: negative(operand(document, given))
        case Arithmetic():
            op, left, right = node.op, value(node.left), value(node.right)
            return lambda document, given: compute(
                op, left(document, given), right(document, given)
            )
        case Conditional():
            return _chosen_value(node)
        case _:
            return _as_value(condition(node))


def _as_value(test: Test) -> Value:
    def verdict(document: Document, given: Constants) -> bool:
        outcome = test(document, given)
        if outcome is None:
            raise Failed
        return outcome

    return verdict


def _chosen_value(node: Conditional) -> Value:
    test = _as_value(condition(node.condition))
    then, otherwise = value(node.then), value(node.otherwise)
    return lambda document, given: (then if test(document, given) else otherwise)(document, given)


def _field(node: Field | Select | Index) -> Value:
    path = path_of(node)
    if path is not None:
        read = follow(path)
        return lambda document, _given: read(document)
    # A field of what isn't itself on a plain path: `tags[i]`, `[a, b][0].c`.
    if isinstance(node, Select):
        inner, name = value(node.operand), node.name
        return lambda document, given: step_into(inner(document, given), name)
    operand, key = value(cast("Index", node).operand), value(cast("Index", node).key)
    return lambda document, given: step_into(operand(document, given), key(document, given))
