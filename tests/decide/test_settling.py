"""The settled position: as far as possible, and never past a record somebody waits for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.settling import SettleTracker


def naive_position(start: int, pending: dict[int, int]) -> int:
    position = start
    while pending.get(position + 1) == 0:
        position += 1
    return position


@given(
    start=st.integers(0, 100),
    counts=st.lists(st.integers(0, 3), max_size=30),
    order=st.randoms(use_true_random=False),
)
def test_the_position_is_the_end_of_the_settled_prefix(
    start: int, counts: list[int], order: object
) -> None:
    tracker = SettleTracker(start)
    pending: dict[int, int] = {}
    answers: list[int] = []
    for offset, count in enumerate(counts):
        seq = start + 1 + offset
        tracker.take(seq, pending=count, time_ms=seq)
        pending[seq] = count
        answers += [seq] * count
        assert tracker.position == naive_position(start, pending)
    order.shuffle(answers)  # type: ignore[attr-defined]
    for seq in answers:
        tracker.settle(seq)
        pending[seq] -= 1
        assert tracker.position == naive_position(start, pending)
    assert tracker.unsettled == 0
    assert tracker.position == start + len(counts)


def test_the_oldest_unsettled_time_is_that_of_the_first_record_waited_for() -> None:
    tracker = SettleTracker(0)
    assert tracker.oldest_unsettled_ms == 0
    tracker.take(1, pending=0, time_ms=100)
    assert tracker.oldest_unsettled_ms == 0
    tracker.take(2, pending=1, time_ms=200)
    tracker.take(3, pending=1, time_ms=300)
    assert tracker.oldest_unsettled_ms == 200
    tracker.settle(2)
    assert tracker.oldest_unsettled_ms == 300


def test_it_remembers_only_what_is_unsettled() -> None:
    tracker = SettleTracker(0)
    for seq in range(1, 1_001):
        tracker.take(seq, pending=0, time_ms=1)
    assert tracker.unsettled == 0
    assert tracker.position == 1_000
