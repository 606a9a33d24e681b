"""What is taken of one per second, and whom an address stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.limits.addresses import NOBODY, counted_as
from headgate.decide.limits.rates import BURST_S, Rate

PER_S = 10.0


def test_a_burst_is_taken_and_then_so_much_per_second() -> None:
    rate = Rate()
    rate.take("a", PER_S * BURST_S, PER_S, 0.0)
    assert rate.wait_s("a", PER_S, 0.0) > 0
    assert rate.wait_s("b", PER_S, 0.0) == 0.0, "the others have their own"
    assert rate.wait_s("a", PER_S, 0.2) == 0.0


def test_what_is_larger_than_the_allowance_is_taken_once_and_waited_for_afterwards() -> None:
    rate = Rate()
    rate.take("a", PER_S * BURST_S * 10, PER_S, 0.0)
    wait_s = rate.wait_s("a", PER_S, 0.0)
    assert wait_s == pytest.approx(BURST_S * 9)
    assert rate.wait_s("a", PER_S, wait_s + 0.01) == 0.0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    rate = Rate()
    rate.take("a", PER_S * BURST_S, PER_S, 100.0)
    assert rate.wait_s("a", PER_S, 50.0) > 0


def test_without_a_limit_nobody_is_remembered() -> None:
    rate = Rate()
    rate.take("a", 1e9, 0, 0.0)
    assert rate.wait_s("a", 0, 0.0) == 0.0
    assert not rate._left


def test_so_many_are_remembered_and_the_quiet_ones_forgotten() -> None:
    rate = Rate(known=2)
    for who in ("a", "b", "a", "c"):
        rate.take(who, 1, PER_S, 0.0)
    assert set(rate._left) == {"a", "c"}


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), max_size=60))
def test_nobody_gets_more_on_average_whatever_they_try(tries: list[tuple[float, int]]) -> None:
    rate, now_s, taken, largest = Rate(), 0.0, 0, 0
    for pause_s, amount in tries:
        now_s += pause_s
        if not rate.wait_s("a", PER_S, now_s):
            rate.take("a", amount, PER_S, now_s)
            taken, largest = taken + amount, max(largest, amount)
    assert taken <= PER_S * (now_s + BURST_S) + largest


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", NOBODY),
        ("evil\nline", NOBODY),
    ],
)
def test_what_counts_as_one_address(address: str, counted: str) -> None:
    assert counted_as(address) == counted


@given(st.text(max_size=60))
def test_any_text_is_counted_as_something_short(address: str) -> None:
    assert len(counted_as(address)) <= 50
