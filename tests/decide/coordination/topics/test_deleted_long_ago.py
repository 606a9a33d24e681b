"""Of topics that were deleted long ago nothing is kept but how high their epochs were."""

from __future__ import annotations

import msgspec
import pytest

from headgate.decide.coordination.topics.operating import DELETED_MAX
from headgate.model.control import to_coordinator
from headgate.model.event import PartitionRef
from headgate.model.groups import group_id
from tests.decide.coordination.world import World


def swept(world: World, *, times: int = 2) -> None:
    """As the coordinator's sweeping says it, of all whose letters it could forget."""
    for _ in range(times):
        world.apply(world.cluster.letters_swept(sorted(world.cluster.deleted)))


def come_and_gone(world: World, count: int, *, begin: int = 0) -> list[str]:
    names = [f"t{number:04}" for number in range(begin, begin + count)]
    for name in names:
        world.create(name, 2)
        world.apply(world.cluster.delete_topic(name))
    return names


def world_of(*, stored: World | None = None) -> World:
    world = World() if stored is None else World(stored=stored.persisted())
    world.join("ingest", "i-1")
    world.join("router", "r-1")
    return world


def epochs(world: World, name: str) -> list[int]:
    tables = world.cluster.logs.owners, world.cluster.sources.owners
    return [table[PartitionRef(name, 0)].epoch for table in tables]


def test_what_is_kept_does_not_grow_with_all_that_was_ever_deleted() -> None:
    world = world_of()
    come_and_gone(world, DELETED_MAX + 20)
    swept(world)
    size = len(msgspec.json.encode(world.persisted()))
    assert len(world.persisted().deleted) == DELETED_MAX
    for begin in range(1_000, 1_200, 50):
        come_and_gone(world, 50, begin=begin)
        swept(world)
    assert len(world.persisted().deleted) == DELETED_MAX
    assert len(msgspec.json.encode(world.persisted())) <= size + 100
    assert len(world.cluster.lanes._newest) <= 2 * DELETED_MAX
    assert world.cluster.topology().deleted == world.persisted().deleted


@pytest.mark.parametrize("restarted", [False, True])
def test_no_epoch_comes_back_with_a_topic_of_the_same_name(restarted: bool) -> None:
    world = world_of()
    for _ in range(3):
        world.create("t0000", 1)
        world.apply(world.cluster.delete_topic("t0000"))
    before = epochs(world, "t0000")
    come_and_gone(world, DELETED_MAX + 20, begin=1)
    swept(world)
    assert "t0000" not in world.cluster.deleted
    assert PartitionRef("t0000", 0) not in world.cluster.logs.owners
    if restarted:
        world = world_of(stored=world)
    world.create("t0000", 1)
    assert all(now > then for now, then in zip(epochs(world, "t0000"), before, strict=True))


def test_whoever_has_yet_to_drop_its_records_still_does() -> None:
    world = world_of()
    late = world.join("ingest", "i-2")
    names = come_and_gone(world, DELETED_MAX + 20)
    world.say(late, to_coordinator.AckTopology(world.cluster.generation, undropped=tuple(names)))
    swept(world, times=3)
    assert sorted(world.cluster.deleted) == names
    assert {owner.ref.topic for owner in world.cluster.topology().emptied} == set(names)
    world.say(late, to_coordinator.AckTopology(world.cluster.generation))
    swept(world)
    assert len(world.cluster.deleted) == DELETED_MAX


def test_a_node_that_is_away_is_waited_for_until_its_lease_ends() -> None:
    world = world_of()
    away = world.join("ingest", "i-2")
    world.drop(away)
    come_and_gone(world, DELETED_MAX + 20)
    swept(world, times=3)
    assert len(world.cluster.deleted) == DELETED_MAX + 20
    alive = tuple(s for s in world.cluster.sessions if s != away)
    world.wait(40_000, alive=alive)
    swept(world)
    assert len(world.cluster.deleted) == DELETED_MAX


def test_letters_are_swept_once_more_after_whoever_wrote_them_is_fenced_off() -> None:
    world = world_of()
    world.fences = False
    come_and_gone(world, DELETED_MAX + 20)
    swept(world, times=3)
    assert len(world.cluster.deleted) == DELETED_MAX + 20
    world.fences = True
    world.wait(2_000, alive=tuple(world.cluster.sessions))
    swept(world, times=1)
    assert len(world.cluster.deleted) == DELETED_MAX + 20
    swept(world, times=1)
    assert len(world.cluster.deleted) == DELETED_MAX


def test_a_deletion_of_just_now_is_swept_once_more_too() -> None:
    world = world_of()
    names = come_and_gone(world, DELETED_MAX + 1)
    swept(world, times=1)
    for name in names:
        world.create(name, 2)
        world.apply(world.cluster.delete_topic(name))
    swept(world, times=1)
    assert len(world.cluster.deleted) == DELETED_MAX + 1
    swept(world, times=1)
    assert len(world.cluster.deleted) == DELETED_MAX


def test_the_targets_of_its_groups_go_with_it() -> None:
    world = world_of()
    gateway = world.join("gateway", "g-1")
    world.create("t0000", 1)
    join = to_coordinator.JoinGroup(topic="t0000", group="packers", consumer="c", incarnation="x")
    world.say(gateway, join)
    world.wait(5_000, alive=tuple(world.cluster.sessions))
    targets = world.cluster.groups.targets
    mine = [owner for owner in targets.all() if owner.ref.topic == group_id("t0000", "packers")]
    assert mine
    world.apply(world.cluster.delete_topic("t0000"))
    come_and_gone(world, DELETED_MAX, begin=1)
    swept(world)
    targets = world.cluster.groups.targets
    assert targets.all() == ()
    assert targets.above >= max(owner.epoch for owner in mine)
