"""An operator's reset: what it means, and that nobody reads on before it is done."""

from __future__ import annotations

import pytest

from headgate.decide.coordination.effects import FenceCheckpoints, Persist, Send
from headgate.decide.coordination.sources import resetting
from headgate.decide.coordination.sources.resetting import PlannedReset, plan
from headgate.decide.lane.checkpoints import Reset
from headgate.errors import InvalidRequest, NotFound, NotNow, UnknownTopic
from headgate.model.api import ResetTo
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.event import PartitionRef
from headgate.model.stored import StoredReset
from headgate.model.topology import Owner
from tests.decide.coordination.world import TIMING, World, ref

FLIGHTS = ref("flights")


@pytest.mark.parametrize(
    ("to", "settled", "expected"),
    [
        pytest.param("earliest", 80, PlannedReset(19, 61, 0), id="back to what is left"),
        pytest.param("earliest", 5, PlannedReset(19, 0, 14), id="what is left is ahead"),
        pytest.param("latest", 80, PlannedReset(100, 0, 20), id="to the end"),
        pytest.param("latest", 100, PlannedReset(100, 0, 0), id="already at the end"),
        pytest.param(50, 80, PlannedReset(49, 31, 0), id="back to a record"),
        pytest.param(90, 80, PlannedReset(89, 0, 9), id="on to a record"),
        pytest.param(20, 80, PlannedReset(19, 61, 0), id="the first there is"),
        pytest.param(101, 80, PlannedReset(100, 0, 20), id="the next to come"),
    ],
)
def test_a_plan_counts_what_comes_again_and_what_never_comes(
    to: ResetTo, settled: int, expected: PlannedReset
) -> None:
    found = plan(FLIGHTS, to, earliest=20, head=100, settled=settled, resync=False)
    assert found == expected


@pytest.mark.parametrize("to", [0, 19, 102], ids=["before all", "dropped", "beyond the next"])
def test_a_record_that_is_not_there_is_refused_with_those_that_are(to: int) -> None:
    with pytest.raises(InvalidRequest, match=r"records 20 to 100 of flights:0.* up to 101"):
        plan(FLIGHTS, to, earliest=20, head=100, settled=80, resync=False)


def test_resync_is_for_going_forward() -> None:
    with pytest.raises(InvalidRequest, match="leave --resync out"):
        plan(FLIGHTS, "earliest", earliest=1, head=100, settled=80, resync=True)
    assert plan(FLIGHTS, "latest", earliest=1, head=9, settled=9, resync=True).skips == 0


def reading(world: World) -> tuple[Owner, int, int]:
    """A topic with a lane that reads it: its owner, the router's session, the lane's."""
    world.join("gateway", "g-1")
    world.join("ingest", "i-1")
    router = world.join("router", "r-1")
    (owner,) = world.create("flights")
    return owner, router, world.lane(owner)


def reset(world: World, wanted: Reset) -> None:
    world.apply(world.cluster.reset(FLIGHTS, wanted, world.now_ms))


def test_the_lane_stops_and_its_router_begins_anew_under_the_next_epoch() -> None:
    world = World()
    owner, router, lane = reading(world)
    reset(world, Reset(0))
    assert world.last(lane, from_coordinator.LetGo) == from_coordinator.LetGo((owner,), settle=True)
    assert world.cluster.sources.owners[FLIGHTS] == owner, "it may still have something in flight"
    world.say(lane, to_coordinator.Released((owner,)))
    renewed = Owner(FLIGHTS, "r-1", owner.epoch + 1)
    assert world.last(router, from_coordinator.Assign).sources == (renewed,)
    assert world.cluster.resets.putting == {}
    again = world.lane(renewed, window=2)
    assert world.cluster.lanes.reader(FLIGHTS) == again


def test_nobody_is_assigned_before_the_position_is_reset() -> None:
    world = World()
    owner, router, lane = reading(world)
    world.say(lane, to_coordinator.Goodbye())
    world.fences = False
    before = world.last(router, from_coordinator.Assign)
    effects = world.cluster.reset(FLIGHTS, Reset(7, resync=True), world.now_ms)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Persist) < kinds.index(FenceCheckpoints)
    world.apply(effects)
    assert world.cluster.resets.putting == {FLIGHTS: Reset(7, resync=True)}
    assert world.last(router, from_coordinator.Assign) == before
    world.now_ms += 60_000
    asked = [e for e in world.cluster.tick(world.now_ms) if isinstance(e, FenceCheckpoints)]
    assert asked, "a store that was away is asked again"
    world.apply(world.cluster.fenced([Owner(FLIGHTS, "r-1", owner.epoch + 1)]))
    assert world.cluster.resets.putting == {}


def test_a_reset_of_what_nobody_reads_is_done_all_the_same() -> None:
    world = World()
    world.join("ingest", "i-1")
    world.create("flights")
    reset(world, Reset(3))
    assert resetting.is_done(world.cluster, FLIGHTS)
    assert world.cluster.sources.owners[FLIGHTS].node_id == ""


@pytest.mark.parametrize("late", [False, True], ids=["in time", "not in time"])
def test_a_lane_that_does_not_let_go_is_fenced_after_a_while(late: bool) -> None:
    world = World()
    owner, _, lane = reading(world)
    reset(world, Reset(3))
    world.wait(TIMING.handoff_ms + (1_000 if late else -5_000), alive=(lane,))
    assert (world.cluster.sources.owners[FLIGHTS].epoch > owner.epoch) is late
    assert resetting.is_done(world.cluster, FLIGHTS) is late
    assert (
        from_coordinator.LetGo((owner,), settle=False) in world.sent(lane, from_coordinator.LetGo)
    ) is late


def test_a_higher_epoch_in_the_store_is_gone_above_with_the_reset_still_to_do() -> None:
    world = World()
    owner, _, lane = reading(world)
    world.say(lane, to_coordinator.Goodbye())
    world.fences = False
    reset(world, Reset(3))
    world.apply(world.cluster.fenced((), overtaken=((FLIGHTS, owner.epoch + 5),)))
    assert world.cluster.resets.putting == {FLIGHTS: Reset(3)}
    assert world.cluster.unfenced[FLIGHTS].epoch == owner.epoch + 6


@pytest.mark.parametrize(
    ("given", "error"),
    [
        pytest.param(PartitionRef("nothing", 0), UnknownTopic, id="no such topic"),
        pytest.param(PartitionRef("flights", 9), NotFound, id="no such partition"),
    ],
)
def test_what_is_not_there_cannot_be_reset(given: PartitionRef, error: type[Exception]) -> None:
    world = World()
    reading(world)
    with pytest.raises(error):
        world.apply(world.cluster.reset(given, Reset(3), world.now_ms))
    assert resetting.is_done(world.cluster, given)


def test_what_is_moving_is_reset_later() -> None:
    world = World()
    reading(world)
    world.join("router", "r-2")
    world.apply(world.cluster.drain("r-1", world.now_ms))
    assert FLIGHTS in world.cluster.handoffs.by_ref
    with pytest.raises(NotNow, match="on its way"):
        reset(world, Reset(3))


@pytest.mark.parametrize("released", [False, True], ids=["still read", "let go of"])
def test_with_its_topic_a_reset_is_forgotten(released: bool) -> None:
    world = World()
    owner, _, lane = reading(world)
    world.fences = False
    reset(world, Reset(3))
    if released:
        world.say(lane, to_coordinator.Released((owner,)))
    assert not resetting.is_done(world.cluster, FLIGHTS)
    world.apply(world.cluster.delete_topic("flights"))
    assert resetting.is_done(world.cluster, FLIGHTS)


# --- the coordinator dies ------------------------------------------------------------------------


def next_coordinator(world: World, *, fences: bool = True) -> World:
    return World(stored=world.persisted(), now_ms=world.now_ms, fences=fences)


def test_what_is_wanted_is_durable_before_anybody_is_asked() -> None:
    world = World()
    reading(world)
    wanted, *asked = world.cluster.reset(FLIGHTS, Reset(3, resync=True), world.now_ms)
    assert isinstance(wanted, Persist)
    assert wanted.state.resets == (StoredReset(FLIGHTS, 3, resync=True),)
    assert [type(effect) for effect in asked] == [Send]


def test_the_next_coordinator_asks_again_who_reads() -> None:
    world = World()
    owner, _, _ = reading(world)
    reset(world, Reset(3))
    world = next_coordinator(world)
    world.join("gateway", "g-1")
    router = world.open(
        to_coordinator.Hello(
            role="router", node_id="r-1", incarnation="a", owns=(owner,), generation=1
        )
    )
    lane = world.lane(owner)
    assert world.last(lane, from_coordinator.LetGo) == from_coordinator.LetGo((owner,), settle=True)
    world.say(lane, to_coordinator.Released((owner,)))
    assert resetting.is_done(world.cluster, FLIGHTS)
    assert world.persisted().resets == ()
    assert world.last(router, from_coordinator.Assign).sources == (
        Owner(FLIGHTS, "r-1", owner.epoch + 1),
    )


def test_what_nobody_reads_is_put_by_the_next_coordinator_alone() -> None:
    world = World(fences=False)
    world.join("ingest", "i-1")
    world.create("flights")
    reset(world, Reset(3))
    assert [one.is_released for one in world.persisted().resets] == [True]
    world = next_coordinator(world)
    assert world.cluster.resets.putting == {FLIGHTS: Reset(3)}
    world.wait(1_000)
    assert [owner.ref for owner in world.fenced()] == [FLIGHTS]
    assert world.persisted().resets == ()


def test_that_it_is_done_is_durable_before_anybody_reads_on() -> None:
    world = World()
    owner, _, lane = reading(world)
    world.say(lane, to_coordinator.Goodbye())
    world.fences = False
    reset(world, Reset(3))
    done, *told = world.cluster.fenced([Owner(FLIGHTS, "r-1", owner.epoch + 1)])
    assert isinstance(done, Persist)
    assert done.state.resets == ()
    assert any(isinstance(e, Send) and isinstance(e.message, from_coordinator.Assign) for e in told)


def test_a_newer_wish_takes_the_place_of_one_that_waits_for_its_store() -> None:
    world = World(fences=False)
    world.join("ingest", "i-1")
    world.create("flights")
    reset(world, Reset(3))
    reset(world, Reset(9))
    assert [one.settled for one in world.persisted().resets] == [9]
    assert world.cluster.resets.putting == {FLIGHTS: Reset(9)}


def test_a_coordinator_that_stood_still_gives_the_reader_its_time() -> None:
    world = World()
    owner, _, lane = reading(world)
    reset(world, Reset(3))
    world.now_ms += 10 * TIMING.handoff_ms
    world.say(lane, to_coordinator.CheckIn())
    world.apply(world.cluster.tick(world.now_ms))
    assert world.cluster.sources.owners[FLIGHTS] == owner
