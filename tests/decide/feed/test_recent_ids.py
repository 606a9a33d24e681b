"""Event ids that are remembered for a while, and no more of them than allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.feed.recent_ids import Place, RecentIds

HERE, THERE = (0, 5), (1, 9)


def test_event_is_known_for_as_long_as_it_is_remembered() -> None:
    recent = RecentIds(capacity=10, ttl_s=60)
    assert recent.see("t", "a", HERE, 0) is None
    recent.forget_old(59.9)
    assert recent.see("t", "a", THERE, 59.9) == HERE
    assert recent.see("other", "a", THERE, 59.9) is None
    assert recent.see("t", "b", THERE, 59.9) is None
    recent.forget_old(60)
    assert len(recent) == 2
    assert recent.see("t", "a", THERE, 60) is None


def test_first_place_stays_until_its_time_is_over() -> None:
    recent = RecentIds(capacity=10, ttl_s=60)
    recent.see("t", "a", HERE, 0)
    recent.forget_old(30)
    assert recent.see("t", "a", THERE, 30) == HERE
    recent.forget_old(61)
    assert recent.see("t", "a", THERE, 61) is None
    assert recent.see("t", "a", HERE, 62) == THERE


def test_what_is_taken_back_was_never_seen() -> None:
    recent = RecentIds(capacity=10, ttl_s=60)
    recent.see("t", "a", HERE, 0)
    recent.see("t", "b", HERE, 0)
    recent.take_back()
    assert recent.see("t", "a", THERE, 1) == HERE
    assert recent.see("t", "b", THERE, 1) is None


@pytest.mark.parametrize(
    ("topic", "ids", "unknown"),
    [
        pytest.param("t", ["c", "d"], True, id="all new"),
        pytest.param("t", ["c", "a"], False, id="one remembered"),
        pytest.param("t", ["c", "c"], False, id="one twice"),
        pytest.param("other", ["a", "b"], True, id="of another topic"),
        pytest.param("t", [], True, id="nothing"),
    ],
)
def test_many_are_looked_up_at_once(topic: str, ids: list[str], unknown: bool) -> None:
    recent = RecentIds(capacity=10, ttl_s=60)
    recent.remember("t", ["a", "b"], [(1, [5]), (2, [5])], 0)
    assert recent.knows_none_of(topic, ids) is unknown


Step = tuple[list[str], int, int]


@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(
            st.lists(st.sampled_from("abcdef"), max_size=4, unique=True),
            st.integers(0, 3),
            st.integers(0, 9),
        )
    ),
)
def test_agrees_with_a_list_that_remembers_everything(capacity: int, steps: list[Step]) -> None:
    """The oracle: first sightings in order of time, cut by age and number when asked. Many that are
    new are remembered at once, the others one by one."""
    recent = RecentIds(capacity=capacity, ttl_s=10)
    naive: list[tuple[int, str, Place]] = []
    now = 0
    for names, seq, passed in steps:
        now += passed
        places = [(0, seq + at) if at < 2 else (1, at) for at in range(len(names))]
        recent.forget_old(now)
        naive = [entry for entry in naive if now - entry[0] < 10][-capacity:]
        assert len(recent) == len(naive)
        found = [next((at for _, known, at in naive if known == name), None) for name in names]
        assert recent.knows_none_of("t", names) is (not any(found))
        if any(found):
            seen = [recent.see("t", *each, now) for each in zip(names, places, strict=True)]
            assert seen == found
        else:
            runs = [(number, [at for part, at in places if part == number]) for number in (0, 1)]
            recent.remember("t", names, runs, now)
        naive += [
            (now, name, place)
            for name, place, at in zip(names, places, found, strict=True)
            if at is None
        ]
