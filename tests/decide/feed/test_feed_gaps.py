"""Records that nobody will get, and those that come again on purpose."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.decide.feed.feed import Delivered, Feed, Read, WhenSlow
from headgate.decide.feed.queue import Budget, Item, Resync
from headgate.decide.feed.redeliveries import Redelivery
from tests.decide.feed.test_feed import READ_LIMIT, feed, live_feed
from tests.decide.feed.test_feed_slow import live

# --- gaps ----------------------------------------------------------------------------------------


def test_a_gap_stands_in_the_queue_where_the_records_would_have_stood() -> None:
    subject = live_feed({0: 0, 1: 0})
    subject.deliver(0, 3, "x")
    assert subject.lost(0, 5, 9) is Delivered.QUEUED
    assert subject.deliver(0, 10, "x") is Delivered.QUEUED
    assert subject.deliver(1, 2, "x") is Delivered.DEFERRED, "a gap counts for what may wait"
    assert [subject.take() for _ in range(3)] == [
        Item(0, 3, "x"),
        Resync(0, 4, 10, "gap"),
        Item(0, 10, "x"),
    ]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        pytest.param(0, Resync(0, 0, 10, "gap"), id="long before, and nothing came since"),
        pytest.param(4, Resync(0, 4, 10, "gap"), id="right before"),
        pytest.param(7, Resync(0, 4, 10, "gap"), id="in the middle, whatever of it came"),
        pytest.param(9, None, id="at its end"),
        pytest.param(50, None, id="far behind it"),
    ],
)
def test_only_who_is_before_a_gap_hears_of_it_and_once(start: int, expected: Resync | None) -> None:
    subject = live_feed({0: start})
    outcome = Delivered.QUEUED if expected else Delivered.DUPLICATE
    assert subject.lost(0, 5, 9) is outcome
    assert subject.lost(0, 5, 9) is Delivered.DUPLICATE
    assert subject.take() == expected
    assert subject.sent()[0] == max(9, start)
    assert subject.take() is None


def test_who_began_where_the_log_was_shorter_than_lanes_have_read_hears_of_it_from_there() -> None:
    """It had lost its history just then, and its owner moved it on: what a lane had read of it
    before that, and nobody had saved yet, is neither in the log nor in the news of the gap."""
    subject = feed({0: 2})
    subject.release({0: 3})
    subject.replayed(_read(subject), 3, [(3, "x")])
    assert subject.lost(0, 8, 60) is Delivered.QUEUED
    assert [subject.take(), subject.take()] == [Item(0, 3, "x"), Resync(0, 3, 61, "gap")]


def test_whoever_lanes_have_brought_something_hears_of_a_gap_alone() -> None:
    subject = live_feed({0: 2})
    subject.deliver(0, 3, "x")
    assert subject.lost(0, 8, 60) is Delivered.QUEUED
    assert [subject.take(), subject.take()] == [Item(0, 3, "x"), Resync(0, 7, 61, "gap")]


def test_a_letter_of_the_midst_of_a_gap_hides_nothing_of_it() -> None:
    """It was parked before its neighbours were lost, and is sent before the news of them."""
    subject = live_feed({0: 4})
    assert subject.deliver(0, 7, "x") is Delivered.QUEUED
    assert subject.lost(0, 5, 9) is Delivered.QUEUED
    assert [subject.take(), subject.take()] == [Item(0, 7, "x"), Resync(0, 4, 10, "gap")]


def test_nor_does_one_after_which_whoever_got_it_reads_on_in_the_log() -> None:
    """Nothing before that is read there any more, so it is said with what lies behind. Nobody takes
    back what was sent meanwhile."""
    subject = live_feed({0: 4}, capacity=2)
    for seq in (7, 8):
        assert subject.deliver(0, seq, "x") is Delivered.QUEUED
    assert subject.lost(0, 5, 11) is Delivered.DEFERRED
    assert [subject.take(), subject.take()] == [Item(0, 7, "x"), Item(0, 8, "x")]
    subject.gone(_read(subject), 12)
    assert subject.sent()[0] == 8
    assert subject.take() == Resync(0, 4, 12, "retention")
    assert subject.sent()[0] == 11
    subject.release({0: 30})
    subject.gone(_read(subject), 20)
    assert subject.take() == Resync(0, 11, 20, "retention"), "and once"


def test_who_catches_up_finds_the_gap_in_the_log_and_only_there() -> None:
    subject = feed({0: 2})
    subject.release({0: 12})
    assert subject.lost(0, 5, 9) is Delivered.DEFERRED
    subject.replayed(_read(subject), 4, [(4, "x")])
    subject.gone(_read(subject), 10)
    assert subject.lost(0, 5, 9) is Delivered.DUPLICATE
    assert [subject.take(), subject.take()] == [Item(0, 4, "x"), Resync(0, 4, 10, "retention")]


def test_who_may_lack_what_is_before_a_gap_looks_for_it_in_the_log() -> None:
    subject = live_feed({0: 2})
    assert subject.lost(0, 5, 9, since=4) is Delivered.DEFERRED
    subject.replayed(_read(subject), 4, [(4, "x")])
    subject.gone(_read(subject), 10)
    assert [subject.take(), subject.take()] == [Item(0, 4, "x"), Resync(0, 4, 10, "retention")]
    assert live_feed({0: 4}).lost(0, 5, 9, since=4) is Delivered.QUEUED


def test_a_gap_at_the_end_of_the_log_is_waited_for_like_a_record() -> None:
    subject = live_feed({0: 2}, capacity=1)
    subject.deliver(0, 3, "x")
    assert subject.lost(0, 5, 9) is Delivered.DEFERRED
    subject.take()
    assert subject.next_read() == Read(0, 3, 1), "it reads on until it meets the gap"


@pytest.mark.parametrize(
    ("when_slow", "outcome", "heard"),
    [
        pytest.param("park", Delivered.DEFERRED, [Item(0, 1, "x")], id="park"),
        pytest.param(
            "drop_oldest", Delivered.QUEUED,
            [Resync(0, 0, 2, "slow"), Resync(0, 4, 10, "gap")], id="drop_oldest",
        ),
        pytest.param("disconnect", Delivered.OVERFLOW, [Item(0, 1, "x")], id="disconnect"),
    ],
)  # fmt: skip
def test_a_full_queue_treats_a_gap_like_a_record(
    when_slow: WhenSlow, outcome: Delivered, heard: list[object]
) -> None:
    subject = live({0: 0}, when_slow, capacity=1)
    subject.deliver(0, 1, "x")
    assert subject.lost(0, 5, 9) is outcome
    assert [subject.take() for _ in heard] == heard
    assert subject.take() is None


def _read(subject: Feed[str]) -> Read:
    read = subject.next_read()
    assert read is not None
    return read


records = st.lists(st.sampled_from(["match", "other", "gone"]), min_size=1, max_size=12)
choices = st.lists(st.sampled_from(["lane", "read", "take"]), max_size=60)


@given(log=records, start=st.integers(0, 4), known=st.integers(0, 12), steps=choices)
@example(log=["match", "gone", "gone"], start=2, known=0, steps=[])
@settings(max_examples=400, deadline=None)
def test_every_record_comes_or_is_said_to_be_missing_exactly_once(
    log: list[str], start: int, known: int, steps: list[str]
) -> None:
    """The oracle is the log itself; the lane says each run of lost records before the next one.
    Whoever begins in the middle of such a run hears of it whole."""
    log = [*log, "match"]
    start, known = min(start, len(log)), min(known, len(log))
    subject: Feed[str] = Feed({0: start}, capacity=3, capacity_bytes=99, read_limit=READ_LIMIT)
    subject.release({0: known})
    lane, out = known, list[object]()
    for step in [*steps, *["lane", "read", "take"] * 4 * len(log)]:
        if step == "lane" and lane < len(log):
            first = lane + 1
            while log[lane] == "gone":
                lane += 1
            if lane >= first:
                subject.lost(0, first, lane)
            lane += 1
            if log[lane - 1] == "match":
                subject.deliver(0, lane, "x")
        elif step == "read" and (read := subject.next_read()) is not None:
            after = range(read.after_seq + 1, len(log) + 1)
            found = [seq for seq in after if log[seq - 1] != "gone"]
            if found[0] > read.after_seq + 1:
                subject.gone(read, found[0])
                continue
            end = next((at for at, seq in enumerate(found) if seq != found[0] + at), len(found))
            taken = found[: min(end, read.limit)]
            matches = [(seq, "x") for seq in taken if log[seq - 1] == "match"]
            subject.replayed(read, taken[-1], matches)
        elif step == "take" and (item := subject.take()) is not None:
            out.append(item)
    missing = [
        seq
        for item in out
        if isinstance(item, Resync)
        for seq in range(item.after_seq + 1, item.from_seq)
    ]
    came = [item.seq for item in out if isinstance(item, Item)]
    after = range(start + 1, len(log) + 1)
    assert came == [seq for seq in after if log[seq - 1] == "match"]
    assert [s for s in missing if s in after and log[s - 1] == "gone"] == [
        s for s in after if log[s - 1] == "gone"
    ]
    assert not set(missing) & set(came)
    places = [i.seq if isinstance(i, Item) else i.from_seq - 1 for i in out]  # type: ignore[attr-defined]
    assert places == sorted(set(places))


# --- redeliveries --------------------------------------------------------------------------------


def test_a_redelivery_passes_and_moves_no_position() -> None:
    subject = live_feed({0: 5})
    subject.redeliver(0, 3, "again")
    assert subject.sent() == {0: 5}
    assert subject.peek() == Redelivery(0, 3, "again") == subject.take()
    assert subject.sent() == {0: 5}
    assert subject.deliver(0, 6, "x") is Delivered.QUEUED


def test_redeliveries_and_the_queue_take_turns() -> None:
    subject = live_feed({0: 0}, capacity=8)
    for seq in (11, 12, 13):
        subject.deliver(0, seq, "x")
    for seq in (1, 2):
        subject.redeliver(0, seq, "again")
    assert len(subject) == 5
    order = []
    while (item := subject.peek()) is not None:
        assert item == subject.take()
        assert not isinstance(item, Resync)
        order.append(item.seq)
    assert order == [11, 1, 12, 2, 13]


def test_held_and_catching_up_it_still_gets_redeliveries() -> None:
    subject = feed({0: 0})
    subject.redeliver(0, 1, "again")
    subject.take()
    subject.release({0: 9})
    subject.redeliver(0, 2, "again")
    assert subject.take() == Redelivery(0, 2, "again")
    assert subject.next_read() == Read(0, 0, READ_LIMIT)


def test_redeliveries_are_bounded_beside_the_queue() -> None:
    subject = live({0: 0}, "park", capacity=8)
    subject.redeliver(0, 1, "again")
    subject.redeliver(0, 2, "again")
    with pytest.raises(ValueError, match="no room"):
        subject.redeliver(0, 3, "again")
    assert subject.deliver(0, 9, "x") is Delivered.QUEUED, "they take no room of the queue"
    subject.take()
    subject.take()
    assert subject.takes_redeliveries


def test_redeliveries_count_for_what_may_wait_for_all() -> None:
    budget = Budget(80)
    tight = live({0: 0}, "park", capacity=400, budget=budget)
    tight.redeliver(0, 1, "x" * 500)
    assert not tight.takes_redeliveries
    tight.clear()
    assert (budget.taken_bytes, len(tight)) == (0, 0)
    tight.redeliver(0, 1, "x")


def test_what_is_dropped_for_a_slow_one_is_never_a_redelivery() -> None:
    subject = live({0: 0}, "drop_oldest", capacity=4)
    subject.redeliver(0, 1, "again")
    for seq in range(2, 12):
        subject.deliver(0, seq, "x")
    heard = []
    while (item := subject.take()) is not None:
        heard.append(item)
    assert Redelivery(0, 1, "again") in heard
    assert Resync(0, 1, 8, "slow") in heard
