"""The demo's books against a naive bookkeeper that forgets nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.demo.scoreboard import REFUSED_KEPT, Scoreboard


def send(
    board: Scoreboard, number: int, *, expected: set[int], key: str = "a", ack: bool = True
) -> str:
    event_id = f"e{number}"
    board.sent(event_id, key=key, number=number, expected=expected)
    if ack:
        board.acknowledged(event_id, at_s=float(number))
    return event_id


def receive(board: Scoreboard, watch: int, number: int, *, at_s: float | None = None) -> None:
    board.received(
        watch, f"e{number}", partition=0, seq=number, at_s=float(number) if at_s is None else at_s
    )


def test_what_never_arrives_is_missing() -> None:
    board = Scoreboard(2)
    send(board, 1, expected={0, 1})
    receive(board, 0, 1)
    assert (board.produced, board.matched, board.delivered, board.missing) == (1, 2, 1, 1)


def test_an_event_that_nobody_expects_is_produced_and_finished() -> None:
    board = Scoreboard(1)
    send(board, 1, expected=set())
    assert (board.produced, board.missing, board.under_way) == (1, 0, 0)


def test_an_arrival_before_the_acknowledgement_counts_once_it_is_acknowledged() -> None:
    board = Scoreboard(1)
    send(board, 1, expected={0}, ack=False)
    receive(board, 0, 1)
    assert (board.matched, board.delivered) == (0, 0)
    board.acknowledged("e1", at_s=2.0)
    assert (board.matched, board.delivered, board.missing, board.under_way) == (1, 1, 0, 0)
    assert board.latency.max_ms == 0


def test_latency_counts_from_the_acknowledgement() -> None:
    board = Scoreboard(1)
    send(board, 1, expected={0})
    receive(board, 0, 1, at_s=1.25)
    assert board.latency.max_ms == pytest.approx(250)


@pytest.mark.parametrize("arrives", [False, True], ids=["never written", "written all the same"])
def test_an_event_without_acknowledgement_is_neither_produced_nor_lost_nor_unexpected(
    arrives: bool,
) -> None:
    board = Scoreboard(1)
    send(board, 1, expected={0}, ack=False)
    board.not_acknowledged("e1")
    if arrives:
        receive(board, 0, 1)
    assert (board.produced, board.matched, board.missing, board.refused) == (0, 0, 0, 1)
    assert (board.unexpected, board.duplicates) == (0, 0)


@pytest.mark.parametrize("others_wait", [False, True], ids=["finished", "still open for another"])
def test_a_second_arrival_is_a_duplicate(others_wait: bool) -> None:
    board = Scoreboard(2)
    send(board, 1, expected={0, 1} if others_wait else {0})
    receive(board, 0, 1)
    receive(board, 0, 1)
    assert (board.delivered, board.duplicates, board.unexpected) == (1, 1, 0)


def test_an_event_for_somebody_else_is_unexpected() -> None:
    board = Scoreboard(2)
    send(board, 1, expected={0})
    receive(board, 1, 1)
    assert (board.delivered, board.unexpected, board.missing) == (0, 1, 1)


def test_an_older_event_of_a_key_after_a_newer_one_is_out_of_order() -> None:
    board = Scoreboard(1)
    for number in (1, 2, 3):
        send(board, number, expected={0})
    for number in (1, 3, 2):
        receive(board, 0, number)
    assert (board.out_of_order, board.delivered, board.duplicates) == (1, 3, 0)


def test_keys_and_subscribers_may_overtake_each_other() -> None:
    board = Scoreboard(2)
    send(board, 1, key="a", expected={0, 1})
    send(board, 2, key="b", expected={0, 1})
    for watch, number in ((0, 2), (0, 1), (1, 1), (1, 2)):
        receive(board, watch, number)
    assert (board.out_of_order, board.missing) == (0, 0)


def test_the_longest_gap_is_without_any_arrival() -> None:
    board = Scoreboard(1)
    for number, at_s in ((1, 1.2), (2, 2.5), (3, 4.0), (4, 4.1)):
        send(board, number, expected={0})
        receive(board, 0, number, at_s=at_s)
    assert board.longest_gap_ms == pytest.approx(1_500)


def test_the_gap_begins_with_what_was_due_first_and_ends_with_the_wait() -> None:
    board = Scoreboard(1)
    send(board, 1, expected=set())
    for number in (2, 3):
        send(board, number, expected={0})
    receive(board, 0, 2, at_s=12.0)
    assert board.longest_gap_ms == pytest.approx(10_000)
    board.waited(until_s=52.0)
    assert board.longest_gap_ms == pytest.approx(40_000)


def test_who_waits_for_nothing_sees_no_gap() -> None:
    board = Scoreboard(1)
    send(board, 1, expected={0})
    receive(board, 0, 1)
    board.waited(until_s=52.0)
    assert board.longest_gap_ms == 0


def test_a_long_run_leaves_nothing_behind() -> None:
    board = Scoreboard(3)
    for number in range(1, 50_001):
        send(board, number, key=f"k{number % 10}", expected={0, number % 3})
        for watch in {0, number % 3}:
            receive(board, watch, number)
    assert (board.produced, board.missing, board.under_way) == (50_000, 0, 0)
    assert len(board._newest_seq) == 3
    assert sum(map(len, board._newest_number)) <= 30


def test_refusals_are_remembered_up_to_a_bound() -> None:
    board = Scoreboard(1)
    for number in range(REFUSED_KEPT + 500):
        send(board, number, expected={0}, ack=False)
        board.not_acknowledged(f"e{number}")
    assert board.refused == REFUSED_KEPT + 500
    assert len(board._refused_ids) == REFUSED_KEPT


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[int, set[int]], list[tuple[str, int, int]]]:
    """Events with who expects them, and steps: acknowledge, refuse or receive, in any order."""
    watches = st.integers(0, 2)
    expected = {number: draw(st.sets(watches)) for number in range(1, draw(st.integers(1, 8)) + 1)}
    numbers = st.sampled_from(sorted(expected))
    steps = draw(
        st.lists(st.tuples(st.sampled_from(["ack", "refuse", "receive"]), numbers, watches))
    )
    return expected, steps


@given(history=histories())
def test_the_books_agree_with_a_bookkeeper_that_forgets_nothing(
    history: tuple[dict[int, set[int]], list[tuple[str, int, int]]],
) -> None:
    expected, steps = history
    board = Scoreboard(3)
    for number, watches in expected.items():
        send(board, number, expected=watches, ack=False)
    acked: set[int] = set()
    refused: set[int] = set()
    got: set[tuple[int, int]] = set()
    for step, number, watch in steps:
        if step == "receive":
            got.add((watch, number))
            receive(board, watch, number)
        elif number not in acked | refused:
            (acked if step == "ack" else refused).add(number)
            if step == "ack":
                board.acknowledged(f"e{number}", at_s=0.0)
            else:
                board.not_acknowledged(f"e{number}")
    wanted = {(watch, number) for number in acked for watch in expected[number]}
    assert board.produced == len(acked)
    assert board.matched == len(wanted)
    assert board.delivered == len(wanted & got)
    assert board.missing == len(wanted - got)
    assert board.under_way == len(set(expected) - acked - refused) + len(
        {number for _, number in wanted - got}
    )


def test_what_a_newer_one_of_its_key_has_overtaken_is_skipped() -> None:
    board = Scoreboard(2)
    for number in (1, 2, 3):
        send(board, number, expected={0, 1})
    send(board, 4, expected={0}, key="b")
    receive(board, 0, 1)
    assert board.skipped == 0
    receive(board, 0, 3)
    assert board.skipped == 1  # the second one, at the first watch
    receive(board, 1, 3)
    assert board.skipped == 3
    receive(board, 0, 2)
    assert (board.skipped, board.out_of_order) == (2, 1)


def test_what_was_never_acknowledged_is_not_skipped() -> None:
    board = Scoreboard(1)
    send(board, 1, expected={0}, ack=False)
    send(board, 2, expected={0})
    receive(board, 0, 2)
    assert board.skipped == 0
    board.acknowledged("e1", at_s=2.0)
    assert board.skipped == 1
