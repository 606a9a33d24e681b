from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.operations.partition_growth import KEPT_MAX, LogPulse


def test_nothing_waits_where_everything_is_settled() -> None:
    pulse = LogPulse()
    pulse.told(10, 10, 1_000)
    assert (pulse.lag, pulse.lag_ms(50_000), pulse.last_event_ms) == (0, 0, 0)


def test_the_wait_goes_on_while_nothing_flows() -> None:
    pulse = LogPulse()
    pulse.told(10, 10, 1_000)
    pulse.told(12, 10, 2_000)
    for second in range(3, 60):
        pulse.told(12, 10, second * 1_000)
    assert (pulse.lag, pulse.lag_ms(60_000), pulse.last_event_ms) == (2, 58_000, 2_000)
    pulse.told(12, 12, 60_000)
    assert (pulse.lag, pulse.lag_ms(60_000)) == (0, 0)


def test_what_waited_before_anybody_looked_may_have_waited_longer() -> None:
    pulse = LogPulse()
    assert not pulse.lag_known
    pulse.told(10, 4, 1_000)
    pulse.told(12, 9, 2_000)
    assert not pulse.lag_known
    pulse.told(12, 10, 3_000)
    assert pulse.lag_known


def test_a_steady_lag_is_shown_as_it_is() -> None:
    pulse = LogPulse()
    for second in range(200):
        pulse.told(second * 10, max(0, (second - 40) * 10), second * 1_000)
    assert 35_000 <= pulse.lag_ms(199_000) <= 41_000


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=400))
def test_the_wait_is_never_longer_than_the_truth_and_memory_is_bounded(
    steps: list[tuple[int, int]],
) -> None:
    pulse = LogPulse()
    appended_ms: list[int] = []
    settled = 0
    for second, (grown, done) in enumerate(steps):
        now_ms = second * 1_000
        appended_ms += [now_ms] * grown
        settled = min(len(appended_ms), settled + done)
        pulse.told(len(appended_ms), settled, now_ms)
        waiting = appended_ms[settled:]
        assert pulse.lag == len(waiting)
        assert pulse.lag_ms(now_ms) <= (now_ms - waiting[0] if waiting else 0)
        assert bool(pulse.lag_ms(now_ms + 1)) == bool(waiting)
    assert len(pulse._heads) <= KEPT_MAX + 1
