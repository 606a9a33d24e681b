"""Which subscriptions an operator is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.operations.subscription_queries import (
    SubscriptionQuestion,
    SubscriptionSearch,
    question_of,
)
from headgate.errors import InvalidRequest
from headgate.model.subscription import Subscription

ALL = (
    Subscription("s1", "g1", "flights", "alt > 5", tenant="acme"),
    Subscription("s2", "g2", "flights"),
    Subscription("s3", "g1", "ships", "flag == 'acme'", shard=(4, 2)),
)


def ids(**asked: str) -> tuple[list[str], int]:
    search = SubscriptionSearch(question_of(asked))
    for one in ALL:
        search.look_at((one,))
    return [one.id for one in search.found], search.matching


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, ["s1", "s2", "s3"]),
        ({"topic": "flights"}, ["s1", "s2"]),
        ({"gateway": "g1"}, ["s1", "s3"]),
        ({"gateway": "g1", "topic": "ships"}, ["s3"]),
        ({"search": "acme"}, ["s1", "s3"]),
        ({"search": "s2"}, ["s2"]),
        ({"search": "alt >"}, ["s1"]),
        ({"search": "nothing"}, []),
    ],
    ids=str,
)
def test_those_are_shown_that_are_all_of_it(asked: dict[str, str], wanted: list[str]) -> None:
    assert ids(**asked) == (wanted, len(wanted))


def test_a_target_says_which_one_it_is() -> None:
    search = SubscriptionSearch(question_of({"search": "s3"}))
    search.look_at(ALL)
    assert [one.target for one in search.found] == [2]


@given(
    st.lists(st.integers(0, 3), max_size=30),
    st.integers(1, 7),
    st.integers(0, 40),
    st.integers(1, 10),
    st.sampled_from(["", "t1"]),
)
def test_a_stretch_of_them_is_that_of_the_whole_list(
    topics: list[int], part: int, offset: int, limit: int, topic: str
) -> None:
    every = tuple(Subscription(f"s{n}", "g", f"t{t}") for n, t in enumerate(topics))
    fits = [one.id for one in every if topic in ("", one.topic)]
    search = SubscriptionSearch(SubscriptionQuestion("", topic, "", offset, limit))
    for at in range(0, len(every), part):
        search.look_at(every[at : at + part])
    assert [one.id for one in search.found] == fits[offset : offset + limit]
    assert search.matching == len(fits)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"topics": "x"}, "no parameter topics"),
        ({"limit": "1001"}, "limit is a number from 1 to 1000"),
        ({"limit": "0"}, "limit is a number"),
        ({"offset": "-1"}, "offset is a number"),
        ({"offset": "x" * 500}, "offset is a number"),
    ],
    ids=str,
)
def test_what_cant_be_understood_is_refused(asked: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        question_of(asked)
