"""What the scenarios of the grace don't show: pauses of the coordinator, and repartitions."""

from __future__ import annotations

import pytest

from headgate.decide.coordination.members import damping
from headgate.errors import NotFound, NotNow
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import RouterReport
from headgate.model.control.to_coordinator import Sealed
from tests.decide.coordination.world import World


@pytest.fixture
def world() -> World:
    return World()


def _logs(world: World) -> list[str]:
    return [owner.node_id for owner in world.cluster.logs.owned()]


def _wait(world: World, *, steps: int, step_ms: int) -> None:
    for _ in range(steps):
        world.now_ms += step_ms
        world.apply(world.cluster.tick(world.now_ms))


@pytest.mark.parametrize(
    ("pause_ms", "moves"),
    [
        pytest.param(250, True, id="no pause"),
        pytest.param(1_000, True, id="a tick that takes its time"),
        pytest.param(1_001, False, id="longer than half the grace"),
        pytest.param(60_000, False, id="far longer than a lease"),
    ],
)
def test_a_coordinator_that_stood_still_hears_whoever_came_back_before_it_judges(
    world: World, pause_ms: int, moves: bool
) -> None:
    gone = world.join("ingest", "ingest-1")
    world.join("ingest", "ingest-2")
    world.create("flights", 2)
    world.drop(gone)
    for step_ms in (900, pause_ms, 49):
        _wait(world, steps=1, step_ms=step_ms)
    assert _logs(world) == ["ingest-1", "ingest-2"]
    _wait(world, steps=1, step_ms=1_000)
    assert (_logs(world) == ["ingest-2", "ingest-2"]) == moves
    world.join("ingest", "ingest-1")
    _wait(world, steps=10, step_ms=250)
    if not moves:
        assert [owner.epoch for owner in world.cluster.logs.owned()] == [1, 1]


def test_the_grace_ends_for_a_coordinator_that_is_always_late(world: World) -> None:
    """It is not for ever that its own pauses are everybody's excuse: the lease goes on."""
    gone = world.join("ingest", "ingest-1")
    stays = world.join("ingest", "ingest-2")
    world.create("flights", 2)
    world.drop(gone)
    for _ in range(20):
        world.say(stays, to_coordinator.CheckIn())
        _wait(world, steps=1, step_ms=2_000)
    assert _logs(world) == ["ingest-2", "ingest-2"]


def test_what_is_being_sealed_is_sealed_by_whoever_takes_over() -> None:
    world = World()
    gone, stays = world.join("ingest", "ingest-1"), world.join("ingest", "ingest-2")
    world.create("flights", 2)
    world.acks = False

    def says(session: int, node_id: str) -> None:
        under_way = world.cluster.topics["flights"].repartition
        assert under_way is not None
        owners = world.cluster.logs.of_node(node_id)
        sealed = tuple(
            Sealed(owner.ref, owner.epoch, 5)
            for owner in owners
            if under_way.phase == "sealing" or owner.ref.partition >= 2
        )
        world.say(session, to_coordinator.AckTopology(world.cluster.generation, sealed=sealed))

    def phase() -> str:
        under_way = world.cluster.topics["flights"].repartition
        return "" if under_way is None else under_way.phase

    world.apply(world.cluster.repartition("flights", 4, world.now_ms))
    says(gone, "ingest-1")
    says(stays, "ingest-2")
    assert phase() == "sealing"
    says(stays, "ingest-2")
    world.drop(gone)
    world.wait(2_000, alive=(stays,))
    assert (set(_logs(world)), phase()) == ({"ingest-2"}, "sealing")
    says(stays, "ingest-2")
    assert phase() == "draining"  # without a gateway, nobody has to hear of the fence first
    assert world.cluster.topics["flights"].version == 2


def test_an_announced_repartition_goes_on_with_whoever_takes_over() -> None:
    world = World()
    gone, stays = world.join("ingest", "ingest-1"), world.join("ingest", "ingest-2")
    world.create("flights", 2)
    world.acks = False
    world.apply(world.cluster.repartition("flights", 4, world.now_ms))
    world.drop(gone)
    world.wait(2_000, alive=(stays,))
    world.acks = True
    world.say(stays, to_coordinator.AckTopology(world.cluster.generation))
    under_way = world.cluster.topics["flights"].repartition
    assert under_way is not None
    assert (set(_logs(world)), under_way.phase) == ({"ingest-2"}, "sealing")


def test_a_router_that_starts_takes_nothing_over_before_it_is_warm(world: World) -> None:
    gone = world.join("router", "router-1")
    world.create("flights")
    heir = world.join("router", "router-2")
    world.say(heir, RouterReport("starting", 0, 0.0))
    world.drop(gone)
    world.wait(10_000, alive=(heir,))
    assert [owner.node_id for owner in world.sources("flights")] == ["router-1"]
    world.say(heir, RouterReport("ready", 1, 0.0))
    world.wait(1_000, alive=(heir,))
    assert [owner.node_id for owner in world.sources("flights")] == ["router-2"]


def test_a_node_that_returns_before_anybody_could_take_over_was_not_passed_over(
    world: World,
) -> None:
    gone = world.join("ingest", "ingest-1")
    world.create("flights")
    world.drop(gone)
    world.wait(10_000)
    world.join("ingest", "ingest-1")
    assert world.cluster.lapses == {}


def test_times_are_forgotten_one_by_one(world: World) -> None:
    for at_ms in (0, 1_000, 500_000):
        damping.note(world.cluster, "ingest-1", at_ms)
    damping.forget(world.cluster, damping.LAPSES_MS + 1_000)
    assert world.cluster.lapses == {"ingest-1": (500_000,)}
    damping.forget(world.cluster, damping.LAPSES_MS + 500_000)
    assert world.cluster.lapses == {}


def test_a_trial_ends_with_a_lease_at_most_however_often_it_was(world: World) -> None:
    for number in range(100):
        damping.note(world.cluster, "ingest-1", number)
    assert len(world.cluster.lapses["ingest-1"]) == damping.LAPSES_MAX
    lease_ms = world.cluster.timing.lease_ms
    assert damping.trial_until_ms(world.cluster, "ingest-1", 7) == 7 + lease_ms


def test_a_node_is_told_to_begin_anew_where_it_can_hear_it(world: World) -> None:
    node = world.join("ingest", "ingest-1")
    world.apply(world.cluster.restart("ingest-1"))
    assert world.last(node, from_coordinator.Restart) == from_coordinator.Restart()
    world.say(node, to_coordinator.Goodbye(returns=True))
    with pytest.raises(NotNow, match="ingest-1 is lost"):
        world.apply(world.cluster.restart("ingest-1"))
    with pytest.raises(NotFound, match="there is no node ingest-2"):
        world.apply(world.cluster.restart("ingest-2"))
