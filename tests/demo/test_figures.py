"""Percentiles, rates and pace against their plain definitions."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.demo.figures import Histogram, Meter, Pace, RecentHistogram

durations_ms = st.floats(0.02, 1_000_000)


@given(durations=st.lists(durations_ms, min_size=1, max_size=200), percent=st.floats(0.1, 100))
def test_a_percentile_is_within_two_percent_of_the_sorted_list(
    durations: list[float], percent: float
) -> None:
    histogram = Histogram()
    for duration_ms in durations:
        histogram.add(duration_ms)
    rank = max(1, math.ceil(len(durations) * percent / 100))
    exact_ms = sorted(durations)[rank - 1]
    assert histogram.percentile_ms(percent) == pytest.approx(exact_ms, rel=0.02)
    assert histogram.max_ms == max(durations)


@given(parts=st.lists(st.lists(durations_ms, max_size=50), max_size=5))
def test_merging_is_counting_everything_in_one(parts: list[list[float]]) -> None:
    whole, split = Histogram(), []
    for part in parts:
        split.append(Histogram())
        for duration_ms in part:
            whole.add(duration_ms)
            split[-1].add(duration_ms)
    merged = Histogram.merged(split)
    assert (merged.count, merged.max_ms) == (whole.count, whole.max_ms)
    assert [merged.percentile_ms(p) for p in (1, 50, 99)] == [
        whole.percentile_ms(p) for p in (1, 50, 99)
    ]


@pytest.mark.parametrize(
    ("durations_ms", "expected_ms"),
    [([], 0.0), ([0.0], 0.0), ([-5.0], 0.0), ([1e300], 86_400_000.0)],
    ids=["none", "zero", "before it began", "longer than a day"],
)
def test_odd_durations_are_counted_at_the_nearest_end(
    durations_ms: list[float], expected_ms: float
) -> None:
    histogram = Histogram()
    for duration_ms in durations_ms:
        histogram.add(duration_ms)
    assert histogram.percentile_ms(50) == pytest.approx(expected_ms, rel=0.02)


def test_a_histogram_does_not_grow_with_the_number_of_durations() -> None:
    dice, histogram = random.Random(1), Histogram()
    for _ in range(100_000):
        histogram.add(dice.lognormvariate(2, 3))
    assert histogram.count == 100_000
    assert len(histogram._buckets) < 1_400


def test_recent_durations_are_forgotten_after_the_span() -> None:
    recent = RecentHistogram(span_s=10)
    recent.add(100.0, at_s=1.5)
    recent.add(1.0, at_s=8.0)
    assert recent.at(9.0).count == 2
    assert recent.at(12.0).max_ms == 1.0
    assert recent.at(60.0).count == 0


def test_a_meter_measures_growth_over_its_span() -> None:
    meter = Meter(span_s=5)
    rates = [meter.sample(200 * second, at_s=float(second)) for second in range(20)]
    assert rates[0] == 0
    assert rates[1:] == [200.0] * 19


def test_a_meter_starts_anew_when_the_total_falls() -> None:
    meter = Meter()
    meter.sample(1_000, at_s=0.0)
    assert meter.sample(0, at_s=1.0) == 0
    assert meter.sample(50, at_s=2.0) == 50


@given(
    per_s=st.floats(1, 20_000),
    steps=st.lists(st.floats(0.0001, 0.2), min_size=1, max_size=100),
)
def test_events_are_due_by_the_clock_however_late_each_wake_up_is(
    per_s: float, steps: list[float]
) -> None:
    pace, now_s, taken = Pace(per_s=per_s, start_s=0.0, patience_s=10.0), 0.0, 0
    for step_s in steps:
        now_s += step_s
        taken += pace.take(now_s)
    assert taken == pytest.approx(now_s * per_s + 1, abs=1.01)
    assert pace.due_s > now_s - 1e-6


def test_a_long_pause_is_not_made_up_for() -> None:
    pace = Pace(per_s=100, start_s=0.0)
    pace.take(0.0)
    assert pace.take(60.0) == 1
    assert pace.take(60.055) == 5


def test_nothing_is_due_before_its_time() -> None:
    pace = Pace(per_s=10, start_s=0.0)
    assert pace.take(0.0) == 1
    assert pace.take(0.05) == 0
    assert pace.due_s == pytest.approx(0.1)
