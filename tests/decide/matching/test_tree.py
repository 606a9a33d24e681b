"""The index agrees with asking every filter in turn, also where its structures have to divide,
split and lead on: with bounds this small, a handful of subscriptions is enough for all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headgate.decide.filter import syntax as s
from headgate.decide.filter.unparse import unparse
from headgate.decide.matching import index as index_module
from headgate.decide.matching import node, sharded
from headgate.decide.matching.index import MatchIndex
from headgate.model.subscription import Subscription
from tests.decide.filter.generated import conditions, documents
from tests.decide.filter.test_language import FAILS, FLIGHT, MATCH, NO_MATCH
from tests.decide.filter.test_matching import brute_force, comparable, record

IDS = [f"s{number}" for number in range(40)]
NUMBERS = (-(2**53), -1, 0, 1, 2, 5, 2**53, 2**53 + 1, 2**63 - 1)
DOUBLES = (-1.5, -0.0, 0.5, 2.0, 5.0, float(2**53), 1e300)
TEXTS = ("", "a", "ab", "abc", "a" * 20, "é", "2024-01-01T00:00:00Z")
TIMES = ("2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00", "2024-06-30T12:00:00.5Z")


@contextmanager
def small_bounds() -> Iterator[None]:
    bounds: list[tuple[Any, str, int]] = [
        (node, "FEW", 2),
        (sharded, "SHARD_SIZE", 2),
        (sharded, "FEW", 4),
        (sharded, "GROUPS", 4),
        (sharded, "BLOCK_SIZE", 4),
        (index_module, "CHANGES_AT_ONCE", 3),
    ]
    with ExitStack() as stack:
        for module, name, value in bounds:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


fields: st.SearchStrategy[Any] = st.sampled_from(
    [
        s.Field("a"),
        s.Field("b"),
        s.Select(s.Field("c"), "d"),
        s.Index(s.Field("c"), s.Literal("int", 0)),
    ]
)
numbers = st.sampled_from(
    [s.Literal("int", value) for value in NUMBERS]
    + [s.Literal("double", value) for value in DOUBLES]
)
texts = st.sampled_from([s.Literal("string", value) for value in TEXTS])
constants = st.sampled_from([s.Literal("null", None), s.Literal("bool", True)])
times = st.sampled_from(TIMES).map(lambda text: s.Call("timestamp", (s.Literal("string", text),)))
scalars: st.SearchStrategy[Any] = st.one_of(numbers, texts, constants)
orders = st.sampled_from(["<", "<=", ">", ">="])
bounds: st.SearchStrategy[Any] = st.one_of(numbers, texts, times)


def within(field: Any, low: Any, high: Any) -> s.Expression:
    return s.And((s.Compare(">=", field, low), s.Compare("<", field, high)))


probing = st.one_of(
    st.builds(s.Compare, st.just("=="), fields, scalars),
    st.builds(s.Compare, st.just("=="), scalars, fields),
    st.builds(s.Compare, orders, fields, bounds),
    st.builds(s.Compare, orders, bounds, fields),
    st.builds(within, fields, numbers, numbers),
    st.builds(within, fields, times, times),
    st.builds(
        s.Compare,
        st.just("in"),
        fields,
        st.lists(scalars, max_size=4).map(lambda items: s.ListOf(tuple(items))),
    ),
    st.builds(s.Compare, st.just("in"), scalars, fields),
    st.builds(lambda field, part: s.Call("contains", (field, part)), fields, scalars),
    st.builds(lambda field, part: s.Call("startsWith", (field, part)), fields, texts),
)
joined = st.lists(probing | conditions(1), min_size=1, max_size=4).map(
    lambda parts: parts[0] if len(parts) == 1 else s.And(tuple(parts))
)
wheres = st.one_of(
    probing,
    joined,
    st.lists(joined, min_size=2, max_size=4).map(tuple).map(s.Or),
    st.builds(
        lambda alternatives, rest: s.And((s.Or(tuple(alternatives)), rest)),
        st.lists(probing, min_size=2, max_size=3),
        conditions(1),
    ),
).map(unparse)


@st.composite
def subscriptions(draw: st.DrawFn) -> Subscription:
    # Composite, because Hypothesis prints strategies, and this one would print as a small book.
    gateway_id = draw(st.sampled_from(["g1", "g2"]))
    where = draw(st.none() | wheres)
    return Subscription(draw(st.sampled_from(IDS)), gateway_id, "flights", where)


values: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, False, *NUMBERS, *DOUBLES, *TEXTS, *TIMES, 2**64 - 1, "abcd"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abd"), inner),
    max_leaves=4,
)
dense: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {}, optional={"a": values, "b": values, "c": values, "d": values}
)


@settings(max_examples=400, deadline=None)
@given(st.lists(subscriptions(), max_size=30, unique_by=lambda one: one.id), dense | documents)
def test_matches_what_brute_force_matches(
    live: list[Subscription], document: dict[str, Any]
) -> None:
    with small_bounds():
        matched = MatchIndex.of(live).match(record(), document)
    assert comparable(matched) == brute_force(live, "flights", document)


class PatchedTree(RuleBasedStateMachine):
    """Any sequence of patches gives what building afresh gives, and leaves older indexes alone."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._stack.enter_context(small_bounds())
        self.live: dict[str, Subscription] = {}
        self.index = MatchIndex.empty()
        self.older: list[tuple[MatchIndex, dict[str, Subscription]]] = []

    def teardown(self) -> None:
        self._stack.close()

    @rule(
        upserts=st.lists(subscriptions(), max_size=12),
        removals=st.lists(st.sampled_from(IDS), max_size=6),
    )
    def patch(self, upserts: list[Subscription], removals: list[str]) -> None:
        self.older = [*self.older[-1:], (self.index, dict(self.live))]
        self.index = self.index.patched(upserts, removals)
        for id_ in removals:
            self.live.pop(id_, None)
        self.live.update((one.id, one) for one in upserts)

    @rule(document=dense)
    def match(self, document: dict[str, Any]) -> None:
        for index, live in [*self.older, (self.index, self.live)]:
            matched = index.match(record(), document)
            assert comparable(matched) == brute_force(live.values(), "flights", document)

    @rule()
    def remove_everything(self) -> None:
        self.index = self.index.patched([], list(self.live))
        self.live = {}
        assert self.index.topics() == frozenset()

    @invariant()
    def knows_what_it_holds(self) -> None:
        assert len(self.index) == len(self.live)
        assert all(self.index.subscription(id_) == one for id_, one in self.live.items())


PatchedTree.TestCase.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
test_patching = PatchedTree.TestCase


def sub(number: int, where: str) -> Subscription:
    return Subscription(id=f"s{number}", gateway_id="g1", topic="flights", where=where)


# Every filter gets `&& 1 / 0 == 1`, which fails wherever it is asked: the failures count how many
# filters were.
LOOKED_UP = {
    "equality": ("a == {n}", {"a": 7}, 1),
    "one of several values": ("a in [{n}, {n}.5, 100000]", {"a": 7}, 1),
    "two equalities": ('b == "eu" && a == {n}', {"a": 7, "b": "eu"}, 1),
    "an element": ('"t{n}" in a', {"a": ["t7", "t7", "t8"]}, 2),
    "a field of an object": ('"t{n}" in a', {"a": {"t7": 0}}, 1),
    "contains": ('a.contains("t{n}")', {"a": ["t7"]}, 1),
    "a prefix": ('a.startsWith("t{n}/")', {"a": "t7/x"}, 1),
    "a prefix behind an equality": ('b == 1 && a.startsWith("t{n}/")', {"a": "t7/x", "b": 1}, 1),
    "above": ("a > {n}", {"a": 7}, 7),
    "at least": ("a >= {n}", {"a": 7}, 8),
    "below": ("a < {n}", {"a": 997}, 2),
    "at most": ("a <= {n}", {"a": 997}, 3),
    "a range": ("a >= {n} && a < {n}.9", {"a": 7}, 1),
    "a range behind an equality": ("b == 1 && a >= {n} && a < {n}.9", {"a": 7, "b": 1}, 1),
    "a threshold behind an equality": ("b == 1 && a > {n}", {"a": 7, "b": 1}, 7),
    "texts": ('a < "t{n}"', {"a": "t998"}, 1),
    "instants": (
        'a > timestamp("2024-01-01T00:00:00.{n:03}Z")',
        {"a": "2024-01-01T01:00:00.007+01:00"},
        7,
    ),
    "alternatives": ("a == {n} || b == {n}", {"a": 7, "b": 8}, 2),
    "alternatives inside": ("(a == {n} || b == {n}) && c != 1", {"a": 7, "b": 7}, 1),
    "a nested field": ("a.b[0].c == {n}", {"a": {"b": [{"c": 7}]}}, 1),
}


@pytest.mark.parametrize(("where", "document", "asked"), LOOKED_UP.values(), ids=LOOKED_UP.keys())
def test_only_those_that_can_match_are_asked(
    where: str, document: dict[str, Any], asked: int
) -> None:
    live = [sub(n, f"({where.format(n=n)}) && 1 / 0 == 1") for n in range(1_000)]
    index = MatchIndex.of(live)
    assert index.match(record(), document).failures == asked
    assert len(found_in(index, document)) == asked
    one_by_one = MatchIndex.empty()
    for one in live:
        one_by_one = one_by_one.patched([one], [])
    assert len(found_in(one_by_one, document)) == asked


def found_in(index: MatchIndex, document: dict[str, Any]) -> set[str]:
    """The subscriptions that are looked at, whether they match or not."""
    ids: set[str] = set()
    pending: list[Any] = [index._topics["flights"].tree]
    while pending:
        here = pending.pop()
        if isinstance(here, node.Node):
            pending += here.stay.values()
            here.find(document, pending)
        elif isinstance(here, tuple):
            pending += here
        else:
            ids.add(here.subscription.id)
    return ids


SINGLE = {
    **{f"match: {name}": (where, True) for name, where in MATCH.items()},
    **{f"no match: {name}": (where, False) for name, where in NO_MATCH.items()},
    **{f"fails: {name}": (where, None) for name, where in FAILS.items()},
}


@pytest.mark.parametrize(("where", "verdict"), SINGLE.values(), ids=SINGLE.keys())
def test_the_index_keeps_every_promise_of_the_language(where: str, verdict: bool | None) -> None:
    matched = MatchIndex.of([sub(0, where)]).match(record(), FLIGHT)
    assert bool(matched.by_gateway) is bool(verdict)
    assert matched.failures == (verdict is None)


SELECTIVE = 'region == "eu" && icao == "{n}" && 1 / 0 == 1', 'icao == "{n}" && region == "eu"'


@pytest.mark.parametrize("where", SELECTIVE, ids=["common first", "rare first"])
def test_a_subscription_hangs_on_the_equality_that_tells_most_apart(where: str) -> None:
    index = MatchIndex.of([sub(n, where.format(n=n)) for n in range(50)])
    entries = [entry.part.index_keys[0].path for entry in index._entries.values()]  # type: ignore[union-attr]
    assert set(entries) == {("icao",)}


def test_a_thousand_fields_cost_a_document_only_those_it_has() -> None:
    index = MatchIndex.of([sub(n, f"f{n} == 1 && 1 / 0 == 1") for n in range(1_000)])
    assert index.match(record(), {"f7": 1, "f8": 2}).failures == 1


@pytest.mark.parametrize(
    "where",
    [
        f"a in {list(range(300))}",
        " || ".join(f"a == {n}" for n in range(20)),
        "a in [1, 2, 3] && b in [1, 2, 3]",
    ],
    ids=["a long list", "many alternatives", "two lists"],
)
def test_no_filter_hangs_in_thousands_of_places(where: str) -> None:
    index = MatchIndex.of([sub(0, where)])
    assert index.match(record(), {"a": 3, "b": 3}).by_gateway == {"g1": ("s0",)}
    assert index.match(record(), {"a": 999, "b": 3}).by_gateway == {}
    [entries] = index._entries.values()
    parts = entries if isinstance(entries, tuple) else (entries,)
    assert sum(index_key.keys for entry in parts for index_key in entry.part.index_keys) <= 256


numeric = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=300, deadline=None)
@given(numeric, numeric, numeric | st.integers())
@example(-1.7e308, 1.7e308, 0)
@example(5, 5, 5)
@example(2**63 - 2, 2**63 - 1, 2**63 - 1)
@example(0, 5e-324, 5e-324)
@example(0, 1e308, 2**2000)
@example(-1e308, 0, -(2**2000))
def test_a_range_of_any_width_finds_what_lies_in_it(low: Any, high: Any, at: Any) -> None:
    def literal(value: Any) -> s.Literal:
        return s.Literal("double" if isinstance(value, float) else "int", value)

    field = s.Field("a")
    inside = s.And((s.Compare(">=", field, literal(low)), s.Compare("<=", field, literal(high))))
    found = MatchIndex.of([sub(0, unparse(inside))]).match(record(), {"a": at}).by_gateway
    assert bool(found) is (low <= at <= high)
