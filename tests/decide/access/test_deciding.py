"""Against a naive oracle: a grant at a time, in words instead of tables."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.access.deciding import check, knows_topic, may
from headgate.decide.access.grants import all_parsed, everything
from headgate.errors import Forbidden, Unauthorized
from headgate.model.access import NOBODY, Grant, Principal

NAMES = ("a", "ab", "b", "a.b", "secrets")
patterns = st.lists(
    st.sampled_from(["*", "a", "a*", "*b", "a.*", "secrets", "b"]), min_size=1, max_size=2
).map(tuple)
grants = st.lists(
    st.builds(
        Grant,
        action=st.sampled_from(["produce", "subscribe", "consume"]),
        topics=patterns,
        groups=patterns,
        deny=st.booleans(),
    ),
    max_size=5,
)


def somebody(*texts: str, **claims: object) -> Principal:
    return Principal("ann", "token", all_parsed(texts), claims=claims)


def naive(granted: list[Grant], action: str, topic: str, group: str) -> bool:
    allowed = False
    for grant in granted:
        fits_topic = any(fnmatchcase(topic, one) for one in grant.topics)
        fits_group = any(fnmatchcase(group, one) for one in grant.groups)
        if grant.action != action or not fits_topic or not fits_group:
            continue
        if grant.deny:
            return False
        allowed = True
    return allowed


@given(granted=grants, topic=st.sampled_from(NAMES), group=st.sampled_from(NAMES))
def test_what_is_allowed_is_what_a_grant_allows_and_none_denies(
    granted: list[Grant], topic: str, group: str
) -> None:
    ann = Principal("ann", "token", tuple(granted))
    assert may(ann, "consume", topic=topic, group=group) == naive(granted, "consume", topic, group)


@given(granted=grants, topic=st.sampled_from(NAMES), group=st.sampled_from(NAMES))
def test_who_may_do_it_for_one_topic_may_do_it_for_some(
    granted: list[Grant], topic: str, group: str
) -> None:
    ann = Principal("ann", "token", tuple(granted))
    if may(ann, "consume", topic=topic, group=group):
        assert may(ann, "consume")


@pytest.mark.parametrize(
    ("texts", "topic", "allowed"),
    [
        ([], "a", False),
        (["produce"], "a", True),
        (["produce on a"], "A", False),
        (["produce on a*"], "ab", True),
        (["produce on a"], "ab", False),
        (["produce on a.*"], "axb", False),
        (["produce", "deny produce on secrets"], "secrets", False),
        (["produce", "deny produce on secrets"], "a", True),
        (["deny produce", "produce on a"], "a", False),
        (["subscribe"], "a", False),
        (["admin"], "a", True),
        (["admin", "deny produce on a"], "a", False),
    ],
)
def test_a_table_of_cases(texts: list[str], topic: str, allowed: bool) -> None:
    assert may(somebody(*texts), "produce", topic=topic) is allowed


@given(
    pattern=st.lists(st.sampled_from(["a", "b", "-", "*"]), max_size=8).map("".join),
    name=st.text("ab-", max_size=12),
)
def test_a_star_stands_for_any_characters(pattern: str, name: str) -> None:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    fits = may(
        Principal("p", "token", (Grant("produce", topics=(pattern,)),)), "produce", topic=name
    )
    assert fits == (re.fullmatch(expression, name, re.DOTALL) is not None)


def test_a_long_name_is_compared_in_one_pass() -> None:
    """With each star a way of its own to begin again, this takes days."""
    who = somebody("produce on *-*-*-*-x")
    assert not may(who, "produce", topic="-" * 60_000)


def test_where_nobody_has_to_say_who_they_are_everything_is_allowed() -> None:
    check(None, "write", "tokens")


def test_who_has_said_nothing_is_asked_and_who_lacks_a_grant_is_refused() -> None:
    with pytest.raises(Unauthorized, match="say who you are"):
        check(NOBODY, "produce", topic="a")
    with pytest.raises(Forbidden, match="ann is not granted produce on a"):
        check(somebody("subscribe"), "produce", topic="a")
    with pytest.raises(Forbidden, match="write:tokens"):
        check(somebody("read:tokens"), "write", "tokens")


def test_a_grant_without_its_area_is_no_grant_for_it() -> None:
    ann = Principal("ann", "token", everything())
    assert may(ann, "read", "settings")
    assert not may(somebody("read:topics"), "read", "settings")
    assert not may(somebody("write:topics"), "read", "topics")


def test_the_name_of_a_topic_is_no_news_to_who_may_do_something_with_it() -> None:
    ann = somebody("produce on a", "deny subscribe on b", "subscribe on b*")
    assert [name for name in (*NAMES, "bb") if knows_topic(ann, name)] == ["a", "bb"]
