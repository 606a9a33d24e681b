"""Expressions and documents for property tests: so few names and values that they often meet."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from headgate.decide.filter import syntax as s

NAMES = ("a", "b", "c", "weird name", "in")
INTS = (-7, -1, 0, 1, 2, 5, 2**53, 2**53 + 1, s.INT_MAX, s.INT_MIN)
DOUBLES = (-0.5, 0.0, 0.5, 1.0, 5.0, float(2**53), 1e308, float(2**63))
TIMES = ("2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00", "2024-06-30T12:00:00.5Z")
TEXTS = ("", "a", "ab", "aab", "5", "-1", "0.5", "true", "é", "𝄞", 'q"\\\n`', *TIMES)
PATTERNS = ("a", "^a", "b$", "^a*b$", "(a|b)+", "[^a]", "^.{2}$", r"\d", "^$")

json_scalars = st.sampled_from((None, True, False, *INTS, *DOUBLES, *TEXTS, s.UINT_MAX))
json_values = st.recursive(
    json_scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=6,
)
documents: st.SearchStrategy[dict[str, Any]] = st.dictionaries(st.sampled_from(NAMES), json_values)

_Expressions = st.SearchStrategy[s.Expression]

_int_literals = st.sampled_from(INTS).map(lambda value: s.Literal("int", value))
_texts = st.sampled_from(TEXTS).map(lambda value: s.Literal("string", value))
_numbers = st.one_of(
    _int_literals,
    st.sampled_from((0, 5, s.UINT_MAX)).map(lambda value: s.Literal("uint", value)),
    st.sampled_from(DOUBLES).map(lambda value: s.Literal("double", value)),
)
_constants = st.sampled_from(
    (s.Literal("null", None), s.Literal("bool", True), s.Literal("bool", False))
)
literals: _Expressions = st.one_of(_numbers, _texts, _constants)
_fields: _Expressions = st.sampled_from(NAMES).map(s.Field)


def paths(keys: _Expressions = _int_literals | _texts) -> _Expressions:
    return st.recursive(
        _fields,
        lambda inner: (
            st.builds(s.Select, inner, st.sampled_from(NAMES)) | st.builds(s.Index, inner, keys)
        ),
        max_leaves=3,
    )


def _called(name: str, *arguments: _Expressions) -> _Expressions:
    return st.tuples(*arguments).map(lambda values: s.Call(name, values))


@st.composite
def conditions(draw: st.DrawFn, levels: int = 3) -> s.Expression:
    """Expressions that pass check(); `levels` bounds how deep they nest."""
    # Composite, because Hypothesis prints strategies, and this one would print as a small book.
    return draw(_conditions(levels))


@cache
def _conditions(levels: int) -> _Expressions:
    if levels == 0:
        return st.one_of(paths(), st.builds(s.Compare, _comparisons, paths(), literals))
    inner, value = conditions(levels - 1), values(levels - 1)
    text = paths() | _texts
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        st.builds(s.Compare, _comparisons, paths(), literals),
        st.builds(s.Compare, _comparisons, literals, paths()),
        st.builds(s.Compare, _comparisons, value, value),
        st.builds(s.Compare, st.just("in"), value, paths() | lists(levels - 1)),
        _called("contains", paths() | lists(levels - 1), literals | paths()),
        _called("startsWith", text, text),
        _called("endsWith", text, text),
        _called("matches", text, st.sampled_from(PATTERNS).map(lambda p: s.Literal("string", p))),
        st.builds(s.Has, paths()),
        st.builds(s.Not, inner),
        st.builds(s.And, several),
        st.builds(s.Or, several),
        st.builds(s.Conditional, inner, inner, inner),
        inner,
    )


def values(levels: int) -> _Expressions:
    if levels == 0:
        return st.one_of(paths(), literals)
    return st.one_of(
        paths(), literals, numbers(levels), texts(levels), times(), lists(levels - 1),
        conditions(levels - 1), paths(values(0).filter(_may_index)),
        st.builds(s.Conditional, conditions(levels - 1), values(levels - 1), values(levels - 1)),
    )  # fmt: skip


def numbers(levels: int) -> _Expressions:
    if levels == 0:
        return st.one_of(paths(), _numbers)
    inner = numbers(levels - 1)
    return st.one_of(
        st.builds(s.Arithmetic, st.sampled_from(s.ARITHMETIC_OPS), inner, inner),
        st.builds(s.Negate, inner),
        _called("size", paths() | _texts | lists(0)),
        _called("int", st.one_of(inner, _texts, times())),
        _called("double", inner | _texts),
    )


def texts(levels: int) -> _Expressions:
    plain = paths() | _texts
    return st.one_of(
        st.builds(s.Arithmetic, st.just("+"), plain, plain),
        _called("string", st.one_of(plain, numbers(levels - 1), st.just(s.Literal("bool", True)))),
    )


def times() -> _Expressions:
    moments = st.sampled_from(TIMES).map(lambda text: s.Literal("string", text))
    return _called("timestamp", moments | paths())


def lists(levels: int) -> _Expressions:
    items = literals if levels == 0 else values(levels - 1)
    return st.lists(items, max_size=3).map(lambda found: s.ListOf(tuple(found)))


_comparisons = st.sampled_from([op for op in s.COMPARE_OPS if op != "in"])


def _may_index(node: s.Expression) -> bool:
    return not isinstance(node, s.Literal) or node.kind in ("int", "uint", "double", "string")
