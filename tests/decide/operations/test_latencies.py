from __future__ import annotations

import math
from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.operations.latencies import (
    SIZE,
    Stopwatch,
    cumulative,
    plus,
    quantile_s,
    since,
)
from headgate.model.control.reports import LATENCY_BUCKETS_S, Latencies

seconds = st.lists(
    st.one_of(st.sampled_from(LATENCY_BUCKETS_S), st.floats(min_value=0, max_value=1_000))
)


def counted(latencies: list[float]) -> Latencies:
    watch = Stopwatch()
    for one in latencies:
        watch.took(one)
    return watch.so_far()


@given(seconds)
def test_every_bound_counts_what_is_at_or_below_it(latencies: list[float]) -> None:
    found = cumulative(counted(latencies))
    expected = [(str(bound), sum(one <= bound for one in latencies)) for bound in LATENCY_BUCKETS_S]
    assert found == [*expected, ("+Inf", len(latencies))]


@given(seconds, seconds)
def test_what_is_new_and_what_was_add_up(before: list[float], after: list[float]) -> None:
    earlier, now = counted(before), counted(before + after)
    new = since(now, earlier)
    assert new.counts == counted(after).counts
    assert plus(earlier, new).counts == now.counts


@given(seconds.filter(bool), st.floats(min_value=0.01, max_value=1.0))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(latencies: list[float], part: float) -> None:
    found = quantile_s(counted(latencies), part)
    assert found is not None
    ordered, bounds = sorted(latencies), (*LATENCY_BUCKETS_S, float("inf"))
    true = ordered[min(len(ordered) - 1, max(0, math.ceil(len(ordered) * part) - 1))]
    at = bisect_left(bounds, true)
    lower = bounds[at - 1] if at else 0.0
    assert min(lower, LATENCY_BUCKETS_S[-1]) <= found <= min(bounds[at], LATENCY_BUCKETS_S[-1])


def test_of_nothing_there_is_no_quantile() -> None:
    assert quantile_s(Latencies(), 0.5) is None
    assert quantile_s(counted([]), 0.99) is None


def test_a_clock_that_ran_backwards_counts_as_no_time() -> None:
    assert counted([-3.0]).counts[0] == 1


def test_other_buckets_and_none_at_all_count_as_nothing() -> None:
    assert plus(Latencies(), counted([0.01])).counts == counted([0.01]).counts
    assert since(counted([0.01]), Latencies((1, 2), 3.0)).counts == counted([0.01]).counts
    assert len(cumulative(Latencies())) == SIZE
