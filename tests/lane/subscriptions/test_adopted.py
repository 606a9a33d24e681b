"""What a lane matches with: snapshots in parts, changes on top, large indexes built on the side."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.adapters.machine import THIS_MACHINE
from headgate.decide.lane.notes import Known
from headgate.decide.matching.index import MatchIndex
from headgate.lane.subscriptions.adopted import Adopted, KeptIndex, Read
from headgate.model.control.from_coordinator import SubscriptionChanges, SubscriptionSnapshot
from headgate.model.event import PartitionRef, Record
from headgate.model.subscription import Subscription

REF = PartitionRef("flights", 0)


def some(*names: str) -> tuple[Subscription, ...]:
    return tuple(Subscription(name, "gateway-1", "flights", f"key == '{name}'") for name in names)


def unread() -> Read:
    return {}


def held(lane: Adopted, *names: str) -> set[str]:
    return {name for name in names if name in lane.index}


async def take(
    lane: Adopted,
    *messages: SubscriptionSnapshot | SubscriptionChanges,
    read: Callable[[], Read] = unread,
) -> None:
    for message in messages:
        assert not lane.hear(message)
    assert await lane.adopt(read)


async def test_nothing_of_a_snapshot_counts_before_its_last_part() -> None:
    lane = Adopted(THIS_MACHINE)
    await take(lane, SubscriptionSnapshot(1, some("old")))
    adopting = asyncio.create_task(lane.adopt(unread))
    lane.hear(SubscriptionSnapshot(2, some("a", "b"), more=True))
    lane.hear(SubscriptionSnapshot(2, some("c"), more=True))
    await asyncio.sleep(0.01)
    assert not adopting.done()
    assert (lane.revision, held(lane, "old", "a")) == (1, {"old"})
    lane.hear(SubscriptionSnapshot(2, some("d")))
    assert await adopting
    assert (lane.revision, held(lane, "old", "a", "b", "c", "d")) == (2, {"a", "b", "c", "d"})


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(SubscriptionSnapshot(2, some("ghost"), more=True), id="half a snapshot"),
        pytest.param(SubscriptionSnapshot(2, some("ghost")), id="a snapshot"),
        pytest.param(SubscriptionChanges(2, some("ghost")), id="a change"),
    ],
)
async def test_what_was_not_taken_up_is_forgotten_with_its_connection(
    before: SubscriptionSnapshot | SubscriptionChanges,
) -> None:
    lane = Adopted(THIS_MACHINE)
    lane.hear(before)
    lane.said_hello()
    lane.hear(SubscriptionSnapshot(2, some("a")))
    assert await lane.adopt(unread)
    assert (lane.revision, held(lane, "ghost", "a")) == (2, {"a"})


async def test_half_a_snapshot_is_replaced_by_a_newer_one() -> None:
    lane = Adopted(THIS_MACHINE)
    lane.hear(SubscriptionSnapshot(2, some("ghost"), more=True))
    await take(lane, SubscriptionSnapshot(3, some("a")))
    assert held(lane, "ghost", "a") == {"a"}


async def test_an_older_revision_is_acknowledged_and_changes_nothing() -> None:
    lane = Adopted(THIS_MACHINE)
    await take(lane, SubscriptionSnapshot(5, some("a")))
    assert lane.hear(SubscriptionChanges(4, some("b"), ("a",)))
    assert lane.hear(SubscriptionSnapshot(5, ()))
    assert (lane.revision, held(lane, "a", "b")) == (5, {"a"})


async def test_what_comes_together_is_taken_up_as_one() -> None:
    lane = Adopted(THIS_MACHINE)
    await take(
        lane,
        SubscriptionSnapshot(1, some("a", "b")),
        SubscriptionChanges(2, some("c"), ("a",)),
        SubscriptionChanges(3, some("a"), ("b",)),
        SubscriptionChanges(4, (), ("c",)),
    )
    assert (lane.revision, held(lane, "a", "b", "c")) == (4, {"a"})


@pytest.mark.parametrize("large", [1, 1_000], ids=["built in a thread", "built at once"])
async def test_late_ones_are_known_until_they_end(large: int) -> None:
    lane = Adopted(THIS_MACHINE, large=large)
    await take(lane, SubscriptionSnapshot(1, some("early")))
    await take(lane, SubscriptionChanges(2, some("early", "late")), read=lambda: {REF: 7})
    assert lane.since(REF, ("early", "late")) == (0, 7)
    await take(lane, SubscriptionChanges(3, (), ("late",)), read=lambda: {REF: 8})
    assert lane.since(REF, ("early", "late")) == ()
    await take(lane, SubscriptionChanges(4, some("late")), read=lambda: {REF: 9})
    await take(lane, SubscriptionSnapshot(5, some("early")), read=lambda: {REF: 10})
    assert lane.since(REF, ("late",)) == ()


class Building:
    """Lets an index be built only when the test says so, off the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        self.go_on = threading.Event()
        self._loop = asyncio.get_running_loop()
        build = KeptIndex.turned_into

        def build_slowly(kept: KeptIndex, wanted: Mapping[str, Subscription | None]) -> MatchIndex:
            self._loop.call_soon_threadsafe(self.begun.set)
            assert self.go_on.wait(10)
            return build(kept, wanted)

        monkeypatch.setattr(KeptIndex, "turned_into", build_slowly)


async def test_a_large_index_is_built_while_the_lane_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    building, lane = Building(monkeypatch), Adopted(THIS_MACHINE, large=2)
    read = {REF: 3}
    lane.hear(SubscriptionSnapshot(2, some("a", "b")))
    adopting = asyncio.create_task(lane.adopt(lambda: dict(read)))
    await building.begun.wait()
    assert (lane.revision, held(lane, "a")) == (0, set())
    lane.hear(SubscriptionChanges(3, some("c"), ("b",)))
    read[REF] = 9
    building.go_on.set()
    assert await adopting
    assert (lane.revision, held(lane, "a", "b", "c")) == (2, {"a", "b"})
    assert lane.since(REF, ("a", "b")) == (9, 9), "what was read meanwhile was read without them"
    assert gc.isenabled()
    assert await lane.adopt(unread)
    assert (lane.revision, held(lane, "a", "b", "c")) == (3, {"a", "c"})


async def test_an_index_that_was_built_across_a_hello_is_not_taken_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hello named the former revision, and whoever heard it may count differently."""
    building, lane = Building(monkeypatch), Adopted(THIS_MACHINE, large=1)
    lane.hear(SubscriptionSnapshot(9, some("ghost")))
    adopting = asyncio.create_task(lane.adopt(unread))
    await building.begun.wait()
    lane.said_hello()
    building.go_on.set()
    assert not await adopting
    assert (lane.revision, held(lane, "ghost")) == (0, set())
    await take(lane, SubscriptionSnapshot(2, some("a")))
    assert (lane.revision, held(lane, "a")) == (2, {"a"})


async def test_a_large_index_is_frozen_for_the_garbage_collector() -> None:
    lane = Adopted(THIS_MACHINE, large=100)
    gc.unfreeze()
    try:
        await take(lane, SubscriptionSnapshot(1, some(*map(str, range(99)))))
        assert gc.get_freeze_count() == 0
        await take(lane, SubscriptionChanges(2, some("one more")))
        assert gc.get_freeze_count() > 0
    finally:
        gc.freeze()  # as the tests of a run are


# --- the index of an earlier lane ----------------------------------------------------------------

NAMES = st.sampled_from("abcdefgh")
REGISTRIES = st.dictionaries(NAMES, st.sampled_from(["x == 1", "x == 2", "x > 1", None]))


def registered(wheres: dict[str, str | None]) -> tuple[Subscription, ...]:
    return tuple(
        Subscription(name, "gateway-1", "flights", where) for name, where in wheres.items()
    )


@given(before=REGISTRIES, now=REGISTRIES, value=st.integers(0, 3))
def test_what_an_earlier_lane_left_never_shows(
    before: dict[str, str | None], now: dict[str, str | None], value: int
) -> None:
    """Whoever told it: the registry may have been lost and made anew since."""

    async def scenario() -> None:
        kept = KeptIndex()
        await take(Adopted(THIS_MACHINE, kept=kept), SubscriptionSnapshot(900, registered(before)))
        later = Adopted(THIS_MACHINE, kept=kept)
        await take(later, SubscriptionSnapshot(1, registered(now)))
        fresh = MatchIndex.of(registered(now))
        record = Record("flights", 0, 1, 1, "e", None, "", "insert", b"", None, None, 0)
        found = later.index.match(record, {"x": value}).by_gateway
        expected = fresh.match(record, {"x": value}).by_gateway
        assert {key: set(ids) for key, ids in found.items()} == {
            key: set(ids) for key, ids in expected.items()
        }
        assert set(later.index.ids()) == set(now)
        assert later.revision == 1

    asyncio.run(scenario())


async def test_a_later_lane_shares_what_an_earlier_one_built() -> None:
    kept = KeptIndex()
    first, second = Adopted(THIS_MACHINE, kept=kept), Adopted(THIS_MACHINE, kept=kept)
    await take(first, SubscriptionSnapshot(1, some("a", "b")))
    await take(second, SubscriptionSnapshot(2, some("a", "c")))
    assert second.index.subscription("a") is first.index.subscription("a")
    assert (held(first, "a", "b", "c"), held(second, "a", "b", "c")) == ({"a", "b"}, {"a", "c"})


# --- what is noted -------------------------------------------------------------------------------

STEPS = st.lists(st.tuples(st.booleans(), REGISTRIES, st.sets(NAMES)), min_size=1, max_size=6)


@settings(max_examples=30)
@given(steps=STEPS, large=st.sampled_from([2, 1_000]))
def test_what_is_noted_is_what_is_matched_with(
    steps: list[tuple[bool, dict[str, str | None], set[str]]], large: int
) -> None:
    async def scenario() -> None:
        known = Known()
        lane = Adopted(THIS_MACHINE, large=large, note=known.read)
        for revision, (whole, upserts, removals) in enumerate(steps, 1):
            message: SubscriptionSnapshot | SubscriptionChanges
            if whole or revision == 1:
                message = SubscriptionSnapshot(revision, registered(upserts))
            else:
                message = SubscriptionChanges(revision, registered(upserts), tuple(removals))
            await take(lane, message)
            assert known.revision == lane.revision
            matched = {name: lane.index.subscription(name) for name in lane.index.ids()}
            assert known.subscriptions == matched

    asyncio.run(scenario())


async def test_nothing_is_taken_up_before_it_is_noted() -> None:
    """Taken up, it is acknowledged: whoever goes on from the notes must know it."""
    revisions: list[int] = []
    lane = Adopted(THIS_MACHINE, note=lambda _: revisions.append(lane.revision))
    await take(lane, SubscriptionSnapshot(1, some("a")))
    await take(lane, SubscriptionChanges(2, some("b")))
    assert revisions == [0, 1]


async def test_what_others_knew_is_noted_again_and_can_be_forgotten() -> None:
    known = Known()
    lane = Adopted(THIS_MACHINE, note=known.read)
    await lane.begin_with(7, some("a", "b"))
    assert (lane.revision, held(lane, "a", "b")) == (7, {"a", "b"})
    assert (known.revision, set(known.subscriptions)) == (7, {"a", "b"})
    lane.forget()
    await take(lane, SubscriptionSnapshot(2, some("c")))
    assert (lane.revision, held(lane, "a", "b", "c")) == (2, {"c"})


def test_what_is_built_in_a_thread_is_of_one_index() -> None:
    """Another lane of the process may put its own there meanwhile."""
    kept = KeptIndex()
    kept.index = MatchIndex.of(some("a", "b"))

    class Meanwhile(dict[str, Subscription | None]):
        def get(self, name: str, default: object = None) -> Subscription | None:
            kept.index = MatchIndex.of(some("a", "b", "of another lane"))
            return super().get(name)

    built = kept.turned_into(Meanwhile({one.id: one for one in some("b", "c")}))
    assert set(built.ids()) == {"b", "c"}
