"""A lane begins once it has its subscriptions, with or without the coordinator, and until then its
predecessor goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import structlog

from headgate.adapters.embedded.notes import FileRouterNotes
from headgate.errors import StorageFailed
from headgate.lane.subscriptions.start_unheard import AWAY_S, HANDED_OVER, OUTDATED, UNKNOWN
from headgate.lane.tenure import LeftBehind
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.message import Message
from headgate.model.event import Fence
from headgate.telemetry import LogLine
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down
from tests.virtual_time import run_virtual

M = TypeVar("M", bound=Message)
LONG_S = 200.0
"""Much longer than anything here takes, and than Spark leaves an idle worker alone."""


def said(world: LaneWorld, kind: type[M]) -> list[M]:
    return [message for message in world.sent if isinstance(message, kind)]


def with_notes(
    scenario: Callable[[Path], Coroutine[Any, Any, None]],
) -> Callable[[Path], None]:
    """A test on virtual time with a folder for notes."""

    def test(tmp_path: Path) -> None:
        run_virtual(scenario(tmp_path))

    test.__name__ = scenario.__name__
    test.__doc__ = scenario.__doc__
    return test


# --- told by the coordinator ---------------------------------------------------------------------


@on_virtual_time
async def test_a_position_is_claimed_only_once_the_subscriptions_are_there() -> None:
    world = LaneWorld(partitions=2)
    world.start()
    await settle_down(60.0)
    hello = world.welcome()
    assert (hello.owns, hello.wants) == ((), world.spec.owns)
    assert world.held() == {}
    await world.subscribed(everything("s1"))
    assert world.held() == dict.fromkeys(world.refs, Fence(5, 3, 0))
    told = [
        m
        for m in world.sent
        if isinstance(m, to_coordinator.AckSubscriptions | to_coordinator.Claimed)
    ]
    assert told == [to_coordinator.AckSubscriptions(1), to_coordinator.Claimed(world.spec.owns)]
    hello = world.welcome()
    assert (hello.owns, hello.wants) == (world.spec.owns, ())


@on_virtual_time
async def test_a_coordinator_that_was_away_when_it_was_claimed_hears_of_it() -> None:
    world = LaneWorld()
    world.start()
    await settle_down()
    world.push(from_coordinator.SubscriptionSnapshot(1, (everything("s1"),)))
    claim = world.checkpoints.claim

    async def cut_off(*args: Any, **rest: Any) -> Any:
        world.checkpoints.claim = claim  # type: ignore[method-assign]
        assert world.session is not None
        world.session.cut()
        assert world.session.connect().wants, "what it says before it has claimed"
        return await claim(*args, **rest)

    world.checkpoints.claim = cut_off  # type: ignore[method-assign]
    await settle_down()
    assert not said(world, to_coordinator.Claimed)
    world.push(from_coordinator.Welcome("coordinator-1", 30_000, 5_000))
    await settle_down()
    assert said(world, to_coordinator.Claimed) == [to_coordinator.Claimed(world.spec.owns)]


@on_virtual_time
async def test_a_window_that_ends_before_it_has_begun_takes_nothing_from_anybody() -> None:
    world = LaneWorld(window_s=7.0)
    world.start()
    tally = await world.dead()
    assert tally.reason == "time"
    assert world.held() == {}


# --- its predecessor goes on ---------------------------------------------------------------------


@on_virtual_time
async def test_a_predecessor_goes_on_for_as_long_as_its_successor_waits() -> None:
    """The coordinator dies between the tallies of one window and the lanes of the next."""
    world = LaneWorld(window_s=5.0)
    world.start()
    await world.subscribed(everything("s1"))
    await world.lane.tally()
    world.cut_off()
    successor = world.successor(window=4, away=True)
    successor.start()
    for hour in range(1, 4):
        await settle_down(LONG_S)
        world.append(2)
        await settle_down(6.0)
        assert world.gateways.seqs("gateway-1") == list(range(1, 2 * hour + 1))
        assert world.position() == 2 * hour
    successor.welcome()
    assert (await successor.dead()).reason == "time", "it makes room for a window of that moment"
    await settle_down(LONG_S)
    third = world.successor(window=5)
    third.start()
    await third.subscribed(everything("s1"))
    world.append(1)
    await world.dead()
    await settle_down(6.0)
    assert world.gateways.seqs("gateway-1")[-1] == 7
    assert world.held()[world.refs[0]] == Fence(5, 5, 0)
    assert world.position() == 7


@on_virtual_time
async def test_a_lane_whose_successor_never_comes_goes_on() -> None:
    world = LaneWorld(window_s=5.0)
    world.start()
    await world.subscribed(everything("s1"))
    await world.lane.tally()
    await settle_down(LONG_S)
    world.append(3)
    await settle_down(6.0)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3]
    assert world.position() == 3


# --- without the coordinator ---------------------------------------------------------------------


@with_notes
async def test_a_lane_that_is_run_again_goes_on_with_what_the_dead_one_knew(notes: Path) -> None:
    world = LaneWorld(partitions=2).noting(notes)
    world.start()
    await world.subscribed(everything("s1"), everything("gone"))
    world.append(3)
    world.push(from_coordinator.SubscriptionChanges(2, (everything("s2", "gateway-2"),), ("gone",)))
    await settle_down(6.0)
    await world.die()
    again = world.successor(attempt=1, away=True)
    again.start()
    await settle_down(AWAY_S + 2.0)
    world.append(2)
    world.append(1, partition=1)
    await settle_down(6.0)
    assert world.gateways.seqs("gateway-1", 0) == [1, 2, 3, 4, 5]
    assert world.gateways.seqs("gateway-2", 0) == [4, 5]
    assert world.gateways.seqs("gateway-2", 1) == [1]
    assert not [
        d for d in world.gateways.accepted["gateway-1"] if d.seq > 3 and len(d.subscriptions) != 1
    ]
    assert world.held() == dict.fromkeys(world.refs, Fence(5, 3, 1))
    assert (world.position(0), world.position(1)) == (5, 1)


@with_notes
async def test_what_was_noted_is_used_once_and_handed_on_as_often_as_it_takes(notes: Path) -> None:
    world = LaneWorld().noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    for attempt in range(1, 4):
        await world.die()
        world = world.successor(attempt=attempt, away=True)
        world.start()
        await settle_down(AWAY_S + 2.0)
        world.append(1)
        await settle_down(6.0)
        assert world.position() == attempt


@with_notes
async def test_a_lane_that_began_alone_says_so_and_goes_on_with_what_it_is_told(
    notes: Path,
) -> None:
    world = LaneWorld(window_s=120.0).noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    await world.die()
    again = world.successor(attempt=1, away=True)
    again.start()
    await settle_down(AWAY_S + 2.0)
    hello = again.welcome()
    assert (hello.owns, hello.wants, hello.revision) == (world.spec.owns, (), 1)
    again.push(
        from_coordinator.SubscriptionSnapshot(9, (everything("s1"), everything("s2", "gateway-2")))
    )
    await settle_down()
    assert to_coordinator.AckSubscriptions(9) in again.sent
    again.append(1)
    await settle_down()
    assert world.gateways.seqs("gateway-1") == world.gateways.seqs("gateway-2") == [1]


@with_notes
async def test_a_coordinator_that_is_there_is_waited_for(notes: Path) -> None:
    """It may have told others that they have subscribed."""
    world = LaneWorld().noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    await world.die()
    again = world.successor(attempt=1)
    again.start()
    await settle_down(LONG_S)
    assert world.held()[world.refs[0]] == Fence(5, 3, 0)


@with_notes
async def test_a_predecessor_that_lives_is_left_alone_until_it_is_gone(notes: Path) -> None:
    world = LaneWorld(window_s=5.0).noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    await world.lane.tally()
    world.cut_off()
    successor = world.successor(window=4, away=True)
    with structlog.testing.capture_logs() as logs:
        successor.start()
        await settle_down(LONG_S)
    assert not [one for one in logs if one["event"] == LogLine.LANE_WAITS]
    assert world.held()[world.refs[0]] == Fence(5, 3, 0)
    await world.die()
    await settle_down(2.0)
    world.append(1)
    await settle_down(6.0)
    assert world.position() == 1
    assert world.held()[world.refs[0]] == Fence(5, 4, 0)


@with_notes
async def test_a_predecessor_that_is_frozen_is_named_loudly(notes: Path) -> None:
    """It may thaw and go on, so nobody takes anything from it; but somebody should look."""
    world = LaneWorld(report_interval_s=LONG_S).noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    os.utime(notes / f"3-0-0-a-{os.getpid()}.notes", (0, 0))
    again = world.successor(window=4, away=True)
    with structlog.testing.capture_logs() as logs:
        again.start()
        await settle_down(10.0)
    [reason] = [one["reason"] for one in logs if one["event"] == LogLine.LANE_WAITS]
    assert f"process {os.getpid()}" in reason
    assert world.held()[world.refs[0]] == Fence(5, 3, 0)


async def nothing_to_go_on_with(world: LaneWorld, again: LaneWorld, reason: str = UNKNOWN) -> None:
    """It must not claim, and must say why."""
    held = world.held()
    with structlog.testing.capture_logs() as logs:
        again.start()
        await settle_down(100.0)
    waits = [one for one in logs if one["event"] == LogLine.LANE_WAITS]
    assert [(one["log_level"], one["partitions"], one["reason"]) for one in waits] == [
        ("error", [str(ref) for ref in world.refs], reason)
    ] * 2
    assert world.held() == held
    heard = FileRouterNotes(again.notes).waiting() if again.notes is not None else None
    names = ", ".join(map(str, world.refs))
    assert heard in (None, [f"nobody reads {names}: {reason}"])
    again.welcome()
    await settle_down(2.0)
    assert again.notes is None or FileRouterNotes(again.notes).waiting() == []
    assert world.held() == held
    await again.subscribed(everything("s1"), everything("s2", "gateway-2"))
    world.append(1)
    await settle_down(6.0)
    appended = [record.seq for record in world.log.records[world.refs[0]]]
    assert world.gateways.seqs("gateway-2") == appended


@with_notes
async def test_a_lane_that_nobody_left_anything_says_loudly_that_it_waits(notes: Path) -> None:
    world = LaneWorld(partitions=2).noting(notes)
    await nothing_to_go_on_with(world, world.successor(away=True))


@on_virtual_time
async def test_a_lane_that_can_keep_no_notes_says_loudly_that_it_waits() -> None:
    world = LaneWorld()
    await nothing_to_go_on_with(world, world.successor(away=True))


@with_notes
async def test_after_a_goodbye_nobody_goes_on_from_the_notes(notes: Path) -> None:
    """From then on subscribers are told that they have subscribed without this lane's word."""
    world = LaneWorld().noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    await world.ended()
    await nothing_to_go_on_with(world, world.successor(window=4, away=True))


@with_notes
async def test_after_a_failure_with_a_goodbye_nobody_goes_on_from_the_notes(notes: Path) -> None:
    world = LaneWorld().noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    world.log.failing = RuntimeError("a bug")
    world.append(1)
    await asyncio.gather(world.life, return_exceptions=True)
    world.log.failing = None
    with pytest.raises(RuntimeError):
        await world.lane.tally()
    await nothing_to_go_on_with(world, world.successor(attempt=1, away=True))


@with_notes
async def test_what_somebody_else_has_claimed_since_is_not_taken_from_it(notes: Path) -> None:
    """That one may know of subscriptions that came later."""
    world = LaneWorld().noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    await world.die()
    await world.checkpoints.claim(world.refs[0], Fence(5, 4, 0))
    await nothing_to_go_on_with(world, world.successor(window=5, away=True), OUTDATED)


@with_notes
async def test_what_was_handed_off_is_not_gone_on_with(notes: Path) -> None:
    world = LaneWorld(partitions=2).noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    world.push(from_coordinator.LetGo(world.spec.owns[:1], settle=True))
    await settle_down()
    assert said(world, to_coordinator.Released)
    await world.die()
    again = world.successor(attempt=1, away=True)
    with structlog.testing.capture_logs() as logs:
        again.start()
        await settle_down(AWAY_S + 2.0)
    assert world.held() == {
        world.refs[0]: Fence(5, 3, 0),
        world.refs[1]: Fence(5, 3, 1),
    }
    [waits] = [one for one in logs if one["event"] == LogLine.LANE_WAITS]
    assert waits["partitions"] == [str(world.refs[0])]
    assert FileRouterNotes(notes).waiting() == [f"nobody reads {world.refs[0]}: {UNKNOWN}"]


# --- partition by partition -----------------------------------------------------------------------


def planned(world: LaneWorld, window: int, lane: int, *partitions: int, away: bool) -> LaneWorld:
    """A lane for some of the partitions of `world`."""
    other = world.successor(window=window, away=away)
    owns = tuple(owner for owner in world.spec.owns if owner.ref.partition in partitions)
    other.spec = msgspec.structs.replace(other.spec, lane=lane, owns=owns)
    return other


def positions(world: LaneWorld, count: int) -> list[int]:
    return [world.position(number) for number in range(count)]


@with_notes
async def test_what_the_dead_left_is_read_also_beside_what_the_living_hold(notes: Path) -> None:
    """The next window is planned differently, and one of the former lanes dies."""
    world = LaneWorld(partitions=4, window_s=5.0).noting(notes)
    former = [planned(world, 3, 0, 0, 2, away=False), planned(world, 3, 1, 1, 3, away=False)]
    for one in former:
        one.start()
        await one.subscribed(everything("s1"))
        await one.lane.tally()
        one.cut_off()
    for one in (planned(world, 4, 0, 0, 3, away=True), planned(world, 4, 1, 2, away=True)):
        one.start()
    await settle_down(10.0)
    await former[0].die()
    await settle_down(10.0)
    for number in range(4):
        world.append(1, partition=number)
    await settle_down(10.0)
    assert positions(world, 4) == [1, 1, 1, 1]
    assert FileRouterNotes(notes).waiting() == []


@with_notes
async def test_what_nobody_knows_is_said_also_beside_what_the_living_hold(notes: Path) -> None:
    """A partition was on its way here when the coordinator died."""
    world = LaneWorld(partitions=2, window_s=5.0).noting(notes)
    former = planned(world, 3, 0, 0, away=False)
    former.start()
    await former.subscribed(everything("s1"))
    await former.lane.tally()
    former.cut_off()
    world.successor(window=4, away=True).start()
    with structlog.testing.capture_logs() as logs:
        await settle_down(10.0)
    world.append(1)
    await settle_down(10.0)
    assert world.position() == 1
    assert FileRouterNotes(notes).waiting() == [f"nobody reads {world.refs[1]}: {UNKNOWN}"]
    [waits] = [one for one in logs if one["event"] == LogLine.LANE_WAITS]
    assert waits["partitions"] == [str(world.refs[1])]


@with_notes
async def test_a_lane_starts_anew_with_what_is_left_behind_later(notes: Path) -> None:
    """It had begun without it, because whoever held it lived then."""
    world = LaneWorld(partitions=2, window_s=5.0).noting(notes)
    former = [planned(world, 3, number, number, away=False) for number in (0, 1)]
    for one in former:
        one.start()
        await one.subscribed(everything("s1"))
        await one.lane.tally()
        one.cut_off()
    both = world.successor(window=4, away=True)
    both.start()
    await former[0].die()
    await settle_down(10.0)
    assert world.held() == {world.refs[0]: Fence(5, 4, 0), world.refs[1]: Fence(5, 3, 0)}
    await former[1].die()
    with pytest.raises(LeftBehind):
        await both.life
    assert isinstance(both.lane._tally.exception(), LeftBehind), "so that Spark runs it again"
    again = world.successor(window=4, attempt=1, away=True)
    again.start()
    await settle_down(10.0)
    assert world.held() == dict.fromkeys(world.refs, Fence(5, 4, 1))


@with_notes
async def test_a_sister_that_starts_later_finds_what_was_left_to_it(notes: Path) -> None:
    """Whoever is first tidies up."""
    world = LaneWorld(partitions=2).noting(notes)
    for number in (0, 1):
        one = planned(world, 3, number, number, away=False)
        one.start()
        await one.subscribed(everything("s1"))
        await one.die()
    for number in (0, 1):
        planned(world, 6, number, number, away=True).start()
        await settle_down(10.0)
    assert world.held() == dict.fromkeys(world.refs, Fence(5, 6, 0))


# --- claims that were cut short -------------------------------------------------------------------


@with_notes
async def test_a_lane_that_failed_in_the_middle_of_its_claims_is_gone_on_from(notes: Path) -> None:
    world = LaneWorld(partitions=2).noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    await world.die()
    claim = world.checkpoints.claim
    world.checkpoints.claim = goes_away(after=claim)  # type: ignore[method-assign]
    failing = world.successor(attempt=1, away=True)
    failing.start()
    with pytest.raises(StorageFailed):
        await failing.life
    assert failing.lane._tally.exception()
    world.checkpoints.claim = claim  # type: ignore[method-assign]
    assert sorted(world.held().values()) == [Fence(5, 3, 0), Fence(5, 3, 1)]
    world.successor(attempt=2, away=True).start()
    await settle_down(10.0)
    assert world.held() == dict.fromkeys(world.refs, Fence(5, 3, 2))


@with_notes
async def test_a_lane_that_fails_between_two_streams_leaves_nothing_running(notes: Path) -> None:
    world = LaneWorld().noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    await world.die()
    world.checkpoints.failing = StorageFailed("the store is away")
    failing = world.successor(attempt=1, away=True)
    failing.start()
    with pytest.raises(StorageFailed):
        await failing.life
    with pytest.raises(StorageFailed):
        await failing.lane.tally()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def goes_away(*, after: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
    """A store that answers once."""
    answered: list[Any] = []

    async def claim(ref: Any, fence: Any, **rest: Any) -> Any:
        if answered:
            raise StorageFailed("the store is away")
        answered.append(ref)
        return await after(ref, fence, **rest)

    return claim


@with_notes
async def test_a_window_that_ends_while_it_claims_is_the_holder(notes: Path) -> None:
    """Its predecessor was fenced off by then."""
    world = LaneWorld(window_s=5.0).noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    await world.lane.tally()
    claim = world.checkpoints.claim

    async def late(*args: Any, **rest: Any) -> Any:
        position = await claim(*args, **rest)
        await asyncio.sleep(0.5)
        return position

    world.checkpoints.claim = late  # type: ignore[method-assign]
    successor = world.successor(window=4)
    successor.start()
    successor.revision = 1
    await successor.subscribed(everything("s1"))
    successor.push(from_coordinator.EndWindow("the assignment changed"))
    await successor.lane.tally()
    successor.cut_off()
    world.append(3)
    await settle_down(20.0)
    assert world.position() == 3


@with_notes
async def test_a_claim_from_the_dead_takes_nothing_from_whoever_has_the_same_fence(
    notes: Path,
) -> None:
    """A router that couldn't note a window's number gives it out again; the lane of the first time
    has noted nothing either, and knew more."""
    world = LaneWorld().noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    await world.die()
    await world.checkpoints.claim(world.refs[0], held := Fence(5, 4, 0))
    again = world.successor(window=4, away=True)
    again.start()
    await settle_down(10.0)
    world.append(1)
    await settle_down(10.0)
    assert world.held()[world.refs[0]] == held
    assert world.position() == 0
    assert FileRouterNotes(notes).waiting() == [f"nobody reads {world.refs[0]}: {OUTDATED}"]


@with_notes
async def test_a_lane_that_was_cut_off_with_its_subscriptions_claims_nothing(notes: Path) -> None:
    """Others are told that they have subscribed without its word."""
    world = LaneWorld().noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    held = world.held()
    successor = world.successor(window=4)
    hold, successor.checkpoints = successor.checkpoints, FaultyCheckpoints()
    successor.checkpoints.stored = hold.stored
    successor.checkpoints.failing = StorageFailed("the store is away")
    successor.start()
    successor.revision = 1
    await successor.subscribed(everything("s1"))
    successor.cut_off()
    successor.checkpoints.failing = None
    await settle_down(LONG_S)
    assert world.held() == held
    assert not successor.life.done(), "whoever holds it may die"


@with_notes
async def test_a_claim_whose_answer_was_lost_is_asked_after_without_the_coordinator(
    notes: Path,
) -> None:
    """Its predecessor is fenced off, so whoever has it must read."""
    world = LaneWorld(window_s=5.0).noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    await world.lane.tally()
    claim = world.checkpoints.claim

    async def answer_lost(ref: Any, fence: Fence, **rest: Any) -> Any:
        position = await claim(ref, fence, **rest)
        if fence.window == 4:
            await asyncio.sleep(60.0)
        return position

    world.checkpoints.claim = answer_lost  # type: ignore[method-assign]
    successor = world.successor(window=4)
    successor.start()
    successor.revision = 1
    await successor.subscribed(everything("s1"))
    for one in (world, successor):
        one.cut_off()
    await settle_down(3.0)
    world.checkpoints.claim = claim  # type: ignore[method-assign]
    world.append(2)
    await settle_down(30.0)
    assert world.position() == 2
    assert world.held()[world.refs[0]] == Fence(5, 4, 0)


@with_notes
async def test_a_lane_that_the_coordinator_does_not_answer_claims_nothing(notes: Path) -> None:
    """Its stream looks well, and nobody hears it."""
    world = LaneWorld().noting(notes)
    world.hears = False
    world.start()
    with structlog.testing.capture_logs() as logs:
        await world.subscribed(everything("s1"))
        await settle_down(20.0)
    assert "the coordinator gives no answer within 1 s" in {line.get("reason") for line in logs}
    assert world.held() == {}
    assert not world.life.done()
    world.hears = True
    await settle_down(5.0)
    assert world.held() == {world.refs[0]: Fence(5, 3, 0)}


@on_virtual_time
async def test_an_answer_of_long_ago_is_none_to_the_question_of_just_now() -> None:
    world = LaneWorld()
    world.hears = False
    world.start()
    await world.subscribed(everything("s1"))
    [first] = said(world, to_coordinator.MayClaim)
    await settle_down(20.0)
    world.push(from_coordinator.ClaimNow(first.number))
    await settle_down(0.5)
    assert world.held() == {}


@on_virtual_time
async def test_of_several_proofs_the_one_that_was_asked_for_last_is_made() -> None:
    world = LaneWorld(window_s=1e6)
    world.start()
    await world.subscribed(everything("s1"))
    world.checkpoints.failing = StorageFailed("the store is away")
    for asked_ms in (1, 2, 3):
        world.push(from_coordinator.Prove(asked_ms))
        await settle_down(10.0)
    world.sent.clear()
    world.checkpoints.failing = None
    await settle_down(10.0)
    assert said(world, to_coordinator.Claimed) == [to_coordinator.Claimed(world.spec.owns, 3)]


@with_notes
async def test_a_healthy_lane_ends_for_nothing_that_somebody_else_has(notes: Path) -> None:
    world = LaneWorld(partitions=2, window_s=1e6).noting(notes)
    former = planned(world, 2, 0, 1, away=False)
    former.start()
    await former.subscribed(everything("s1"))
    await former.die()
    await world.checkpoints.claim(world.refs[1], Fence(5, 9, 0))
    world.start()
    world.revision = 1
    await world.subscribed(everything("s1"))
    world.cut_off()
    await settle_down(30.0)
    assert not world.life.done()
    assert world.lane.holding.fences() == {world.refs[0]: Fence(5, 3, 0)}


@on_virtual_time
async def test_what_came_on_a_former_stream_is_not_begun_with() -> None:
    """While nobody heard of it, others may have subscribed."""
    world = LaneWorld()
    world.checkpoints.failing = StorageFailed("the store is away")
    world.start()
    await world.subscribed(everything("s1"))
    world.cut_off()
    world.checkpoints.failing = None
    await settle_down(5.0)
    world.welcome()
    await settle_down(5.0)
    assert world.held() == {}
    world.push(
        from_coordinator.SubscriptionSnapshot(2, (everything("s1"), everything("s2", "gateway-2")))
    )
    await settle_down(5.0)
    world.append(1)
    await settle_down(5.0)
    assert world.gateways.seqs("gateway-2") == [1]


@on_virtual_time
async def test_what_came_on_a_former_stream_without_gateways_is_not_begun_with() -> None:
    """A coordinator that knows nothing yet tells of no topology, and may be gone before it does."""
    world = LaneWorld()
    world.away = True
    world.start()
    await settle_down()
    assert world.session is not None
    world.session.connect()
    world.push(from_coordinator.Welcome("coordinator-1", 30_000, 5_000))
    await world.subscribed(everything("s1"))
    world.welcome()
    await settle_down(5.0)
    assert not world.life.done()
    assert world.held() == {}
    await world.subscribed(everything("s1"), everything("s2", "gateway-2"))
    world.append(1)
    await settle_down(5.0)
    assert world.gateways.seqs("gateway-2") == [1]


# --- handed over to nobody ------------------------------------------------------------------------


@with_notes
async def test_what_is_asked_for_by_a_coordinator_that_dies_is_read_on(notes: Path) -> None:
    world = LaneWorld(partitions=2).noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    world.gateways.hanging.add("gateway-1")
    world.append(1, partition=1)
    await settle_down()
    world.push(from_coordinator.LetGo(world.spec.owns, settle=True))
    await settle_down()
    world.cut_off()
    world.gateways.hanging.clear()
    await settle_down(20.0)
    world.append(1, partition=0)
    world.append(1, partition=1)
    await settle_down(10.0)
    assert positions(world, 2) == [1, 2]
    assert world.held() == dict.fromkeys(world.refs, Fence(5, 3, 0))


@pytest.mark.parametrize("kept", [0, 1])
def test_what_was_handed_over_as_the_coordinator_died_is_said(tmp_path: Path, kept: int) -> None:
    run_virtual(handed_over_as_the_coordinator_died(tmp_path, kept))


async def handed_over_as_the_coordinator_died(notes: Path, kept: int) -> None:
    world = LaneWorld(partitions=2, window_s=1_000.0).noting(notes)
    known = world.topology("gateway-1", "gateway-2")
    world.start()
    await settle_down()
    owned = msgspec.structs.replace(known, generation=2, sources=world.spec.owns)
    world.push(from_coordinator.PushTopology(owned))
    await world.subscribed(everything("s1"))
    world.push(from_coordinator.LetGo(world.spec.owns[kept:], settle=True))
    await settle_down(60.0)
    assert said(world, to_coordinator.Released)
    world.cut_off()
    await settle_down(10.0)
    names = ", ".join(map(str, world.refs[kept:]))
    assert FileRouterNotes(notes).waiting() == [f"nobody reads {names}: {HANDED_OVER}"]
    world.welcome()
    taken = msgspec.structs.replace(owned, generation=3, sources=world.spec.owns[:kept])
    world.push(from_coordinator.PushTopology(taken))
    await settle_down(10.0)
    assert FileRouterNotes(notes).waiting() == []
    assert world.life.done() == (kept == 0), "it ends once it was heard that it has nothing"
    world.cut_off()
    await settle_down(10.0)
    assert FileRouterNotes(notes).waiting() == [], "it was heard of, and somebody has it"


@with_notes
async def test_what_it_was_told_in_half_is_not_begun_with(notes: Path) -> None:
    """It has the subscriptions and no gateways when the coordinator goes; what a predecessor left
    is outdated; then the gateways come, and no subscriptions."""
    world = LaneWorld().noting(notes)
    world.start()
    await world.subscribed(everything("s1"))
    await world.die()
    await world.checkpoints.claim(world.refs[0], held := Fence(5, 4, 0))
    again = world.successor(window=5, away=True)
    again.start()
    await settle_down()
    assert again.session is not None
    again.session.connect()
    again.push(from_coordinator.Welcome("coordinator-1", 30_000, 5_000))
    again.push(from_coordinator.SubscriptionSnapshot(7, (everything("s1"),)))
    await settle_down()
    again.cut_off()
    await settle_down(60.0)
    assert world.held()[world.refs[0]] == held


@with_notes
async def test_notes_that_cannot_be_kept_stop_nothing(notes: Path) -> None:
    notes.joinpath(f"3-0-0-a-{os.getpid()}.notes").mkdir()
    world = LaneWorld().noting(notes)
    with structlog.testing.capture_logs() as logs:
        world.start()
        await world.subscribed(everything("s1"))
    assert [one["event"] for one in logs].count(LogLine.NOTES_FAILED) == 1
    world.append(1)
    await settle_down()
    assert world.gateways.seqs("gateway-1") == [1]
