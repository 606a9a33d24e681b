"""Terms that ended by an error: how long to wait, whom to go on without, and what to say."""

from __future__ import annotations

import pytest

from headgate.decide.coordination.failures import BLAMED_MAX, SHOWN_S, TermFailures
from headgate.decide.operations.supervision import RestartPolicy
from headgate.model.control.to_coordinator import Hello

POLICY = RestartPolicy(initial_s=1.0, max_s=15.0, multiplier=2.0, stable_s=60.0)
ROUTER = Hello(role="router", node_id="router-1", incarnation="a")


@pytest.fixture
def failures() -> TermFailures:
    return TermFailures(POLICY)


def test_the_pause_grows_with_failures_in_a_row_and_has_a_bound(failures: TermFailures) -> None:
    pauses = [failures.failed("x", by=None, ran_s=0.3, now_s=n) for n in range(8)]
    assert pauses == [1, 2, 4, 8, 15, 15, 15, 15]


def test_a_term_that_lasted_begins_the_count_anew(failures: TermFailures) -> None:
    for _ in range(5):
        failures.failed("x", by=None, ran_s=0.3, now_s=1)
    assert failures.failed("x", by=None, ran_s=61, now_s=70) == 1
    assert failures.count == 6


def test_whoever_ends_several_terms_in_a_row_is_kept_out_until_one_lasted(
    failures: TermFailures,
) -> None:
    for _ in range(BLAMED_MAX):
        assert not failures.keeps_out(ROUTER, ran_s=0)
        failures.failed("x", by=ROUTER, ran_s=0.3, now_s=1)
    assert failures.keeps_out(ROUTER, ran_s=0)
    assert failures.keeps_out(ROUTER, ran_s=59)
    assert not failures.keeps_out(ROUTER, ran_s=60)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Hello(role="router", node_id="router-2", incarnation="a"), id="another node"),
        pytest.param(Hello(role="router", node_id="router-1", incarnation="b"), id="restarted"),
        pytest.param(Hello(role="lane", node_id="router-1", incarnation="a"), id="its lane"),
    ],
)
def test_nobody_else_is_kept_out(failures: TermFailures, other: Hello) -> None:
    for _ in range(BLAMED_MAX):
        failures.failed("x", by=ROUTER, ran_s=0.3, now_s=1)
    assert not failures.keeps_out(other, ran_s=0)


def test_failures_far_between_are_held_against_nobody(failures: TermFailures) -> None:
    for n in range(3 * BLAMED_MAX):
        failures.failed("x", by=ROUTER, ran_s=100, now_s=100 * n)
        assert not failures.keeps_out(ROUTER, ran_s=0)


def test_what_happened_is_said_with_how_often_and_when(failures: TermFailures) -> None:
    assert failures.sentence(5) == ""
    failures.failed("KeyError('x')", by=None, ran_s=1, now_s=10)
    assert failures.sentence(12) == (
        "a term of this coordinator ended by an error, the last one 2 s ago: KeyError('x'); "
        "its log says more"
    )
    failures.failed("KeyError('y')", by=ROUTER, ran_s=1, now_s=20)
    said = failures.sentence(21)
    assert said.startswith("2 terms of this coordinator ended by an error, the last one 1 s ago")
    assert "KeyError('y'), when router router-1 spoke" in said
    assert failures.sentence(21 + SHOWN_S) == ""
