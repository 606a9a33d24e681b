"""What a reset of a consumer group means, partition by partition."""

from __future__ import annotations

from headgate.decide.coordination.groups.regrouping import Wish, in_order, plan, wishes
from headgate.model.groups import Group
from headgate.model.position import Position
from headgate.model.topology import FormerVersion, Topic

GROUP = Group("@group/flights/radar", "flights", "radar", 2, starts=(5,))
POSITIONS = {GROUP.position_ref(0, 0): Position(10), GROUP.position_ref(1, 0): Position(4)}


def test_the_sums_are_the_most_that_comes_again_or_never() -> None:
    [back] = plan(GROUP, POSITIONS, {0: 2})
    assert (back.lowest, back.highest, back.repeats_max, back.skips_max) == (4, 10, 8, 0)
    [ahead] = plan(GROUP, POSITIONS, {0: 30})
    assert (ahead.repeats_max, ahead.skips_max) == (0, 26)
    [between] = plan(GROUP, POSITIONS, {0: 7})
    assert (between.repeats_max, between.skips_max) == (3, 3)


def test_one_without_a_position_is_where_the_group_began() -> None:
    [one] = plan(GROUP, {}, {0: 5})
    assert (one.lowest, one.highest, one.repeats_max, one.skips_max) == (5, 5, 0, 0)


def test_one_that_was_put_back_to_the_beginning_is_there() -> None:
    """And not where the group began."""
    positions = dict.fromkeys(GROUP.position_refs(0), Position(0, again_to=10))
    [one] = plan(GROUP, positions, {0: 4})
    assert (one.lowest, one.highest, one.skips_max) == (0, 0, 4)
    assert all(wish.goes_ahead for wish in wishes(GROUP, positions, {0: 4}, {0: 30}))


def test_each_position_goes_its_way() -> None:
    found = wishes(GROUP, POSITIONS, {0: 7}, {0: 30})
    first, second = GROUP.position_refs(0)
    assert found == [Wish(first, 7, 10, 30), Wish(second, 7, 4, 30)]
    assert [one.goes_ahead for one in found] == [False, True]


def test_one_that_is_there_already_may_have_had_others_processed_ahead_of_it() -> None:
    [first, _] = wishes(GROUP, POSITIONS, {0: 10}, {0: 30})
    assert (first.goes_ahead, first.until) == (False, 30)
    [first, _] = wishes(GROUP, POSITIONS, {0: 10}, {0: 10})
    assert (first.goes_ahead, first.until) == (False, 10), "there is nothing behind it"


def test_newer_events_of_a_key_come_along_whatever_their_clocks_said() -> None:
    """Two partitions became three: what is behind the first two ends there at 10 and 20."""
    former = FormerVersion(1, (0, 0), (10, 20))
    topic = Topic(
        "flights", 3, version=2, after=(10, 20, 0), former=(former,), original=2, begins=(0,)
    )
    assert in_order(topic, {0: 4, 1: 20, 2: 7}) == {0: 4, 1: 20, 2: 0}
    assert in_order(topic, {0: 10, 1: 20, 2: 7}) == {0: 10, 1: 20, 2: 7}
