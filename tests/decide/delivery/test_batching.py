"""When a batch leaves: full at once, alone at once, a trickle gathered, nobody kept too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.delivery.batching import BatchLimits

LIMITS = BatchLimits(max_size=100, max_wait_s=0.050, flush_interval_s=0.010)


@pytest.mark.parametrize(
    ("waiting", "first_at_s", "last_sent_s", "send_at_s"),
    [
        pytest.param(1, 5.000, 0.000, 5.000, id="a lone event leaves at once"),
        pytest.param(3, 5.000, 4.995, 5.005, id="a trickle waits out the flush interval"),
        pytest.param(3, 5.000, 4.990, 5.000, id="the interval is over"),
        pytest.param(100, 5.000, 4.999, 5.000, id="a full batch waits for nothing"),
        pytest.param(250, 5.000, 4.999, 5.000, id="more than full neither"),
        pytest.param(99, 5.000, 4.999, 5.009, id="almost full waits"),
    ],
)
def test_the_instant_to_send(
    waiting: int, first_at_s: float, last_sent_s: float, send_at_s: float
) -> None:
    assert LIMITS.send_at(
        waiting=waiting, first_at_s=first_at_s, last_sent_s=last_sent_s
    ) == pytest.approx(send_at_s)


def test_a_long_flush_interval_never_beats_the_longest_wait() -> None:
    patient = BatchLimits(max_size=100, max_wait_s=0.050, flush_interval_s=10.0)
    assert patient.send_at(waiting=1, first_at_s=5.0, last_sent_s=4.9) == pytest.approx(5.05)


@given(
    waiting=st.integers(1, 500),
    first_at_s=st.floats(0, 1e6),
    before_s=st.floats(0, 1e3),
    max_wait_s=st.floats(0.001, 1),
    flush_s=st.floats(0.001, 10),
)
def test_no_event_waits_longer_than_the_limit(
    waiting: int, first_at_s: float, before_s: float, max_wait_s: float, flush_s: float
) -> None:
    limits = BatchLimits(100, max_wait_s, flush_s)
    at_s = limits.send_at(waiting=waiting, first_at_s=first_at_s, last_sent_s=first_at_s - before_s)
    assert first_at_s <= at_s <= first_at_s + max_wait_s
