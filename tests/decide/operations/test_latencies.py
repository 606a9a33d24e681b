from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.operations.latencies import SIZE, Stopwatch, cumulative, plus, since
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


def test_a_clock_that_ran_backwards_counts_as_no_time() -> None:
    assert counted([-3.0]).counts[0] == 1


def test_other_buckets_and_none_at_all_count_as_nothing() -> None:
    assert plus(Latencies(), counted([0.01])).counts == counted([0.01]).counts
    assert since(counted([0.01]), Latencies((1, 2), 3.0)).counts == counted([0.01]).counts
    assert len(cumulative(Latencies())) == SIZE
