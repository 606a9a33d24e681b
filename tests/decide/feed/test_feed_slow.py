"""What a full queue does, by policy, and what a subscriber is told about what doesn't come."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.decide.feed.feed import Delivered, Feed, Read, WhenSlow
from headgate.decide.feed.queue import Budget, Item, Resync
from tests.decide.feed.test_feed import CAPACITY, READ_LIMIT, World, history, step


def live(
    starts: dict[int, int],
    when_slow: WhenSlow,
    *,
    capacity: int = CAPACITY,
    budget: Budget | None = None,
) -> Feed[str]:
    made: Feed[str] = Feed(
        starts,
        capacity=capacity,
        capacity_bytes=1_000,
        read_limit=READ_LIMIT,
        when_slow=when_slow,
        budget=budget,
    )
    made.release(starts)
    return made


def all_of(subject: Feed[str]) -> list[tuple[int, int] | Resync]:
    out: list[tuple[int, int] | Resync] = []
    while (item := subject.take()) is not None:
        out.append(item if isinstance(item, Resync) else (item.partition, item.seq))
    return out


def test_drop_oldest_keeps_the_newest_and_says_first_what_is_left_out() -> None:
    subject = live({0: 0}, "drop_oldest", capacity=2)
    for seq in (2, 4, 6, 9):
        assert subject.deliver(0, seq, "x") is Delivered.QUEUED
    assert subject.dropped == 2
    assert len(subject) == 3, "two items and the note about the others wait"
    assert subject.peek() == Resync(0, 1, 5, "slow")
    assert all_of(subject) == [Resync(0, 1, 5, "slow"), (0, 6), (0, 9)]
    assert subject.sent() == {0: 9}
    assert subject.live


def test_what_is_left_out_is_said_once_and_anew_after_that() -> None:
    subject = live({0: 0}, "drop_oldest", capacity=1)
    subject.deliver(0, 1, "x")
    subject.deliver(0, 2, "x")
    assert subject.take() == Resync(0, 0, 2, "slow")
    subject.deliver(0, 3, "x")
    assert subject.take() == Resync(0, 1, 3, "slow")
    assert all_of(subject) == [(0, 3)]


def test_each_partition_has_its_own_note() -> None:
    subject = live({0: 0, 1: 0}, "drop_oldest", capacity=1)
    subject.deliver(0, 1, "x")
    subject.deliver(1, 1, "x")
    subject.deliver(0, 2, "x")
    assert all_of(subject) == [Resync(0, 0, 2, "slow"), Resync(1, 0, 2, "slow"), (0, 2)]


def test_note_about_retention_that_is_dropped_stays_a_note() -> None:
    subject = live({0: 0}, "drop_oldest", capacity=1)
    subject.resync(0, 0, 5)
    assert subject.deliver(0, 5, "x") is Delivered.QUEUED
    assert all_of(subject) == [Resync(0, 0, 5, "slow"), (0, 5)]


def test_with_nothing_to_drop_the_log_is_read() -> None:
    subject = live({0: 0, 1: 0}, "drop_oldest", capacity=1)
    subject.release({0: 3})
    read = subject.next_read()
    assert read == Read(0, 0, 1), "its result has the only place"
    assert subject.deliver(1, 1, "x") is Delivered.DEFERRED
    assert subject.behind() == [0, 1]


def test_disconnect_is_said_and_changes_nothing() -> None:
    subject = live({0: 0}, "disconnect", capacity=1)
    subject.deliver(0, 1, "x")
    assert subject.deliver(0, 2, "x") is Delivered.OVERFLOW
    assert (len(subject), subject.behind()) == (1, [])


def test_disconnect_does_not_concern_one_that_catches_up() -> None:
    subject = live({0: 0}, "disconnect", capacity=1)
    subject.release({0: 5})
    assert subject.deliver(0, 6, "x") is Delivered.DEFERRED
    subject.hold()
    assert subject.deliver(0, 7, "x") is Delivered.DEFERRED


@pytest.mark.parametrize(
    ("when_slow", "expected"),
    [
        ("park", Delivered.DEFERRED),
        ("drop_oldest", Delivered.QUEUED),
        ("disconnect", Delivered.OVERFLOW),
    ],
)
def test_budget_that_is_spent_leaves_room_for_one_item_each(
    when_slow: WhenSlow, expected: Delivered
) -> None:
    budget = Budget(10)
    greedy = live({0: 0}, "park", budget=budget)
    greedy.deliver(0, 1, "x" * 10)
    subject = live({0: 0}, when_slow, budget=budget)
    assert subject.deliver(0, 1, "abc") is Delivered.QUEUED
    assert subject.deliver(0, 2, "abc") is expected
    assert len([item for item in [subject.take(), subject.take()] if isinstance(item, Item)]) == 1
    greedy.clear()
    assert budget.taken_bytes == 0


def test_retention_is_said_after_what_waits_and_before_what_follows() -> None:
    subject = live({0: 0}, "park", capacity=4)
    subject.deliver(0, 1, "x")
    subject.release({0: 9})
    read = subject.next_read()
    assert read is not None
    subject.gone(read, 8)
    again = subject.next_read()
    assert again is not None
    assert again.after_seq == 7
    subject.replayed(again, 9, [(9, "x")])
    assert all_of(subject) == [(0, 1), Resync(0, 1, 8, "retention"), (0, 9)]
    assert subject.live


@pytest.mark.parametrize("earliest", [0, 1], ids=["before the read", "right after it"])
def test_retention_that_took_nothing_is_refused(earliest: int) -> None:
    subject = live({0: 0}, "park")
    subject.release({0: 9})
    read = subject.next_read()
    assert read is not None
    with pytest.raises(ValueError, match="missed"):
        subject.gone(read, earliest)
    assert subject.behind() == [0]


def test_those_that_do_not_read_leave_something_for_those_that_do() -> None:
    budget = Budget(8_000)
    hogs = [live({0: 0}, "park", capacity=10_000, budget=budget) for _ in range(100)]
    for seq in range(1, 200):
        for hog in hogs:
            hog.deliver(0, seq, "x" * 10)
    assert budget.taken_bytes < budget.limit_bytes
    assert len({len(hog) for hog in hogs}) <= 2, "they share alike"
    reader = live({0: 0}, "park", capacity=10_000, budget=budget)
    assert [reader.deliver(0, seq, "x") for seq in (1, 2, 3)] == [Delivered.QUEUED] * 3


# --- simulation ----------------------------------------------------------------------------------


@dataclass
class ForgetfulWorld(World):
    """The same world, for a subscriber that may be told of records left out."""

    said: dict[int, list[int | Resync]] = field(default_factory=dict)

    def turn(self) -> None:
        """Everything goes through the queue here."""

    def take(self) -> None:
        if (item := self.subject.take()) is not None:
            heard = item if isinstance(item, Resync) else item.seq
            self.said.setdefault(item.partition, []).append(heard)


@given(
    past=st.tuples(history, history),
    starts=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    steps=st.lists(step, max_size=60),
)
@settings(max_examples=400, deadline=None)
def test_what_does_not_come_is_said_exactly_where_it_would_have_come(
    past: tuple[list[bool], list[bool]],
    starts: tuple[int, int],
    steps: list[tuple[object, ...]],
) -> None:
    log = {number: list(records) for number, records in enumerate(past)}
    begin = {number: min(start, len(log[number])) for number, start in enumerate(starts)}
    budget = Budget(1_000)
    world = ForgetfulWorld(
        begin,
        live(begin, "drop_oldest", budget=budget),
        log,
        cursor={number: len(records) for number, records in log.items()},
        floor={number: len(records) for number, records in log.items()},
    )
    world.subject.hold()
    for name, *arguments in steps:
        getattr(world, str(name))(*arguments)
        assert len(world.subject) <= CAPACITY + len(log)
    world.settle()
    for partition, expected in world.expected().items():
        last, came, left_out = begin[partition], [], set()
        for heard in world.said.get(partition, []):
            if isinstance(heard, Resync):
                assert heard.after_seq >= last
                left_out |= set(range(heard.after_seq + 1, heard.from_seq))
                last = heard.from_seq - 1
            else:
                assert heard > last
                came.append(heard)
                last = heard
        assert came == [seq for seq in expected if seq not in left_out]
    assert budget.taken_bytes == 0
    assert world.subject.live
