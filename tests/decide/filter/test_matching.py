"""The index answers what asking every subscription in turn would answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headgate.decide.filter import syntax as s
from headgate.decide.filter.parser import parse
from headgate.decide.filter.unparse import unparse
from headgate.decide.matching.index import Matched, MatchIndex
from headgate.errors import InvalidFilter
from headgate.model.event import Record
from headgate.model.subscription import Subscription
from tests.decide.filter.generated import conditions, documents, json_values, literals, paths
from tests.decide.filter.naive import verdict


def record(topic: str = "flights") -> Record:
    return Record(topic, 0, 1, 1, "e1", None, "", "insert", b"", None, None, 0)


def sub(id_: str, where: str | None = None, *, gateway: str = "g1", topic: str = "flights") -> Any:
    return Subscription(id=id_, gateway_id=gateway, topic=topic, where=where)


def comparable(matched: Matched) -> tuple[dict[str, list[str]], int]:
    assert all(matched.by_gateway.values()), "a gateway without a match has no place in the answer"
    return {gateway: sorted(ids) for gateway, ids in matched.by_gateway.items()}, matched.failures


def brute_force(
    subscriptions: Iterable[Subscription], topic: str, document: object
) -> tuple[dict[str, list[str]], int]:
    by_gateway: dict[str, list[str]] = {}
    failures = 0
    for one in subscriptions:
        if one.topic != topic:
            continue
        outcome: bool | None = True
        if one.where is not None:
            is_object = isinstance(document, dict)
            outcome = verdict(parse(one.where), document) if is_object else False  # type: ignore[arg-type]
        failures += outcome is None
        if outcome:
            by_gateway.setdefault(one.gateway_id, []).append(one.id)
    return {gateway: sorted(ids) for gateway, ids in by_gateway.items()}, failures


equalities = st.builds(s.Compare, st.just("=="), paths(), literals)
wheres = st.none() | st.one_of(
    equalities,
    st.lists(equalities | conditions(1), min_size=2, max_size=3).map(tuple).map(s.And),
    conditions(2),
).map(unparse)
subscriptions = st.builds(
    Subscription,
    id=st.sampled_from([f"s{number}" for number in range(12)]),
    gateway_id=st.sampled_from(["g1", "g2"]),
    topic=st.sampled_from(["flights", "ships"]),
    where=wheres,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(subscriptions, max_size=10, unique_by=lambda one: one.id), documents | json_values)
def test_matches_what_brute_force_matches(live: list[Subscription], document: object) -> None:
    index = MatchIndex.of(live)
    for topic in ("flights", "ships", "nobody's"):
        matched = index.match(record(topic), document)
        assert comparable(matched) == brute_force(live, topic, document)


class PatchedIndex(RuleBasedStateMachine):
    """Any sequence of patches gives what building afresh gives, and leaves older indexes alone."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, Subscription] = {}
        self.index = MatchIndex.empty()
        self.older: list[tuple[MatchIndex, dict[str, Subscription]]] = []

    @rule(
        upserts=st.lists(subscriptions, max_size=4),
        removals=st.lists(st.sampled_from([f"s{number}" for number in range(12)]), max_size=4),
    )
    def patch(self, upserts: list[Subscription], removals: list[str]) -> None:
        self.older = [*self.older[-2:], (self.index, dict(self.live))]
        self.index = self.index.patched(upserts, removals)
        for id_ in removals:
            self.live.pop(id_, None)
        self.live.update((one.id, one) for one in upserts)

    @rule(document=documents)
    def match(self, document: dict[str, Any]) -> None:
        for index, live in [*self.older, (self.index, self.live)]:
            matched = index.match(record(), document)
            assert comparable(matched) == brute_force(live.values(), "flights", document)

    @invariant()
    def knows_its_topics(self) -> None:
        assert len(self.index) == len(self.live)
        assert self.index.topics() == {one.topic for one in self.live.values()}
        for topic in ("flights", "ships"):
            asked = any(one.topic == topic and one.where for one in self.live.values())
            assert self.index.needs_document(topic) is asked


PatchedIndex.TestCase.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)
test_patching = PatchedIndex.TestCase


def test_all_ids_of_a_gateway_come_together() -> None:
    index = MatchIndex.of(
        [
            sub("all"),
            sub("anchored", 'icao == "4b1806"'),
            sub("verified", 'icao == "4b1806" && altitude > 100'),
            sub("scanned", "altitude > 100"),
            sub("elsewhere", gateway="g2"),
            sub("other value", 'icao == "000000"'),
            sub("other topic", topic="ships"),
            sub("failing", "nothing + 1 > 0"),
            sub("anchored and failing", 'icao == "4b1806" && nothing + 1 > 0'),
        ]
    )
    matched = index.match(record(), {"icao": "4b1806", "altitude": 200})
    assert comparable(matched) == (
        {"g1": ["all", "anchored", "scanned", "verified"], "g2": ["elsewhere"]},
        2,
    )


EQUAL = {
    "int and double": ("a == 5", 5.0, True),
    "double and int": ("a == 5.0", 5, True),
    "large integers": ("a == 9007199254740993", float(2**53), False),
    "true and 1": ("a == 1", True, False),
    "1 and true": ("a == true", 1, False),
    "null": ("a == null", None, True),
    "null and false": ("a == null", False, False),
    "text and number": ('a == "5"', 5, False),
    "list": ("a == 5", [5], False),
    "object": ("a == 5", {"a": 5}, False),
    "nested": ("a.b == 5", {"b": 5}, True),
    "element": ("a[1] == 5", [4, 5], True),
    "literal first": ("5 == a", 5, True),
    "minus zero": ("a == 0", -0.0, True),
}


@pytest.mark.parametrize(("where", "value", "holds"), EQUAL.values(), ids=EQUAL.keys())
def test_hashed_equality_is_the_language_s(where: str, value: object, holds: bool) -> None:
    matched = MatchIndex.of([sub("s", where)]).match(record(), {"a": value})
    assert matched.by_gateway == ({"g1": ("s",)} if holds else {})


def test_a_missing_anchor_is_no_match_and_no_failure() -> None:
    index = MatchIndex.of([sub("s", "a == 5 && b + 1 > 0"), sub("n", "a == null")])
    assert index.match(record(), {}) == Matched({}, 0)


@pytest.mark.parametrize("altitude", [50, 200])
def test_all_that_is_joined_to_the_anchor_is_asked_wherever_it_stands(altitude: int) -> None:
    index = MatchIndex.of(
        [
            sub("before", 'altitude > 100 && icao == "4b1806"'),
            sub("behind", 'icao == "4b1806" && altitude > 100'),
            sub("around", 'altitude > 10 && (icao == "4b1806" && altitude > 100)'),
        ]
    )
    matched = index.match(record(), {"icao": "4b1806", "altitude": altitude})
    assert len(matched.by_gateway.get("g1", ())) == (3 if altitude > 100 else 0)


@pytest.mark.parametrize("document", [None, 5, "x", [{"a": 5}], False], ids=repr)
def test_what_is_no_object_matches_only_subscriptions_without_a_filter(document: object) -> None:
    index = MatchIndex.of([sub("all"), sub("true", "true"), sub("not 5", "a != 5")])
    assert index.match(record(), document) == Matched({"g1": ("all",)}, 0)


def test_the_document_is_needed_only_where_a_filter_is() -> None:
    index = MatchIndex.of([sub("all"), sub("some", "a == 1", topic="ships")])
    assert not index.needs_document("flights")
    assert index.needs_document("ships")
    assert not index.needs_document("nobody's")
    assert not index.patched([sub("some", topic="ships")], []).needs_document("ships")


def test_an_invalid_filter_is_refused_and_changes_nothing() -> None:
    index = MatchIndex.of([sub("s", "a == 1")])
    with pytest.raises(InvalidFilter) as caught:
        index.patched([sub("fine"), sub("broken", "a ==")], ["s"])
    assert caught.value.details["subscription"] == "broken"
    assert caught.value.details["position"] == 4
    assert index.match(record(), {"a": 1}) == Matched({"g1": ("s",)}, 0)


@pytest.mark.parametrize("where", [None, "a == 1", "a > 0"], ids=str)
def test_a_patch_leaves_the_index_it_came_from_alone(where: str | None) -> None:
    empty = MatchIndex.empty()
    one = empty.patched([sub("s1", where)], [])
    two = one.patched([sub("s2", where)], [])
    none = two.patched([], ["s1", "s2"])
    found = [index.match(record(), {"a": 1}).by_gateway for index in (empty, one, two, none)]
    assert found == [{}, {"g1": ("s1",)}, {"g1": ("s1", "s2")}, {}]
    # What an index believes it holds decides what a later patch of it does.
    assert one.patched([], ["s1"]).match(record(), {"a": 1}).by_gateway == {}
    assert empty.patched([sub("s1", where)], []).topics() == {"flights"}


def test_an_upsert_wins_over_a_removal_of_the_same_id() -> None:
    index = MatchIndex.of([sub("s", "a == 1")]).patched([sub("s", "a == 2")], ["s"])
    assert index.match(record(), {"a": 1}).by_gateway == {}
    assert index.match(record(), {"a": 2}).by_gateway == {"g1": ("s",)}


def test_a_patch_that_changes_nothing_is_the_same_index() -> None:
    index = MatchIndex.of([sub("s", "a == 1")])
    assert index.patched([sub("s", "a == 1")], ["unknown"]) is index


def test_an_answer_may_be_changed_by_its_receiver() -> None:
    index = MatchIndex.of([sub("s")])
    index.match(record(), None).by_gateway.clear()
    assert index.match(record(), None) == Matched({"g1": ("s",)}, 0)


def test_many_subscriptions_on_one_field_are_not_asked_one_by_one() -> None:
    many = [sub(f"s{number}", f"a == {number} && 1 / 0 == 1") for number in range(2_000)]
    index = MatchIndex.of(many)
    # Every filter that is asked fails, so the failures count how many were.
    assert index.match(record(), {"a": 7}).failures == 1
    assert index.match(record(), {"a": -7}).failures == 0
