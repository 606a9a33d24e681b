"""One position that can't be claimed: nobody but its own partition waits for it."""

from __future__ import annotations

import pytest

from headgate.decide.coordination.effects import Effect, FenceCheckpoints, Persist, Send
from headgate.decide.coordination.views.status import Stored, describe
from headgate.decide.lane.checkpoints import Reset, put_after
from headgate.model.api import TopicPartition
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import LaneReport, PartitionReport
from headgate.model.position import Position
from headgate.model.stored import ReadAgain
from headgate.model.topology import Owner
from tests.decide.coordination.world import World, ref

BAD, WELL = ref("flights", 0), ref("flights", 1)


def assigned(world: World, router: int) -> list[Owner]:
    return list(world.last(router, from_coordinator.Assign).sources)


def seen(world: World) -> list[TopicPartition]:
    status = describe(
        world.cluster,
        version="1",
        stored=Stored({}, {}),
        now_ms=world.now_ms,
        wall_ms=world.now_ms,
    )
    return status.topics[0].details


def started(world: World) -> tuple[int, int]:
    """A gateway and a router, with a topic of which one position is damaged."""
    gateway, router = world.join("gateway", "g-1"), world.join("router", "r-1")
    world.join("ingest", "i-1")
    world.damaged[BAD] = 40
    world.create("flights", 2)
    return gateway, router


def test_its_router_is_assigned_the_rest() -> None:
    world = World()
    _, router = started(world)
    assert [owner.ref for owner in assigned(world, router)] == [WELL]
    bad, well = seen(world)
    assert (bad.state, well.state) == ("failed", "healthy")
    assert "it is no position" in bad.reason


def test_it_is_assigned_when_it_can_be_claimed_and_the_open_window_ends_for_it() -> None:
    world = World()
    gateway, router = started(world)
    [well] = assigned(world, router)
    lane = world.lane(well)
    world.wait(60_000, alive=(gateway, router))
    assert [owner.ref for owner in assigned(world, router)] == [WELL]
    assert world.sent(lane, from_coordinator.EndWindow) == [], "no other window could read it"
    world.damaged.clear()
    world.wait(2_000, alive=(gateway, router))
    assert [owner.ref for owner in assigned(world, router)] == [BAD, WELL]
    assert assigned(world, router) == world.sources("flights")
    assert world.sent(lane, from_coordinator.EndWindow)
    assert "position" not in seen(world)[0].reason


def test_what_comes_later_does_not_wait_for_it() -> None:
    world = World()
    gateway, router = started(world)
    world.create("ships", 1)
    assert [owner.ref for owner in assigned(world, router)] == [WELL, ref("ships")]
    world.drop(router)
    back = world.open(
        to_coordinator.Hello(
            role="router",
            node_id="r-1",
            incarnation="a",
            assignment=world.last(router, from_coordinator.Assign).number,
            owns=world.last(router, from_coordinator.Assign).sources,
        )
    )
    assert [owner.ref for owner in assigned(world, back)] == [WELL, ref("ships")]
    assert gateway


def test_nothing_is_told_while_all_that_is_new_cannot_be_claimed() -> None:
    world = World()
    gateway, router = started(world)
    count = len(world.sent(router, from_coordinator.Assign))
    world.damaged[ref("ships")] = 0
    world.create("ships", 1)
    world.wait(20_000, alive=(gateway, router))
    assert len(world.sent(router, from_coordinator.Assign)) == count


def lost(world: World) -> tuple[int, int, list[Owner]]:
    """A lane that read two partitions is gone, and one of their positions is damaged since."""
    gateway, router = world.join("gateway", "g-1"), world.join("router", "r-1")
    world.join("ingest", "i-1")
    owners = world.create("flights", 2)
    world.drop(world.lane(*owners))
    world.damaged[BAD] = 40
    return gateway, router, owners


def test_new_subscriptions_do_not_wait_for_whoever_may_still_read_it() -> None:
    world = World()
    gateway, _, owners = lost(world)
    again = world.lane(*owners, window=2, claimed=False)
    revision = world.subscribe(gateway, "s1")
    world.say(again, to_coordinator.AckSubscriptions(revision))
    world.say(again, to_coordinator.Claimed((owners[1],)))
    assert world.floor(gateway) < revision
    world.say(again, report(owners[1], unclaimed=(owners[0],)))
    assert world.floor(gateway) >= revision
    assert world.persisted().again == (ReadAgain(BAD, 40),)


def report(*held: Owner, unclaimed: tuple[Owner, ...]) -> LaneReport:
    return LaneReport(
        partitions=tuple(PartitionReport(one.ref, 0, 0, 0) for one in held),
        read=0,
        matched=0,
        delivered=0,
        filter_errors=0,
        unclaimed=unclaimed,
    )


def test_it_is_kept_from_where_to_read_before_anybody_is_told() -> None:
    world = World()
    gateway, _, owners = lost(world)
    again = world.lane(*owners, window=2, claimed=False)
    revision = world.subscribe(gateway, "s1")
    world.say(again, to_coordinator.AckSubscriptions(revision))
    world.say(again, to_coordinator.Claimed((owners[1],)))
    world.effects.clear()
    world.say(again, report(owners[1], unclaimed=(owners[0],)))
    kept = next(at for at, one in enumerate(world.effects) if keeps(one))
    told = next(at for at, one in enumerate(world.effects) if tells(one))
    assert kept < told


def keeps(effect: Effect) -> bool:
    return isinstance(effect, Persist) and bool(effect.state.again)


def tells(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, from_coordinator.AdoptionFloor)


def test_what_was_settled_meanwhile_is_read_again_also_by_the_next_coordinator() -> None:
    world = World()
    gateway, router, owners = lost(world)
    world.wait(35_000, alive=(gateway, router))
    assert world.persisted().again == (ReadAgain(BAD, 40),)
    asked = [one for one in world.effects if isinstance(one, FenceCheckpoints)][-1]
    assert asked.again == {BAD: 40}
    world.damaged[BAD] = 90
    world.wait(2_000, alive=(gateway, router))
    assert world.persisted().again == (ReadAgain(BAD, 40),), "the first that was told counts"
    later = World(stored=world.persisted(), damaged=dict(world.damaged))
    assert later.cluster.again_from == {BAD: 40}
    later.damaged.clear()
    later.wait(2_000)
    asked = next(one for one in later.effects if isinstance(one, FenceCheckpoints))
    assert asked.again == {BAD: 40}
    assert later.persisted().again == ()
    assert owners


def test_a_reader_that_is_heard_keeps_it() -> None:
    """Its successor couldn't claim it, and nobody waits for anything."""
    world = World()
    _, _, owners = started_well(world)
    former = world.lane(*owners)
    later = world.lane(*owners, window=2, claimed=False)
    world.say(later, to_coordinator.Claimed((owners[1],)))
    world.say(later, report(owners[1], unclaimed=(owners[0],)))
    assert world.sources("flights") == owners
    assert world.cluster.lanes.reader(BAD) == former


def started_well(world: World) -> tuple[int, int, list[Owner]]:
    gateway, router = world.join("gateway", "g-1"), world.join("router", "r-1")
    world.join("ingest", "i-1")
    return gateway, router, world.create("flights", 2)


def test_floor_waits_while_nobody_knows_where_the_log_ends() -> None:
    world = World()
    gateway, router, _ = lost(world)
    world.fences = False
    revision = world.subscribe(gateway, "s1")
    world.wait(35_000, alive=(gateway, router))
    assert world.floor(gateway) < revision


@pytest.mark.parametrize(
    ("position", "reset", "again", "goes"),
    [
        (Position(50), None, None, None),
        (Position(50), None, 40, Reset(40)),
        (Position(30), None, 40, None),
        (Position(50), Reset(10), 40, Reset(10)),
        (Position(50), Reset(60), 40, Reset(60)),
        (Position(50), Reset(45, only_forward=True), None, None),
        (Position(50), Reset(45, only_forward=True), 40, Reset(45)),
        (Position(50), Reset(20, only_forward=True), 40, Reset(40)),
        (Position(50, stopped="lost"), Reset(45, only_forward=True), None, Reset(50)),
        (Position(50, stopped="lost"), Reset(45, only_forward=True), 60, Reset(50)),
    ],
)
def test_where_a_position_goes(
    position: Position, reset: Reset | None, again: int | None, goes: Reset | None
) -> None:
    assert put_after(position, reset, again=again) == goes
