"""Where the next page of parked letters begins while somebody at the gateway is slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.delivery.steps import Redrive
from headgate.decide.letters.paging import Paging
from headgate.decide.letters.parked_partitions import Behind, Page
from headgate.model.event import PartitionRef

REF, OTHER = PartitionRef("t", 0), PartitionRef("t", 1)
LONGEST_S = 10.0


def answered(
    behind: Behind,
    last_seq: int,
    wanted_seq: int = 0,
    *,
    through: bool = False,
    whole: bool = False,
    now_s: float = 0.0,
) -> None:
    page = Page(last_seq, wanted_seq, through=through, whole=whole)
    behind.page(REF, page, now_s=now_s, longest_s=LONGEST_S)


def after_seq(behind: Behind, now_s: float = 0.0) -> int:
    """Where the page that is due begins."""
    assert behind.due_s(now_s, {}) <= now_s
    return behind.next(now_s, {}, limit=10).after_seqs.get(REF, 0)


def empty(behind: Behind, now_s: float = 0.0) -> None:
    behind.page_empty(REF, now_s=now_s, longest_s=LONGEST_S)


def test_it_goes_on_behind_what_was_sent_and_then_pauses_ever_longer() -> None:
    behind = Behind([REF])
    assert after_seq(behind) == 0
    answered(behind, 10)
    assert after_seq(behind) == 10
    answered(behind, 20)
    assert after_seq(behind) == 20
    now_s, pauses = 0.0, []
    empty(behind)
    for _ in range(12):
        pauses.append(behind.due_s(now_s, {}) - now_s)
        now_s += pauses[-1]
        assert after_seq(behind, now_s) == 0, "perhaps something of its front is settled by now"
        answered(behind, 10, now_s=now_s)
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(0.05)
    assert pauses[-1] == LONGEST_S


def test_a_front_that_is_taken_slowly_is_looked_at_about_as_often() -> None:
    """Somebody takes one of its letters every second."""
    behind = Behind([REF])
    after_seq(behind)
    answered(behind, 10)
    after_seq(behind)
    empty(behind)
    now_s, looks, taken = 0.0, 0, 0
    while now_s < 100.0:
        now_s = behind.due_s(now_s, {})
        after_seq(behind, now_s)
        looks += 1
        answered(behind, 10, through=int(now_s) > taken, now_s=now_s)
        taken = int(now_s)
    assert 50 < looks < 250


def test_a_partition_without_anybody_slow_begins_with_its_oldest_letter() -> None:
    behind = Behind([REF])
    assert behind.next(0.0, {}, limit=10) == Redrive((REF,), 10)
    answered(behind, 10, through=True, whole=True)
    assert behind.next(0.0, {}, limit=10) == Redrive((REF,), 10)


def test_where_somebody_has_room_and_what_is_new_take_turns() -> None:
    behind = Behind([REF])
    after_seq(behind)
    answered(behind, 10)
    pages = []
    for last_seq in range(20, 80, 10):
        pages.append(after_seq(behind))
        answered(behind, last_seq if len(pages) % 2 else 5, wanted_seq=3 + len(pages))
    assert pages == [10, 3, 20, 5, 40, 7]


def test_what_went_through_as_a_whole_at_the_front_is_followed_by_more_of_it() -> None:
    behind = Behind([REF])
    after_seq(behind)
    answered(behind, 100)
    after_seq(behind)
    empty(behind)
    for _ in range(5):
        assert after_seq(behind, now_s=1.0) == 0
        answered(behind, 10, through=True, whole=True, now_s=1.0)
    after_seq(behind, now_s=1.0)
    answered(behind, 10, through=True, now_s=1.0)
    assert behind.due_s(1.0, {}) == pytest.approx(1.05)


def test_what_is_parked_meanwhile_is_sent_at_once() -> None:
    behind = Behind([REF])
    after_seq(behind)
    answered(behind, 10)
    after_seq(behind)
    empty(behind)
    assert behind.due_s(0.0, {}) > 0.0
    behind.park(REF)
    assert [after_seq(behind), after_seq(behind)] == [0, 10]
    behind.park(REF)
    empty(behind)
    answered(behind, 5)
    assert [after_seq(behind), after_seq(behind)] == [0, 10], "parked after somebody had looked"


def test_a_page_that_waits_for_another_partition_takes_turns_with_the_front() -> None:
    """Which the other one may wait for: two that look ahead alone would wait for ever."""
    behind = Behind([REF])
    after_seq(behind)
    answered(behind, 10)
    assert after_seq(behind) == 10
    for now_s in (0.0, 1.0):
        behind.hold(REF, now_s + 1.0)
        assert behind.due_s(now_s, {}) == now_s + 1.0
        assert after_seq(behind, now_s + 1.0) == 0
        answered(behind, 10, now_s=now_s + 1.0)
        assert after_seq(behind, now_s + 1.0) == 10


def test_where_it_may_not_go_on_it_begins_with_its_oldest_letter() -> None:
    behind = Behind([REF])

    def may_not() -> None:
        behind.page(REF, None, now_s=0.0, longest_s=LONGEST_S)

    def halt() -> None:
        behind.halt(REF, "it is too large")

    def end_halt() -> None:
        behind.go_on(REF)

    for end in (may_not, halt, end_halt, behind.wake):
        end()
        assert after_seq(behind) == 0
        answered(behind, 10)
        if behind.halted:
            assert behind.due_s(0.0, {}) == LONGEST_S, "its oldest letter is next, and was answered"
            behind.rest(REF, 0.0)
        assert after_seq(behind) == (0 if behind.halted else 10)


def test_a_page_that_is_too_large_is_tried_again_in_parts() -> None:
    behind = Behind([REF, OTHER])
    assert behind.next(0.0, {}, limit=10).refs == (REF, OTHER)
    answered(behind, 10, wanted_seq=4)
    first = behind.next(0.0, {}, limit=10)
    behind.again()
    again = behind.next(0.0, {}, limit=4)
    assert (again.refs, again.after_seqs) == (first.refs, first.after_seqs)


def test_what_a_former_lane_sent_further_is_no_place_to_begin_at() -> None:
    """Others have yet to see what this lane has read before that."""
    paging = Paging(10)
    paging.answered(10, 50, through=False, whole=False)
    assert [paging.after_seq() for _ in range(3)] == [10, 10, 10]
    paging.answered(60, 50, through=False, whole=False)
    assert 49 in [paging.after_seq(), paging.after_seq()]


def test_room_that_nobody_uses_is_not_asked_for_again_at_once() -> None:
    paging = Paging(10, ahead=False)
    paging.answered(10, 4, through=False, whole=False)
    assert (paging.pause_s(LONGEST_S), paging.after_seq()) == (0.0, 3)
    paging.answered(10, 4, through=False, whole=False)
    assert paging.pause_s(LONGEST_S) > 0.0


@given(
    st.lists(
        st.tuples(
            st.integers(0, 20), st.integers(0, 40), st.booleans(), st.booleans(), st.booleans()
        ),
        max_size=40,
    )
)
def test_no_page_begins_behind_a_letter_that_was_never_sent(
    answers: list[tuple[int, int, bool, bool, bool]],
) -> None:
    paging, sent_seq = Paging(5), 5
    for count, wanted_seq, through, whole, is_parked in answers:
        begin = paging.after_seq()
        assert 0 <= begin <= sent_seq
        if count:
            sent_seq = max(sent_seq, begin + count)
            paging.answered(begin + count, wanted_seq, through=through, whole=whole)
        else:
            paging.empty(ahead=is_parked)
        paging.pause_s(LONGEST_S)
