"""How much of something one may have at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.limits.holdings import GiveBack, Holdings, Most
from headgate.errors import HeadgateError, InvalidFilter, TooMany
from headgate.model.access import NOBODY, Limits, Principal

MOST = Most(connections=2, subscriptions=2, filter_cost_us=100)
HERE = "192.0.2.1"


def test_whoever_says_who_they_are_is_counted_by_name_and_by_their_own_limits() -> None:
    holdings = Holdings(MOST)
    shop = Principal("shop", "token", limits=Limits(connections=7))
    assert holdings.party(shop, HERE).who == "token shop"
    assert holdings.party(shop, HERE).most == Most(7, 2, 100)
    assert holdings.party(NOBODY, HERE) == holdings.party(None, HERE)
    assert holdings.party(None, "2001:db8::1") == holdings.party(None, "2001:db8::2")
    assert holdings.party(None, HERE) != holdings.party(None, "192.0.2.2")


def test_what_is_given_back_is_there_again_once() -> None:
    holdings = Holdings(MOST)
    party = holdings.party(None, HERE)
    first, second = holdings.connect(party), holdings.connect(party)
    with pytest.raises(TooMany, match=r"192\.0\.2\.1 has 2 connections .*security\.limits\.conn"):
        holdings.connect(party)
    first()
    first()  # which is nobody else's
    third = holdings.connect(party)
    with pytest.raises(TooMany):
        holdings.connect(party)
    second()
    third()
    assert len(holdings) == 0


def test_one_who_has_all_takes_nothing_from_others() -> None:
    holdings = Holdings(MOST)
    for address in (HERE, "192.0.2.2"):
        party = holdings.party(None, address)
        for _ in range(2):
            holdings.connect(party)
            holdings.subscribe(party, 10)


def test_filters_are_paid_for_together_and_a_refusal_costs_nothing() -> None:
    holdings = Holdings(MOST)
    party = holdings.party(None, HERE)
    with pytest.raises(InvalidFilter, match="make it simpler"):
        holdings.subscribe(party, 101)  # nothing that ends makes room for that
    holdings.subscribe(party, 60)
    with pytest.raises(TooMany, match="end a subscription"):
        holdings.subscribe(party, 41)
    holdings.subscribe(party, 40)
    with pytest.raises(TooMany, match="2 subscriptions"):
        holdings.subscribe(party, 0)


def test_without_a_limit_nobody_is_counted_nor_remembered() -> None:
    holdings = Holdings()
    party = holdings.party(None, HERE)
    for _ in range(100):
        holdings.connect(party)
        holdings.subscribe(party, 10_000)
    assert len(holdings) == 0


steps = st.lists(
    st.tuples(
        st.sampled_from(["connect", "subscribe", "give back"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 120),
    ),
    max_size=60,
)


@given(steps)
def test_nobody_has_more_than_they_may_and_everything_is_given_back(
    steps: list[tuple[str, str, int]],
) -> None:
    """Against lists of what each has."""
    holdings = Holdings(MOST)
    has: dict[str, list[tuple[str, int, GiveBack]]] = {"a": [], "b": []}
    for what, who, amount in steps:
        party, mine = holdings.party(Principal(who, "token"), HERE), has[who]
        if what == "give back":
            if mine:
                mine.pop(amount % len(mine))[2]()
            continue
        of_kind = [cost for kind, cost, _ in mine if kind == what]
        cost_us = amount if what == "subscribe" else 0
        fits = len(of_kind) < 2 and sum(of_kind) + cost_us <= 100
        try:
            if what == "connect":
                mine.append((what, 0, holdings.connect(party)))
            else:
                mine.append((what, cost_us, holdings.subscribe(party, cost_us)))
        except HeadgateError:
            assert not fits
        else:
            assert fits
    for mine in has.values():
        for _, _, give_back in mine:
            give_back()
    assert len(holdings) == 0
