"""The settled position: as far as possible, and never past a record somebody waits for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.delivery.settling import Outcome, SettleTracker
from headgate.model.position import Tally


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
        tracker.settle(seq, "acknowledged")
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
    tracker.settle(2, "acknowledged")
    assert tracker.oldest_unsettled_ms == 300


def test_it_remembers_only_what_is_unsettled() -> None:
    tracker = SettleTracker(0)
    for seq in range(1, 1_001):
        tracker.take(seq, pending=0, time_ms=1)
    assert tracker.unsettled == 0
    assert tracker.position == 1_000


RANKS: list[Outcome] = ["released", "acknowledged", "parked", "dead"]


@given(
    records=st.lists(
        st.one_of(st.lists(st.sampled_from(RANKS), max_size=3), st.just("skipped")), max_size=30
    ),
    answered=st.integers(0, 100),
    order=st.randoms(use_true_random=False),
)
def test_the_tally_counts_every_record_up_to_the_position_once_by_its_worst_outcome(
    records: list[list[Outcome] | str], answered: int, order: object
) -> None:
    tracker = SettleTracker(0)
    answers: list[tuple[int, Outcome]] = []
    for seq, outcomes in enumerate(records, start=1):
        if isinstance(outcomes, str):
            tracker.skip(seq, 1)
        else:
            tracker.take(seq, pending=len(outcomes), time_ms=seq)
            answers += [(seq, outcome) for outcome in outcomes]
    order.shuffle(answers)  # type: ignore[attr-defined]
    for seq, outcome in answers[:answered]:
        tracker.settle(seq, outcome)
    expected = dict.fromkeys(Tally.__struct_fields__, 0)
    for outcomes in records[: tracker.position]:
        if isinstance(outcomes, str):
            expected["skipped"] += 1
        elif not outcomes:
            expected["unmatched"] += 1
        else:
            expected[max(outcomes, key=RANKS.index)] += 1
    assert tracker.tally == Tally(**expected)


@given(
    records=st.lists(st.integers(0, 2), max_size=30),
    answered=st.lists(st.booleans(), max_size=30),
)
def test_passing_a_run_is_like_taking_its_records_one_by_one(
    records: list[int], answered: list[bool]
) -> None:
    by_one, by_runs = SettleTracker(7), SettleTracker(7)
    waiting: list[int] = []
    for seq, pending in enumerate(records, start=8):
        by_one.take(seq, pending=pending, time_ms=seq)
        if pending:
            by_runs.pass_unmatched(seq - 1)
            by_runs.take(seq, pending=pending, time_ms=seq)
            waiting += [seq] * pending
        if answered and answered.pop() and waiting:
            number = waiting.pop(0)
            by_one.settle(number, "acknowledged")
            by_runs.settle(number, "acknowledged")
    by_runs.pass_unmatched(7 + len(records))
    for number in [0, *waiting]:
        if number:
            by_one.settle(number, "parked")
            by_runs.settle(number, "parked")
        assert by_runs.position == by_one.position
        assert by_runs.tally == by_one.tally
        assert by_runs.unsettled == by_one.unsettled
        assert by_runs.oldest_unsettled_ms == by_one.oldest_unsettled_ms


def test_the_tally_goes_on_from_the_one_that_was_stored() -> None:
    tracker = SettleTracker(10, Tally(acknowledged=7, dead=3))
    tracker.take(11, pending=1, time_ms=1)
    tracker.settle(11, "parked")
    assert tracker.tally == Tally(acknowledged=7, dead=3, parked=1)
