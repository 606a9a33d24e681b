"""Which collections a filter excludes, whatever their documents are."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.connectors.whole_collection import concerned
from headgate.decide.filter import syntax as s
from headgate.decide.filter.plan import compile_filter, filter_of
from headgate.decide.filter.record_fields import with_record_fields
from headgate.decide.filter.unparse import unparse
from headgate.decide.matching.index import MatchIndex
from headgate.model.event import Op, Record
from headgate.model.subscription import Subscription
from tests.decide.filter.generated import TEXTS, conditions, documents
from tests.decide.filter.naive import verdict

CASES = {
    "no filter": (None, False),
    "that collection": ('_collection == "shop.orders"', False),
    "another one": ('_collection == "shop.carts"', True),
    "one of several": ('_collection in ["shop.carts", "shop.orders"]', False),
    "none of several": ('_collection in ["a", "b"]', True),
    "a prefix": ('_collection.startsWith("shop.")', False),
    "another prefix": ('_collection.startsWith("crm.")', True),
    "a pattern": ('_collection.matches("^shop[.]")', False),
    "all but it": ('_collection != "shop.orders"', True),
    "all but another": ('!(_collection == "shop.carts")', False),
    "one of two others": ('_collection == "a" || _collection == "b"', True),
    "one of two": ('_collection == "a" || _collection == "shop.orders"', False),
    "with a field": ('_collection == "shop.orders" && total > 100', False),
    "another with a field": ('total > 100 && _collection == "shop.carts"', True),
    "in parentheses": ('total > 1 && (_collection == "a" && open)', True),
    "a field alone": ("total > 100", False),
    "the key": ('_key == "7"', False),
    "the key of another": ('_key == "7" && _collection == "shop.carts"', True),
    "either it or a field": ('_collection == "shop.carts" || total > 100', False),
    "an alternative each": ('_collection == "a" && x == 1 || _collection == "b" && x == 2', False),
    "compared with a field": ("_collection == kind", False),
    "a choice": ('_collection == "a" ? x : y', False),
    "what fails": ("size(_collection) / 0 == 1", False),
    "what fails beside what is false": ('size(_collection) / 0 == 1 && _collection == "a"', True),
    "never": ("1 == 2", True),
    "a part of it": ('_collection.x == "a"', True),
    "that there is one": ("has(_collection)", False),
    "that there is none": ("!has(_collection)", True),
}


@pytest.mark.parametrize(("where", "excluded"), CASES.values(), ids=CASES)
def test_a_filter_excludes_a_collection(where: str | None, excluded: bool) -> None:
    assert compile_filter(where).excludes("shop.orders") is excluded
    index = MatchIndex.of([Subscription("s", "g", "t", where)])
    matched = index.match(about("shop.orders"), None)
    assert matched.by_gateway == ({} if excluded else {"g": ("s",)})
    assert matched.failures == 0


def about(collection: str, op: Op = "drop") -> Record:
    return Record("t", 0, 1, 1, "e", None, collection, op, b"null", None, None, 0)


def test_the_same_record_in_another_partition_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes a look at every subscription, which are many."""
    index = MatchIndex.of([Subscription("one", "g", "t", "total > 5")])
    asked: list[tuple[str, ...]] = []
    look = MatchIndex._not_excluding

    def counted(self: MatchIndex, topic: str, collections: Any) -> dict[str, tuple[str, ...]]:
        asked.append((topic, *collections))
        return look(self, topic, collections)

    monkeypatch.setattr(MatchIndex, "_not_excluding", counted)
    for partition in range(3):
        record = msgspec.structs.replace(about("a"), partition=partition)
        assert index.match(record, None).by_gateway == {"g": ("one",)}
    index.match(about("b"), None)
    assert asked == [("t", "a"), ("t", "b")]
    more = index.patched([Subscription("two", "g", "t")], ())
    assert sorted(more.match(about("b"), None).by_gateway["g"]) == ["one", "two"]


def test_a_rename_concerns_who_wants_either_name() -> None:
    wheres = {"one": "a", "other": "b", "third": "c"}
    index = MatchIndex.of(
        [Subscription(one, "g", "t", f'_collection == "{name}"') for one, name in wheres.items()]
    )
    renamed = msgspec.structs.replace(about("a", "rename"), document=b'{"to":"b"}')
    assert {one: set(ids) for one, ids in index.match(renamed, None).by_gateway.items()} == {
        "g": {"one", "other"}
    }
    for where, excluded in (('_collection != "a"', False), ('_collection == "c"', True)):
        assert compile_filter(where).excludes(*concerned(renamed)) is excluded


@pytest.mark.parametrize("op", ["truncate", "drop", "rename"])
def test_what_is_about_a_whole_collection_concerns_every_shard(op: Op) -> None:
    targets = [Subscription(f"t{n}", "g", "t", "total > 5", shard=(3, n)) for n in range(3)]
    others = [
        Subscription("all", "h", "t"),
        Subscription("other", "h", "t", '_collection == "b"'),
        Subscription("elsewhere", "h", "another topic"),
    ]
    index = MatchIndex.of([*targets, *others])
    found = index.match(about("a", op), None).by_gateway
    assert {gateway: sorted(ids) for gateway, ids in found.items()} == {
        "g": ["t0", "t1", "t2"],
        "h": ["all"],
    }
    assert index.match(replaced(about("a", op), topic="nobody's"), None).by_gateway == {}


def replaced(record: Record, *, topic: str) -> Record:
    return Record(topic, *[getattr(record, name) for name in Record.__struct_fields__[1:]])


def test_a_record_has_its_key_and_its_collection_as_fields_unless_its_document_has() -> None:
    assert with_record_fields({"n": 1}, "k", "c") == {"n": 1, "_key": "k", "_collection": "c"}
    assert with_record_fields({"_key": 1, "_collection": None}, "k", "c") == {
        "_key": 1,
        "_collection": None,
    }
    assert with_record_fields({}, None, "") == {}
    assert with_record_fields(None, "k", "c") is None
    assert with_record_fields([1], "k", "c") == [1]


# --- against asking in the plainest way -----------------------------------------------------------


def renamed(node: Any) -> Any:
    """The same expression with `_collection` for the field `a`."""
    if isinstance(node, s.Field):
        return s.Field("_collection" if node.name == "a" else node.name)
    if isinstance(node, tuple):
        return tuple(renamed(one) for one in node)
    if isinstance(node, s.Node):
        parts = {one.name: renamed(getattr(node, one.name)) for one in fields(node)}
        return replace(node, **parts)
    return node


def names(node: Any) -> set[str]:
    if isinstance(node, s.Field):
        return {node.name}
    parts = node if isinstance(node, tuple) else ()
    if isinstance(node, s.Node):
        parts = tuple(getattr(node, one.name) for one in fields(node))
    return set().union(*map(names, parts))


def naively_excluded(node: s.Expression, collection: str) -> bool:
    if isinstance(node, s.And):
        return any(naively_excluded(one, collection) for one in node.operands)
    known = {"_collection": collection} if collection else {}
    return names(node) <= {"_collection"} and verdict(node, known) is False


expressions = st.one_of(
    conditions(2),
    st.lists(conditions(1), min_size=2, max_size=4).map(tuple).map(s.And),
    st.lists(conditions(0), min_size=2, max_size=4).map(tuple).map(s.And),
).map(renamed)
collections = st.sampled_from(("shop", *TEXTS))


@settings(max_examples=700, deadline=None)
@given(expressions, collections)
def test_what_is_excluded_is_what_the_plain_reading_says(
    expression: s.Expression, collection: str
) -> None:
    assert filter_of(expression).excludes(collection) is naively_excluded(expression, collection)


@settings(max_examples=700, deadline=None)
@given(expressions, collections, documents)
def test_no_document_of_a_collection_that_is_excluded_matches(
    expression: s.Expression, collection: str, document: dict[str, Any]
) -> None:
    """The rule may let too much through; it never hides what is about a match."""
    document.pop("_collection", None)
    made = filter_of(expression)
    if made.excludes(collection):
        assert not made.matches(with_record_fields(document, None, collection))


wheres = st.none() | expressions.map(unparse)
subscriptions = st.builds(
    Subscription,
    st.sampled_from("abcdefgh"),
    st.sampled_from(["g1", "g2"]),
    st.sampled_from(["t", "t", "u"]),
    wheres,
    shard=st.none() | st.sampled_from([(2, 0), (2, 1), (3, 2)]),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(subscriptions, max_size=6), st.sets(st.sampled_from("abcdefgh"))),
        max_size=3,
    ),
    collections,
)
def test_an_index_leaves_out_those_that_exclude_the_collection_and_nobody_else(
    patches: list[tuple[list[Subscription], set[str]]], collection: str
) -> None:
    index = MatchIndex.empty()
    live: dict[str, Subscription] = {}
    for upserts, removals in patches:
        index = index.patched(upserts, removals)
        for gone in removals:
            live.pop(gone, None)
        live |= {one.id: one for one in upserts}
    found = index.match(about(collection), None)
    wanted = [
        one
        for one in live.values()
        if one.topic == "t" and not compile_filter(one.where).excludes(collection)
    ]
    assert sorted(
        (gateway, name) for gateway, ids in found.by_gateway.items() for name in ids
    ) == sorted((one.gateway_id, one.id) for one in wanted)
