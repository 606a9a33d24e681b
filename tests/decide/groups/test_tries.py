"""What failed too often is given up, for certain and not before."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headgate.decide.groups.tries import Chance, RecordsTried, TriedInVain

things = st.sampled_from("abcd")
losses = st.lists(st.sets(things, min_size=1), max_size=40)


@given(losses, st.integers(1, 5))
def test_only_so_many_failures_give_up_and_the_last_of_them_was_certain(
    lost: list[set[str]], limit: int
) -> None:
    """A lost consumer had some things in hand; the oracle counts for each how often it was there,
    and how often alone."""
    tried = TriedInVain()
    there: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    for some in lost:
        had = {one for one in some if tried.chance(one, limit) is not Chance.NONE}
        last = sorted(one for one in had if tried.chance(one, limit) is Chance.LAST)
        if last:
            had = {last[0]}  # that is handed out alone
        tried.lost(had, certain=len(had) == 1)
        there.update(had)
        alone.update(had if len(had) == 1 else ())
        for one in "abcd":
            given_up = tried.chance(one, limit) is Chance.NONE
            assert given_up == (there[one] >= limit), "not before, and not after"
            assert not given_up or alone[one]


@given(st.lists(st.sets(things, min_size=2)))
def test_who_was_never_alone_is_never_given_up(lost: list[set[str]]) -> None:
    tried = TriedInVain()
    for some in lost:
        tried.lost(some, certain=False)
    assert all(tried.chance(one, 3) is not Chance.NONE for one in "abcd")


def test_without_a_limit_there_is_always_another_chance() -> None:
    tried = TriedInVain()
    tried.failed("a", 100)
    assert tried.chance("a", 0) is Chance.SOME


def test_one_that_said_so_itself_is_given_up_though_others_were_there() -> None:
    tried = TriedInVain()
    tried.lost("ab", certain=False)
    assert tried.chance("a", 2) is Chance.LAST
    tried.failed("a", 2)
    assert (tried.chance("a", 2), tried.chance("b", 2)) == (Chance.NONE, Chance.LAST)


def test_what_is_remembered_is_bounded() -> None:
    tried = TriedInVain(capacity=2)
    for one in "abc":
        tried.failed(one, 1)
    assert [tried.count(one) for one in "abc"] == [0, 1, 1]


def test_records_are_saved_when_something_changed_and_forgotten_with_the_position() -> None:
    tried = RecordsTried({0: ((5, 1, 0), (7, 2, 2)), 1: ()})
    assert tried.unsaved() == {}
    tried.failed((0, 5), 2)
    tried.failed((1, 3), 1)
    assert tried.unsaved() == {0: ((5, 2, 2), (7, 2, 2)), 1: ((3, 1, 2),)}
    for partition, tries in tried.unsaved().items():
        tried.saved(partition, tries)
    assert tried.unsaved() == {}
    tried.settled({0: 6})
    assert (tried.count((0, 5)), tried.count((0, 7)), tried.count((1, 3))) == (0, 2, 1)
    tried.settled({0: 7, 1: 3})
    assert tried.unsaved() == {}


def test_one_that_was_lost_with_its_consumer_and_is_still_worked_on_has_not_failed() -> None:
    tried = TriedInVain()
    for certain in (False, True):
        tried.lost("a", certain=certain)
    for _ in range(2):  # it may connect again and again
        tried.spare("a", 2)
    assert (tried.count("a"), tried.chance("a", 2)) == (1, Chance.LAST)
    tried.failed("a", 2)
    tried.spare("a", 3)
    assert tried.chance("a", 2) is Chance.NONE, "it said so, of another delivery"
    tried.spare("b", 1)
    assert tried.count("b") == 0


def test_who_is_back_and_works_on_it_takes_back_no_failure_of_somebody_else() -> None:
    """It was handed to others while that one was away, who said that they failed with it."""
    tried = TriedInVain()
    tried.lost("a", certain=False)
    for delivery in (2, 3):
        tried.failed("a", delivery)
    for worked_on in (2, 3):
        tried.spare("a", worked_on)
    assert (tried.count("a"), tried.chance("a", 3)) == (3, Chance.NONE)


def test_a_lower_limit_gives_up_nothing_that_was_merely_there() -> None:
    tried = TriedInVain()
    for _ in range(4):
        tried.lost("ab", certain=False)
    assert [tried.chance(one, 2) for one in "ab"] == [Chance.LAST, Chance.LAST]
