"""Event ids that are remembered for a while, and no more of them than allowed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.recent_ids import Place, RecentIds

HERE, THERE = (0, 5), (1, 9)


def test_event_is_known_for_as_long_as_it_is_remembered() -> None:
    recent = RecentIds(capacity=10, ttl_s=60)
    assert recent.see("t", "a", HERE, 0) is None
    assert recent.see("t", "a", THERE, 59.9) == HERE
    assert recent.see("other", "a", THERE, 1) is None
    assert recent.see("t", "b", THERE, 1) is None
    assert recent.has("t", "a", 59.9)
    assert not recent.has("t", "a", 60)
    assert recent.see("t", "a", THERE, 60) is None


def test_first_place_stays_until_its_time_is_over() -> None:
    recent = RecentIds(capacity=10, ttl_s=60)
    recent.see("t", "a", HERE, 0)
    assert recent.see("t", "a", THERE, 30) == HERE
    assert recent.see("t", "a", THERE, 61) is None
    assert recent.see("t", "a", HERE, 62) == THERE


def test_what_is_taken_back_was_never_seen() -> None:
    recent = RecentIds(capacity=10, ttl_s=60)
    recent.see("t", "a", HERE, 0)
    recent.see("t", "b", HERE, 0)
    recent.take_back()
    assert recent.has("t", "a", 1)
    assert recent.see("t", "b", THERE, 1) is None


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), st.integers(0, 9))),
)
def test_agrees_with_a_list_that_remembers_everything(
    capacity: int, steps: list[tuple[str, int, int]]
) -> None:
    """The oracle: first sightings in order of time, cut by age and number when asked."""
    recent = RecentIds(capacity=capacity, ttl_s=10)
    naive: list[tuple[int, str, Place]] = []
    now = 0
    for name, seq, passed in steps:
        now += passed
        place = (0, seq)
        recent.forget_old(now)
        naive = [entry for entry in naive if now - entry[0] < 10][-capacity:]
        assert len(recent) == len(naive)
        found = next((at for _, known, at in naive if known == name), None)
        assert recent.see("t", name, place, now) == found
        if found is None:
            naive.append((now, name, place))
