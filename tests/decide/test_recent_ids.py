"""Event ids that are remembered for a while, and no more of them than allowed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.recent_ids import Place, RecentIds

HERE, THERE = Place(0, 5), Place(1, 9)


def test_event_is_known_elsewhere_for_as_long_as_it_is_remembered() -> None:
    recent = RecentIds(capacity=10, ttl_s=60)
    assert recent.elsewhere("t", "a", HERE, 0) is None
    recent.remember("t", "a", HERE, 0)
    assert recent.elsewhere("t", "a", THERE, 59.9) == HERE
    assert recent.elsewhere("t", "a", HERE, 59.9) is None, "a retry of the same place is no repeat"
    assert recent.elsewhere("t", "a", THERE, 60) is None
    assert recent.elsewhere("other", "a", THERE, 1) is None
    assert recent.elsewhere("t", "b", THERE, 1) is None


def test_first_place_stays_until_its_time_is_over() -> None:
    recent = RecentIds(capacity=10, ttl_s=60)
    recent.remember("t", "a", HERE, 0)
    recent.remember("t", "a", THERE, 30)
    assert recent.elsewhere("t", "a", THERE, 31) == HERE
    recent.remember("t", "a", THERE, 61)
    assert recent.elsewhere("t", "a", HERE, 62) == THERE


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
        place = Place(0, seq)
        young = [entry for entry in naive if now - entry[0] < 10]
        found = next((at for _, known, at in young if known == name), None)
        assert recent.elsewhere("t", name, place, now) == (found if found != place else None)
        recent.remember("t", name, place, now)
        naive = young if found is not None else [*young, (now, name, place)][-capacity:]
        assert len(recent) == len(naive)
