"""Backoff: grows, is spread, and is capped, however often something fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.delivery.retrying import Backoff
from headgate.decide.operations.supervision import RestartPolicy


@pytest.mark.parametrize(
    ("attempt", "delay_s"), [(0, 0.1), (1, 0.2), (2, 0.4), (5, 3.2), (6, 5.0), (1_000_000, 5.0)]
)
def test_the_delay_doubles_up_to_its_cap(attempt: int, delay_s: float) -> None:
    assert Backoff(0.1, 5.0, 2.0).delay_s(attempt, jitter=1.0) == pytest.approx(delay_s)


@given(attempt=st.integers(0, 10_000), jitter=st.floats(0, 1))
def test_jitter_spreads_over_half_of_the_delay(attempt: int, jitter: float) -> None:
    backoff = Backoff(0.1, 5.0, 2.0)
    full_s = backoff.delay_s(attempt, jitter=1.0)
    assert full_s / 2 <= backoff.delay_s(attempt, jitter=jitter) <= full_s <= 5.0


@pytest.mark.parametrize(("failures", "delay_s"), [(1, 0.2), (2, 0.4), (3, 0.8), (50, 10.0)])
def test_a_role_is_restarted_with_growing_pauses(failures: int, delay_s: float) -> None:
    assert RestartPolicy().delay_s(failures=failures) == pytest.approx(delay_s)


@pytest.mark.parametrize(("ran_s", "failures"), [(1.0, 6), (29.9, 6), (30.0, 1), (3_600.0, 1)])
def test_a_role_that_ran_well_starts_with_a_clean_sheet(ran_s: float, failures: int) -> None:
    assert RestartPolicy().failures_after(failures=5, ran_s=ran_s) == failures
