"""What an operator has delivered again: whoever has room takes it, in order, and holds nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import errors
from headgate.model.delivery import SETTLING_VERDICTS, Delivery, Verdict
from headgate.model.topology import FormerVersion, Topic
from headgate.services.gateway.subscriptions.subscriptions import Bounds, SlowPolicies
from tests.services.gateway.test_deliveries import NAMES, Stage, event, stage
from tests.written_log import TOPIC

TWO_EACH = Bounds(queue=8)
"""Room for two redeliveries per subscriber."""


def again(seq: int, *names: str, **more: Any) -> Delivery:
    return event(seq, *names, redelivery=True, **more)


@pytest.fixture
async def place() -> AsyncIterator[Stage]:
    async with stage(bounds=TWO_EACH) as made:
        yield made


# --- whoever has room ----------------------------------------------------------------------------


async def test_one_that_does_not_read_keeps_nobody_else_waiting(place: Stage) -> None:
    sent = [again(seq, "a", "b") for seq in (1, 2, 3, 4)]
    assert place.deliver(*sent[:2]) == ("retry", "retry")
    place.read("b")
    assert place.deliver(*sent[2:]) == ("retry", "retry")
    place.read("b")
    assert (place.seqs("a"), place.seqs("b")) == ([], [1, 2, 3, 4])


async def test_it_comes_later_to_who_had_no_room_and_once_to_who_had(place: Stage) -> None:
    sent = [again(seq, "a", "b") for seq in (1, 2, 3)]
    place.deliver(*sent[:2])
    place.read("b")
    assert place.deliver(sent[2]) == ("retry",)
    assert place.deliver(sent[2]) == ("retry",)
    place.read("a")
    assert place.deliver(sent[2]) == ("retry",), "it has room for it, and hasn't taken it"
    place.read("a")
    place.read("b")
    assert place.deliver(*sent) == ("duplicate",) * 3
    for name in ("a", "b"):
        place.read(name)
        assert place.seqs(name) == [1, 2, 3]
        assert all(one["redelivery"] for one in place.sent[name])


async def test_matched_anew_it_goes_to_those_who_have_not_had_it(place: Stage) -> None:
    """The lane matches a letter again before it sends it again."""
    place.deliver(again(1, "a"), again(2, "a"))
    assert place.deliver(again(3, "a", "b")) == ("retry",)
    place.read("a")
    assert place.deliver(again(3, "c", "a", "b")) == ("retry",)
    for name in NAMES:
        place.read(name)
    assert place.deliver(again(3, "b")) == ("duplicate",)
    assert [place.seqs(name) for name in NAMES] == [[1, 2, 3], [3], [3]]


async def test_once_whoever_had_no_room_has_left_everybody_has_it(place: Stage) -> None:
    place.deliver(again(1, "a"), again(2, "a"))
    assert place.deliver(again(3, "a", "b")) == ("retry",)
    await place.subscriptions.unsubscribe(place.subscribers["a"])
    assert place.deliver(again(3, "a", "b")) == ("retry",)
    place.read("b")
    assert place.deliver(again(3, "a", "b")) == ("duplicate",)
    assert place.deliver(again(3, "a")) == ("no_subscriber",)


async def test_each_hears_of_it_as_it_concerns_them_also_when_it_comes_later(place: Stage) -> None:
    place.deliver(again(1, "a"), again(2, "a"))
    for verdict in ("retry", "retry", "duplicate"):
        assert place.deliver(again(3, "a", "b", left=("a",))) == (verdict,)
        place.read("a")
        place.read("b")
    assert [one["type"] for one in place.sent["a"]] == ["event", "event", "left"]
    assert [one["type"] for one in place.sent["b"]] == ["event"]


@pytest.mark.parametrize("page", [{}, {"from_seq": 1}], ids=["by itself", "in a page"])
async def test_what_leaves_somebody_no_room_by_going_to_another_comes_to_them_later(
    page: dict[str, int],
) -> None:
    """All share the room of the gateway: what one takes is not there for the next."""
    small, large = (msgspec.Raw(b'"%s"' % (b"." * size)) for size in (1_000, 20_000))
    async with stage(bounds=Bounds(memory_bytes=25_000)) as made:
        first = again(1, "b", document=small, **page)
        second = again(2, "a", "b", document=large, **page)
        assert made.deliver(first) == ("retry",)
        assert made.deliver(second) == ("retry",)
        made.read("a")
        made.read("b")
        assert (made.seqs("a"), made.seqs("b")) == ([2], [1])
        assert made.deliver(first, second) == ("duplicate", "retry")
        made.read("b")
        assert (made.seqs("a"), made.seqs("b")) == ([2], [1, 2])
        assert made.deliver(first, second) == ("duplicate", "duplicate")


async def test_a_page_of_a_lane_that_was_overtaken_lets_nothing_pass_what_was_put_off(
    place: Stage,
) -> None:
    place.deliver(again(1, "a", epoch=2), again(2, "a", epoch=2))
    page = [again(3, "a", epoch=2, from_seq=3), event(4, "a", epoch=2, from_seq=3)]
    behind = event(5, "a", epoch=2, from_seq=5)
    assert place.deliver(*page) == ("retry", "retry")
    assert place.deliver(behind) == ("retry",)
    late = [msgspec.structs.replace(one, epoch=1) for one in page]
    assert place.deliver(*late) == ("stale_fence", "stale_fence")
    place.read("a")
    assert place.deliver(behind) == ("retry",)
    assert place.deliver(*page) == ("retry", "accepted")
    assert place.deliver(behind) == ("accepted",)
    place.read("a")
    assert place.seqs("a") == [1, 2, 3, 4, 5]


async def test_a_broadcast_comes_later_to_who_had_no_room(place: Stage) -> None:
    place.deliver(again(1, "a"), again(2, "a"))
    for verdict in ("retry", "retry", "duplicate"):
        assert place.deliver(again(3, broadcast=True)) == (verdict,)
        for name in NAMES:
            place.read(name)
    assert [place.seqs(name) for name in NAMES] == [[1, 2, 3], [3], [3]]


# --- what is new to somebody ---------------------------------------------------------------------


async def test_what_was_parked_until_a_reset_brings_it_is_the_record_itself(place: Stage) -> None:
    """Once, and a position guards it as any other."""
    place.deliver(event(1, "a"), event(1, "b"), event(2, "b"))
    place.read("a")
    place.read("b")
    sent = [again(seq, "a", "b", in_turn=True, wish=7) for seq in (1, 2)]
    assert place.deliver(*sent) == ("retry", "retry"), "somebody has yet to take what comes again"
    for name in ("a", "b"):
        place.read(name)
    came = {name: [(one["seq"], "redelivery" in one) for one in place.sent[name]] for name in "ab"}
    assert came == {
        "a": [(1, False), (1, True), (2, False)],
        "b": [(1, False), (2, False), (1, True), (2, True)],
    }
    assert place.subscribers["a"].feed.sent()[0] == 2
    assert place.deliver(*sent, event(2, "a")) == ("duplicate",) * 3


async def test_the_end_of_a_former_version_is_marked_to_whom_it_comes_behind_newer_records(
    place: Stage,
) -> None:
    """The last record of a partition that is no more was a dead letter: lanes went on without it,
    and no position tells so."""
    former = FormerVersion(1, (0, 0), (1, 2))
    for subscriber in place.subscribers.values():
        subscriber.repartitioned(Topic(TOPIC, 1, "keyed", 2, (1,), (former,), original=2))
    place.deliver(event(1, "a", "b", partition=1), event(2, "a"))
    place.read("a")
    reset = again(2, "a", "b", partition=1, in_turn=True, wish=7)
    assert place.deliver(reset) == ("retry",)
    place.read("a")
    assert place.deliver(reset) == ("duplicate",)
    for name in "ab":
        place.read(name)
    came = {
        name: [(one["partition"], one["seq"], "redelivery" in one) for one in place.sent[name]]
        for name in "ab"
    }
    assert came == {
        "a": [(1, 1, False), (0, 2, False), (1, 2, True)],
        "b": [(1, 1, False), (1, 2, False)],
    }


async def test_it_waits_behind_what_was_put_off(place: Stage) -> None:
    place.deliver(event(3, "a"))
    sent = [again(seq, "a", in_turn=True, wish=7) for seq in (1, 2, 3, 4)]
    assert place.deliver(*sent) == ("retry",) * 4
    assert not place.subscribers["a"].feed.has_reached(0, 4)
    place.read("a")
    assert place.deliver(*sent[2:]) == ("retry", "accepted")
    place.read("a")
    came = [(one["seq"], "redelivery" in one) for one in place.sent["a"]]
    assert came[-2:] == [(3, True), (4, False)]


async def test_a_retried_letter_is_nobodys_record(place: Stage) -> None:
    """What stands before it may be parked, and would be taken for a repeat."""
    place.deliver(event(1, "a"))
    assert place.deliver(again(3, "a")) == ("retry",)
    place.read("a")
    assert [(one["seq"], "redelivery" in one) for one in place.sent["a"]] == [(1, False), (3, True)]
    assert not place.subscribers["a"].feed.has_reached(0, 2)


# --- what is remembered of it --------------------------------------------------------------------


async def test_another_owner_of_the_partition_goes_on_with_the_same_wish(place: Stage) -> None:
    """A reset is put off for "a", who doesn't read, and the partition changes hands."""

    def left(epoch: int) -> list[Delivery]:
        return [again(3, "a", "b", epoch=epoch, wish=7), event(4, "a", "b", epoch=epoch)]

    begun = [again(seq, "a", "b", epoch=5, wish=7) for seq in (1, 2)]
    assert place.deliver(*begun) == ("retry", "retry")
    place.read("b")
    for epoch in (5, 6):
        assert place.deliver(*left(epoch)) == ("retry", "retry")
        place.read("b")
    place.read("a")
    assert place.deliver(*left(7)) == ("retry", "accepted")
    for name in ("a", "b"):
        place.read(name)
        assert place.seqs(name) == [1, 2, 3, 4], "nothing old behind what is newer"
    assert place.deliver(left(8)[0]) == ("duplicate",)


async def test_each_wish_brings_it_again_whatever_the_epoch(place: Stage) -> None:
    for epoch, wish, verdict in (
        (1, 4, "retry"),
        (2, 4, "duplicate"),
        (2, 5, "retry"),
        (3, 5, "duplicate"),
    ):
        assert place.deliver(again(1, "a", epoch=epoch, wish=wish)) == (verdict,)
        place.read("a")


async def test_it_passes_again_under_a_new_epoch_and_after_a_while(place: Stage) -> None:
    """From a router that is older, and names no wish."""
    for epoch, verdict in ((1, "retry"), (1, "duplicate"), (2, "retry"), (2, "duplicate")):
        assert place.deliver(again(1, "a", epoch=epoch)) == (verdict,)
        place.read("a")
    place.clock.now_s = 61.0
    assert place.deliver(again(1, "a", epoch=2)) == ("retry",)
    place.read("a")
    assert place.seqs("a") == [1, 1, 1]


async def test_what_waits_is_not_added_again_however_long_ago_it_came(place: Stage) -> None:
    for _ in range(3):
        assert place.deliver(again(1, "a")) == ("retry",)
        place.clock.now_s += 61.0
    place.read("a")
    assert place.seqs("a") == [1]


async def test_what_keeps_coming_is_remembered_however_long_it_takes(place: Stage) -> None:
    place.deliver(again(1, "a"), again(2, "a"))
    for _ in range(5):
        place.clock.now_s += 59.0
        assert place.deliver(again(3, "a", "b")) == ("retry",)
    place.read("b")
    assert place.seqs("b") == [3]


async def test_also_where_repeats_are_not_dropped_nobody_gets_twice_what_was_put_off() -> None:
    async with stage(bounds=TWO_EACH, dedup=False) as place:
        place.deliver(again(1, "a"), again(2, "a"))
        for verdict in ("retry", "retry", "duplicate"):
            assert place.deliver(again(3, "a", "b")) == (verdict,)
            place.read("b")
            place.read("a", 2)
        assert place.seqs("b") == [3]


async def test_what_can_not_be_remembered_goes_to_nobody_until_there_is_room() -> None:
    """Or those who have it would get it again and again, and behind newer ones."""
    async with stage(bounds=TWO_EACH, remembered=3) as place:
        sent = (
            again(1, "a"), again(2, "a"), again(3, "a", "b"), again(4, "a", "b"), again(5, "b"),
            event(6, "b", "c"),
        )  # fmt: skip
        assert place.deliver(*sent) == ("retry",) * 6
        for name in NAMES:
            place.read(name)
        assert [place.seqs(name) for name in NAMES] == [[1, 2], [], [6]]
        lane = LaneDouble(place, list(sent))
        for _ in range(6):
            lane.send(6, lost=False)
            for name in NAMES:
                place.read(name)
        assert not lane.pending
        assert [place.seqs(name) for name in NAMES] == [[1, 2, 3, 4], [3, 4, 5, 6], [6]]


async def test_who_comes_when_no_more_can_be_remembered_is_no_reason_to_keep_it_for_ever() -> None:
    """Everybody has room, and when they have it, it is done, and forgotten."""
    async with stage(bounds=TWO_EACH, remembered=4) as place:
        assert place.deliver(again(1, "a", "b"), again(2, "a", "b")) == ("retry", "retry")
        place.read("a")
        place.read("b")
        sent = again(1, *NAMES), again(2, *NAMES), again(3, *NAMES)
        assert place.deliver(*sent) == ("retry",) * 3
        place.read("c")
        assert [place.seqs(name) for name in NAMES] == [[1, 2]] * 3, "3 is one more"
        assert place.deliver(*sent) == ("duplicate", "duplicate", "retry")


# --- in order ------------------------------------------------------------------------------------


async def test_nothing_of_a_partition_passes_what_was_put_off(place: Stage) -> None:
    """Neither another redelivery nor a record; other partitions and subscribers go on."""
    sent = (
        again(8, "a"), again(9, "a"), again(10, "a"), event(11, "a", "b"), event(12, "b"),
        event(1, "a", partition=1),
    )  # fmt: skip
    verdicts = place.deliver(*sent)
    assert verdicts == ("retry", "retry", "retry", "retry", "accepted", "accepted")
    place.read("a")
    place.read("b")
    assert place.deliver(*sent[:4]) == ("duplicate", "duplicate", "retry", "accepted")
    place.read("a")
    place.read("b")
    assert place.deliver(sent[2]) == ("duplicate",)
    assert [(one["partition"], one["seq"]) for one in place.sent["a"]] == [
        (1, 1), (0, 8), (0, 9), (0, 10), (0, 11),
    ]  # fmt: skip
    assert place.seqs("b") == [11, 12]


async def test_nobody_hears_of_a_gap_before_what_was_put_off(place: Stage) -> None:
    sent = again(8, "a"), again(9, "a"), again(10, "a"), event(14, lost_from=11)
    assert place.deliver(*sent) == ("retry",) * 4
    assert [place.subscribers[name].feed.sent()[0] for name in NAMES] == [0, 0, 0]
    assert [len(place.subscribers[name].feed) for name in NAMES] == [2, 1, 1]
    place.read("a")
    assert place.deliver(*sent[2:]) == ("retry", "accepted")
    assert [len(place.subscribers[name].feed) for name in NAMES] == [2, 1, 1]


async def test_room_that_appears_within_a_batch_lets_nothing_pass_what_was_put_off() -> None:
    """What is dropped for somebody else makes room in the memory that all share."""
    large = msgspec.Raw(b'"%b"' % (b"x" * 7_000))
    bounds = Bounds(queue=12, memory_bytes=8_000, when_slow=SlowPolicies(low="drop_oldest"))
    async with stage(bounds=bounds) as place:
        await place.subscribe("low", "low")
        place.lines["low"].open_to = None
        place.deliver(event(1, "low", partition=1, document=large), again(1, "a"))
        sent = again(2, "a"), event(2, "low", partition=1), again(3, "a")
        assert place.deliver(*sent) == ("retry", "accepted", "retry")
        assert place.deliver(sent[0], sent[2]) == ("retry", "retry")
        place.read("a")
        assert place.seqs("a") == [1, 2, 3]


async def test_one_that_is_disconnected_within_the_batch_holds_nothing() -> None:
    bounds = Bounds(queue=4, when_slow=SlowPolicies(normal="disconnect"))
    async with stage(bounds=bounds) as place:
        place.lines["a"].open_to = None
        flood = [event(seq, "a", partition=1) for seq in range(1, 6)]
        sent = again(8, "a"), again(9, "a"), *flood, event(11, "a"), again(12, "a", "b")
        assert place.deliver(*sent)[1] == "retry"
        assert isinstance(place.subscribers["a"].closing, errors.Overloaded)
        assert place.deliver(*sent[-2:]) == ("no_subscriber", "retry")
        place.read("b")
        assert place.deliver(*sent[-2:]) == ("no_subscriber", "duplicate")


async def test_an_event_that_was_put_off_is_not_taken_for_one_that_was_here(place: Stage) -> None:
    """Its repeat in another partition is dropped only where the first one arrived."""
    place.deliver(again(8, "a"), again(9, "a"))
    sent = again(10, "a"), event(11, "a", event_id="twice")
    assert place.deliver(*sent) == ("retry", "retry")
    assert place.deliver(event(1, "b", event_id="twice", partition=1)) == ("accepted",)
    assert place.seqs("b") == [1]


# --- page by page --------------------------------------------------------------------------------


def page(from_seq: int, *deliveries: Delivery) -> list[Delivery]:
    return [msgspec.structs.replace(one, from_seq=from_seq) for one in deliveries]


def wanted(place: Stage, *deliveries: Delivery) -> tuple[tuple[Verdict, ...], list[int]]:
    """The verdicts, and from where on somebody has room for what was put off."""
    answer = place.answer(*deliveries)
    return answer.verdicts, [one.wanted_seq for one in answer.go_on]


async def test_one_for_whom_something_was_put_off_is_left_out_of_what_follows(place: Stage) -> None:
    """Also when it has room by then; others get what follows, and it gets the rest in order."""
    retry = ("retry", "retry")
    assert wanted(place, *page(1, again(1, "a"), again(2, "a", "b"))) == (retry, [0])
    assert wanted(place, *page(3, again(3, "a", "b"), again(4, "a"))) == (retry, [0])
    place.read("a")
    place.read("b")
    assert wanted(place, *page(5, again(5, "a", "b"), event(6, "a", "b"))) == (retry, [3])
    place.read("b")
    assert wanted(place, *page(3, again(3, "a", "b"), again(4, "a"))) == (retry, [0])
    place.read("a")
    assert wanted(place, *page(7, event(7, "a", "b"))) == (("retry",), [5])
    last = page(5, again(5, "a", "b"), event(6, "a", "b"), event(7, "a", "b"))
    assert wanted(place, *last) == (("retry", "accepted", "accepted"), [0])
    place.read("a")
    place.read("b")
    assert place.seqs("a") == [1, 2, 3, 4, 5, 6, 7]
    assert place.seqs("b") == [2, 3, 5, 6, 7]
    assert wanted(place, *page(1, again(1, "a"), again(5, "a", "b"))) == (("duplicate",) * 2, [0])


async def test_who_is_asked_for_the_rest_has_room_for_some_of_it(place: Stage) -> None:
    place.deliver(*page(1, again(1, "a"), again(2, "a")))
    assert wanted(place, *page(3, again(3, "a"))) == (("retry",), [0])
    place.read("a", 1)
    assert wanted(place, *page(4, again(4, "b"))) == (("retry",), [3])


async def test_a_page_without_what_was_put_off_lets_its_subscriber_go_on(place: Stage) -> None:
    """It has become a dead letter, and nothing else of that page is for it."""
    place.deliver(*page(1, again(1, "a"), again(2, "a"), again(3, "a"), again(4, "b")))
    place.read("a")
    assert wanted(place, *page(5, again(5, "a"))) == (("retry",), [3])
    assert wanted(place, *page(3, again(4, "b"))) == (("retry",), [5])
    assert wanted(place, *page(5, again(5, "a"))) == (("retry",), [0])
    place.read("a")
    assert place.seqs("a") == [1, 2, 5]


async def test_one_that_has_left_is_wanted_for_nothing(place: Stage) -> None:
    sent = page(1, again(1, "a", "b"), again(2, "a"), again(3, "a"))
    place.deliver(*sent)
    place.read("a")
    await place.subscriptions.unsubscribe(place.subscribers["a"])
    assert wanted(place, *page(4, again(4, "b"))) == (("retry",), [0])


async def test_a_gap_waits_for_what_an_earlier_page_put_off(place: Stage) -> None:
    place.deliver(*page(1, again(1, "a"), again(2, "a"), again(3, "a")))
    place.read("a")
    assert wanted(place, *page(4, event(9, lost_from=4))) == (("retry",), [3])
    assert [len(place.subscribers[name].feed) for name in NAMES] == [0, 1, 1]


async def test_each_wish_brings_its_pages_again(place: Stage) -> None:
    for wish in range(1, 8):
        for verdict in ("retry", "duplicate"):
            assert place.deliver(*page(1, again(1, "a", wish=wish))) == (verdict,)
            place.read("a")
            assert place.deliver(again(1, "a", wish=wish)) == ("duplicate",), "and not as a page"
    assert place.seqs("a") == [1] * 7


async def test_what_was_had_before_there_were_pages_does_not_come_again(place: Stage) -> None:
    assert place.deliver(again(1, "a", "b"), again(2, "a", "b")) == ("retry", "retry")
    place.read("b")
    assert place.deliver(*page(1, again(1, "a", "b"), again(2, "a", "b"))) == ("retry", "retry")
    place.clock.now_s += 61.0
    assert place.deliver(*page(1, again(1, "a", "b"), again(2, "a", "b"))) == ("retry", "retry")
    place.read("a")
    place.read("b")
    assert place.seqs("a") == place.seqs("b") == [1, 2]


async def test_what_goes_on_in_pages_takes_no_room_from_what_has_to_be_remembered() -> None:
    """It did, until it was old: nobody got any other redelivery for so long."""
    async with stage(bounds=TWO_EACH, remembered=3) as place:
        assert place.deliver(again(1, "a", "b")) == ("retry",)
        place.deliver(again(1, "c", partition=1))
        place.read("c")
        assert place.seqs("c", 1) == []
        paged = page(1, again(1, "a", "b"))
        assert place.deliver(*paged) == ("retry",)
        place.deliver(again(1, "c", partition=1))
        for name in NAMES:
            place.read(name)
        assert place.seqs("c", 1) == [1]
        assert place.deliver(*paged) == ("duplicate",)
        assert (place.seqs("a"), place.seqs("b")) == ([1], [1])


async def test_a_stopping_gateway_lets_nobody_go_on(place: Stage) -> None:
    place.deliveries.stopping = True
    assert wanted(place, *page(1, again(1, "a"))) == (("retry",), [])


@dataclass
class PagingLane:
    """Sends any page that begins no later than behind all that it has sent; it may be followed by
    another one, which begins anew."""

    place: Stage
    pending: dict[int, list[Delivery]]
    sent: dict[int, int]
    wanted: dict[int, int]

    def send(self, partition: int, where: str, size: int, *, lost: bool) -> None:
        begin = {"front": 1, "wanted": self.wanted[partition], "ahead": self.sent[partition] + 1}
        from_seq = min(begin[where] or 1, self.sent[partition] + 1)
        some = [one for one in self.pending[partition] if one.seq >= from_seq][:size]
        if not some:
            return
        answer = self.place.answer(*page(from_seq, *some))
        self.place.answered()
        if lost:
            return
        self.sent[partition] = max(some[-1].seq, self.sent[partition])
        self.wanted[partition] = answer.go_on[0].wanted_seq
        settled = [
            one.seq
            for one, verdict in zip(some, answer.verdicts, strict=True)
            if verdict in SETTLING_VERDICTS
        ]
        left = [one for one in self.pending[partition] if one.seq not in settled]
        self.pending[partition] = left

    def begin_anew(self) -> None:
        self.sent, self.wanted = {0: 0, 1: 0}, {0: 0, 1: 0}


places = st.sampled_from(["front", "wanted", "wanted", "ahead", "ahead", "ahead"])
page_step = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), places, st.integers(1, 4), st.booleans()),
    st.tuples(st.just("send"), st.integers(0, 1), places, st.integers(1, 4), st.just(False)),
    st.tuples(st.just("read"), st.sampled_from(NAMES), st.integers(1, 4)),
    st.tuples(st.just("read"), st.sampled_from(NAMES), st.integers(1, 4)),
    st.tuples(st.just("anew")),
)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(tuple),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(0, 15),
    st.lists(page_step, max_size=60),
)
@settings(deadline=None, max_examples=150)
def test_whatever_pages_come_everybody_gets_all_of_them_once_and_in_order(
    records: list[tuple[int, tuple[str, ...]]], new: int, steps: list[tuple[Any, ...]]
) -> None:
    """So many of them are `new`, behind what comes again; four of that have room."""

    async def run() -> None:
        async with stage(bounds=Bounds(queue=16), remembered=1) as place:
            due: dict[int, list[Delivery]] = {0: [], 1: []}
            for at, (partition, names) in enumerate(records):
                made = again if at < len(records) - new else event
                seq = len(due[partition]) + 1
                due[partition].append(made(seq, *names, partition=partition))
            lane = PagingLane(place, {p: list(some) for p, some in due.items()}, {}, {})
            lane.begin_anew()
            for what, *how in steps:
                if what == "send":
                    lane.send(*how[:3], lost=how[3])
                elif what == "read":
                    place.read(*how)
                else:
                    lane.begin_anew()
            lane.begin_anew()
            for _ in range(6 * len(records)):
                for partition in due:
                    for where in ("front", "wanted", "ahead"):
                        lane.send(partition, where, 3, lost=False)
                for name in NAMES:
                    place.read(name)
            assert lane.pending == {0: [], 1: []}
            for name in NAMES:
                for partition, some in due.items():
                    meant = [one.seq for one in some if name in one.subscriptions]
                    assert place.seqs(name, partition) == meant

    asyncio.run(run())


# --- simulation ----------------------------------------------------------------------------------


@dataclass
class LaneDouble:
    """Sends one batch at a time, and what was put off before anything newer. `lost` says that the
    gateway's answer didn't arrive."""

    place: Stage
    pending: list[Delivery]

    def send(self, size: int, *, lost: bool) -> None:
        batch, rest = self.pending[:size], self.pending[size:]
        verdicts: tuple[Verdict, ...] = self.place.deliver(*batch)
        self.place.answered()
        if not lost:
            left = zip(batch, verdicts, strict=True)
            again = [one for one, verdict in left if verdict not in SETTLING_VERDICTS]
            self.pending = again + rest


def concerns(delivery: Delivery, name: str, partition: int) -> bool:
    return delivery.partition == partition and name in delivery.subscriptions


record = st.tuples(
    st.integers(0, 1),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(tuple),
)
step = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 5), st.sampled_from([False, False, True])),
    st.tuples(st.just("read"), st.sampled_from(NAMES), st.integers(1, 4)),
)


@given(
    st.lists(record, min_size=1, max_size=14),
    st.integers(0, 10),
    st.sampled_from([True, False]),
    st.lists(step, max_size=30),
)
@settings(deadline=None, max_examples=60)
def test_every_subscriber_gets_what_is_for_it_once_and_in_the_order_it_was_sent_in(
    records: list[tuple[int, tuple[str, ...]]],
    reset_to: int,
    writable: bool,
    steps: list[tuple[Any, ...]],
) -> None:
    """A reset: records up to `reset_to` of each partition come again, then those that are new."""

    async def run() -> None:
        async with stage(bounds=TWO_EACH) as place:
            deliveries, heads = [], {0: 0, 1: 0}
            for partition, names in records:
                heads[partition] += 1
                made = again if heads[partition] <= reset_to else event
                deliveries.append(made(heads[partition], *names, partition=partition))
            for name in NAMES if not writable else ():
                place.lines[name].open_to = None
            lane = LaneDouble(place, list(deliveries))
            for what, first, second in steps:
                if what == "send":
                    lane.send(first, lost=second)
                else:
                    place.read(first, second)
            for _ in range(3 * len(deliveries)):
                lane.send(5, lost=False)
                for name in NAMES:
                    place.read(name)
            assert not lane.pending
            for name in NAMES:
                for partition in heads:
                    due = [one.seq for one in deliveries if concerns(one, name, partition)]
                    assert place.seqs(name, partition) == due

    asyncio.run(run())
