"""Whatever fits at once, and nobody says how much: it is found, kept to, and tried again."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.decide.delivery.batch_size import FIRST_PAUSE_S, LONGEST_PAUSE_S, BatchSize

MOST = 100
FAILURE_S = 5.0


class Link:
    """As much as the size allows is sent, one batch after the other. `capacity` fits at once; a
    batch takes `each_s` per item and a little, one that doesn't fit a timeout."""

    def __init__(self, capacity: int, each_s: float) -> None:
        self.capacity = capacity
        self.each_s = each_s
        self.size = BatchSize(MOST)
        self.now_s = 0.0
        self.failures = 0

    def run(self, for_s: float) -> float:
        """Returns how much of what could have arrived did."""
        began_s, end_s, arrived = self.now_s, self.now_s + for_s, 0
        while self.now_s < end_s:
            count = self.size.limit
            assert 1 <= count <= MOST
            if count > self.capacity:
                self.now_s += FAILURE_S
                self.failures += 1
                self.size.failed(count, now_s=self.now_s)
            else:
                self.now_s += self.takes_s(count)
                arrived += count
                self.size.fitted(count, full=True, now_s=self.now_s)
        best = min(self.capacity, MOST)
        return arrived * self.takes_s(best) / best / (self.now_s - began_s)

    def takes_s(self, count: int) -> float:
        return 0.5 + count * self.each_s


@settings(max_examples=50, deadline=None)
@given(capacities=st.lists(st.integers(1, 150), min_size=1, max_size=4), each_s=st.floats(0, 0.04))
@example(capacities=[60], each_s=0.0)
@example(capacities=[1, 100, 1, 100], each_s=0.04)
def test_a_good_part_of_what_fits_arrives_whatever_that_is_and_becomes(
    capacities: list[int], each_s: float
) -> None:
    """Half of the capacity is a size that was found by halving; the rest pays for trials."""
    link = Link(capacities[0], each_s)
    for capacity in capacities:
        link.capacity = capacity
        link.run(2 * LONGEST_PAUSE_S)
        before = link.failures
        assert link.run(3_600) >= 0.45
        assert link.failures - before <= 2 * 3_600 / LONGEST_PAUSE_S


def test_a_size_that_failed_is_tried_again_ever_more_rarely() -> None:
    link = Link(60, 0.05)
    at_s: list[float] = []
    while link.now_s < 2_000:
        before = link.failures
        link.run(0.01)
        at_s += [link.now_s] * (link.failures - before)
    pauses = [round(b - a) for a, b in itertools.pairwise(at_s)]
    assert pauses[0] <= FIRST_PAUSE_S + 2 * FAILURE_S
    assert pauses == sorted(pauses)
    assert LONGEST_PAUSE_S <= pauses[-1] <= LONGEST_PAUSE_S + 2 * FAILURE_S


def test_after_an_outage_it_grows_at_once() -> None:
    """That one alone fails says that how many there were didn't matter."""
    size = BatchSize(MOST)
    for _ in range(10):
        size.failed(size.limit, now_s=0.0)
    assert size.limit == 1
    for _ in range(7):
        size.fitted(size.limit, full=True, now_s=0.0)
    assert size.limit == MOST


def test_a_batch_that_was_not_full_says_nothing_of_a_larger_one() -> None:
    size = BatchSize(MOST)
    size.failed(40, now_s=0.0)
    for _ in range(10):
        size.fitted(3, full=False, now_s=1_000.0)
    assert size.limit == 20


def test_a_failure_right_after_fewer_went_through_is_told_from_others() -> None:
    size = BatchSize(MOST)
    assert not size.failed(MOST, now_s=0.0), "nothing went through before"
    size.fitted(50, full=True, now_s=0.0)
    assert not size.failed(50, now_s=0.0), "as many did"
    size.fitted(25, full=True, now_s=0.0)
    assert size.failed(50, now_s=0.0)
    assert not size.failed(25, now_s=0.0), "once"


def test_shares_that_come_to_less_than_the_size_do_not_keep_it_small() -> None:
    """Of several partitions one fills its share, the others have one letter each: as many as failed
    never come together, but the share has to grow all the same."""
    size, now_s, partitions = BatchSize(MOST), 0.0, 4
    size.failed(4, now_s=now_s)
    for _ in range(10):
        now_s += FIRST_PAUSE_S
        share = max(1, size.limit // partitions)
        size.fitted(share + min(partitions, size.limit) - 1, full=True, now_s=now_s)
    assert size.limit == MOST
