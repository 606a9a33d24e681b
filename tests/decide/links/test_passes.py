"""What roles show each other: every pass is good for one way, and for no other."""

from __future__ import annotations

import hmac
from itertools import pairwise, product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.links import passes
from headgate.decide.links.passes import (
    Called,
    Caller,
    ClusterTokens,
    PassKeeper,
    bearer,
    of_bearer,
    same_secret,
    token_fault,
)

OLD, NEW = "an-old-token-of-the-cluster", "the-new-token-of-the-cluster"
CALLERS: tuple[Caller, ...] = get_args(Caller)
CALLED: tuple[Called, ...] = get_args(Called)


@pytest.mark.parametrize(("caller", "called"), list(product(CALLERS, CALLED)))
def test_a_pass_is_good_for_its_own_way_only(caller: Caller, called: Called) -> None:
    tokens = ClusterTokens((OLD,))
    shown = tokens.passes(caller).to(called)
    assert {other: tokens.keeper(other).caller(shown) for other in CALLED} == {
        other: caller if other == called else None for other in CALLED
    }


def test_a_pass_doesnt_contain_the_token_it_is_made_of() -> None:
    assert OLD not in ClusterTokens((OLD,)).passes("lane").to("gateway")


def test_a_token_is_changed_while_everybody_goes_on() -> None:
    """Each step in any order of restarts: whoever has made it and whoever hasn't get along."""
    steps = [(OLD,), (OLD, NEW), (NEW, OLD), (NEW,)]
    for before, after in pairwise(steps):
        for shows, asks in product((before, after), repeat=2):
            shown = ClusterTokens(shows).passes("router").to("coordinator")
            assert ClusterTokens(asks).keeper("coordinator").caller(shown) == "router"


def test_a_token_that_was_dropped_counts_no_more() -> None:
    shown = ClusterTokens((OLD,)).passes("ingest").to("ingest")
    assert ClusterTokens((NEW,)).keeper("ingest").caller(shown) is None


def test_without_a_token_nobody_shows_anything_and_nobody_is_asked() -> None:
    none = ClusterTokens()
    assert none.passes("gateway").headers("ingest") == ()
    assert not none.keeper("ingest").asks
    assert none.keeper("ingest").admits("", ("lane",))


@given(st.text(max_size=200))
def test_nothing_that_anybody_makes_up_is_a_pass(shown: str) -> None:
    keeper = ClusterTokens((OLD, NEW)).keeper("coordinator")
    assert keeper.caller(shown) is None
    assert not keeper.admits(of_bearer(shown), CALLERS)


@given(st.text(min_size=1, max_size=50), st.text(max_size=50))
def test_secrets_are_the_same_only_if_they_are_equal(one: str, other: str) -> None:
    one = one.encode("ascii", "backslashreplace").decode()
    assert same_secret(one, one)
    assert same_secret(other, one) == (other == one)


def test_every_pass_is_compared_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it takes tells nobody which one was right, or how much of it."""
    compared: list[str] = []

    def noted(given: str, expected: str) -> bool:
        compared.append(expected)
        return same_secret(given, expected)

    monkeypatch.setattr(passes, "same_secret", noted)
    tokens = ClusterTokens((OLD, NEW))
    for shown in (tokens.passes("ingest").to("gateway"), "nonsense", ""):
        compared.clear()
        tokens.keeper("gateway").caller(shown)
        assert len(compared) == 2 * len(CALLERS)


def test_the_comparison_itself_takes_no_notice_of_where_they_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is `hmac.compare_digest`, whose time doesn't depend on that."""
    asked: list[tuple[bytes, bytes]] = []

    def compared(given: bytes, expected: bytes) -> bool:
        asked.append((given, expected))
        return True

    monkeypatch.setattr(hmac, "compare_digest", compared)
    assert same_secret("sécret", "secret")
    assert asked == [("sécret".encode(), b"secret")]


@pytest.mark.parametrize("value", [ClusterTokens((OLD,)), ClusterTokens((OLD,)).passes("lane")])
def test_what_holds_a_secret_doesnt_show_it(value: object) -> None:
    assert OLD not in repr(value)
    keeper = ClusterTokens((OLD,)).keeper("gateway")
    assert keeper.known[0][1] not in repr(keeper)


def test_an_authorization_carries_a_secret_or_nothing() -> None:
    assert of_bearer(bearer(OLD)) == OLD
    assert [of_bearer(other) for other in ("", OLD, f"Basic {OLD}", f"bearer {OLD}")] == [""] * 4


def test_a_secret_that_is_taken_as_it_is() -> None:
    keeper = PassKeeper.of_secret("s3cret", ("lane",))
    assert keeper.admits("s3cret", ("lane",))
    assert not keeper.admits("s3cret", ("gateway",))
    assert not PassKeeper.of_secret("", ("lane",)).asks


@pytest.mark.parametrize(
    ("token", "fault"),
    [
        ("x" * 22, ""),
        ("x" * 21, "has 21 characters, and needs 22 to 1000"),
        ("x" * 1_001, "has 1001 characters, and needs 22 to 1000"),
        ("é" * 30, "may have visible ASCII characters only"),
        ("a line\n" * 5, "may have visible ASCII characters only"),
    ],
)
def test_a_token_is_long_enough_not_to_be_guessed(token: str, fault: str) -> None:
    assert token_fault(token) == fault
