"""Subscriptions to a shard: the index answers what asking each of them in turn would answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.groups.targets import belongs, target_of, targets_for
from headgate.decide.matching.index import MatchIndex
from headgate.decide.produce.placement import fnv1a_64, partition_of
from headgate.model.event import Record
from headgate.model.groups import MAX_TARGETS
from headgate.model.subscription import Subscription
from tests.decide.filter.test_matching import brute_force, comparable


def record(key: str | None, *, collection: str = "", event_id: str = "e1") -> Record:
    return Record("flights", 0, 1, 1, event_id, key, collection, "insert", b"", None, None, 0)


keys = st.sampled_from([None, "", "a", "b", "c", "d", "ü", "4ca9f1"])
shards = st.none() | st.sampled_from([(1, 0), (2, 0), (2, 1), (3, 0), (3, 2), (5, 4)])
wheres = st.sampled_from([None, "alt > 5", "alt == 7", "alt == 7 && type == 'a'", "1 / alt == 1"])


@st.composite
def subscriptions(draw: st.DrawFn) -> Subscription:
    return Subscription(
        draw(st.sampled_from("abcdefgh")),
        draw(st.sampled_from(["g1", "g2"])),
        draw(st.sampled_from(["flights", "trains"])),
        draw(wheres),
        shard=draw(shards),
    )


def naive(live: list[Subscription], of: Record, document: Any) -> tuple[dict[str, list[str]], int]:
    asked = []
    for one in live:
        text = f"{of.collection}/{of.event_id if of.key is None else of.key}".encode()
        if one.shard is None or fnv1a_64(text) % one.shard[0] == one.shard[1]:
            asked.append(one)
    return brute_force(asked, of.topic, document)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(subscriptions(), max_size=6), st.sets(st.sampled_from("abcdefgh")))
    ),
    keys,
    st.sampled_from(["", "planes"]),
    st.fixed_dictionaries({}, optional={"alt": st.integers(0, 8), "type": st.just("a")}),
)
def test_any_patches_give_what_asking_each_in_turn_gives(
    patches: list[tuple[list[Subscription], set[str]]],
    key: str | None,
    collection: str,
    document: dict[str, Any],
) -> None:
    index = MatchIndex.empty()
    live: dict[str, Subscription] = {}
    older = index, dict(live)
    of = record(key, collection=collection)
    for upserts, removals in patches:
        older = index, dict(live)
        index = index.patched(upserts, removals)
        for gone in removals:
            live.pop(gone, None)
        live |= {one.id: one for one in upserts}
    for known, subscribed in ((index, live), older):
        expected = naive(list(subscribed.values()), of, document)
        assert comparable(known.match(of, document)) == expected
        assert known.topics() == {one.topic for one in subscribed.values()}
        assert known.needs_document("flights") == any(
            one.where is not None and one.topic == "flights" for one in subscribed.values()
        )


def test_every_record_belongs_to_exactly_one_target() -> None:
    for number in range(200):
        of = record(f"key-{number}")
        assert [belongs(of, (7, target)) for target in range(7)].count(True) == 1
        assert target_of(of, 7) == partition_of(f"key-{number}", collection="", count=7)
        assert belongs(of, None)


def test_without_a_key_the_event_id_decides() -> None:
    found = {target_of(record(None, event_id=f"e{number}"), 4) for number in range(50)}
    assert found == {0, 1, 2, 3}
    assert target_of(record(None, event_id="x"), 4) == target_of(record("x"), 4)


@pytest.mark.parametrize(
    ("expected", "size", "targets"),
    [
        pytest.param(1, 100, 1, id="one key"),
        pytest.param(100, 100, 1, id="exactly one shard"),
        pytest.param(101, 100, 2, id="one key more"),
        pytest.param(400, 100, 4, id="four shards"),
        pytest.param(0, 100, 1, id="at least one"),
        pytest.param(10**9, 100, MAX_TARGETS, id="at most so many"),
        pytest.param(10, 1, 10, id="a key each"),
    ],
)
def test_targets_follow_the_expected_keys(expected: int, size: int, targets: int) -> None:
    assert targets_for(expected, shard_size=size) == targets
