"""When a gateway is left alone, and when it is tried again."""

from __future__ import annotations

from headgate.decide.delivery.breaker import Breaker
from headgate.model.control.reports import BreakerState


def state(breaker: Breaker) -> BreakerState:
    return breaker.state


def tried(breaker: Breaker, now_s: float, *, fails: bool) -> bool:
    """One attempt, if one is allowed."""
    if not breaker.allows(now_s):
        return False
    breaker.attempted()
    if fails:
        breaker.failed(now_s)
    else:
        breaker.succeeded()
    return True


def test_it_opens_after_as_many_failures_in_a_row() -> None:
    breaker = Breaker(threshold=5, timeout_s=30.0)
    for now_s in range(4):
        assert tried(breaker, now_s, fails=True)
    assert state(breaker) == "closed"
    assert tried(breaker, 4.0, fails=True)
    assert state(breaker) == "open"
    assert not breaker.allows(33.9)
    assert breaker.allows(34.0)


def test_a_success_in_between_starts_the_count_anew() -> None:
    breaker = Breaker(threshold=2, timeout_s=30.0)
    for fails in (True, False, True, False, True):
        assert tried(breaker, 0.0, fails=fails)
    assert state(breaker) == "closed"


def test_one_probe_decides() -> None:
    breaker = Breaker(threshold=1, timeout_s=30.0)
    tried(breaker, 0.0, fails=True)
    assert breaker.allows(30.0)
    breaker.attempted()
    assert state(breaker) == "half_open"
    breaker.failed(31.0)
    assert state(breaker) == "open"
    assert not breaker.allows(60.9)
    assert tried(breaker, 61.0, fails=False)
    assert state(breaker) == "closed"
    assert breaker.allows(61.0)


def test_a_gateway_that_others_gave_up_on_gets_one_try() -> None:
    breaker = Breaker(threshold=5, timeout_s=30.0)
    breaker.wary = True
    assert tried(breaker, 0.0, fails=True)
    assert state(breaker) == "open"


def test_a_gateway_that_started_anew_is_tried_at_once() -> None:
    breaker = Breaker(threshold=1, timeout_s=30.0)
    tried(breaker, 0.0, fails=True)
    breaker.renewed()
    assert state(breaker) == "closed"
    assert breaker.allows(0.0)


def test_a_gateway_that_nothing_is_for_any_more_is_not_held_against_it_but_gets_one_try() -> None:
    breaker = Breaker(threshold=5, timeout_s=30.0)
    for _ in range(5):
        tried(breaker, 0.0, fails=True)
    breaker.rested()
    assert state(breaker) == "closed"
    assert tried(breaker, 100.0, fails=True)
    assert state(breaker) == "open"
    breaker.rested()
    assert tried(breaker, 200.0, fails=False)
    assert tried(breaker, 201.0, fails=True)
    assert state(breaker) == "closed", "one that answers begins anew"
