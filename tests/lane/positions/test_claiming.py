"""A position that can't be read keeps a lane from its own partition, and from no other."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from headgate.errors import StorageFailed
from headgate.lane.positions.claiming import CLAIM_MOMENT_S, CLAIM_PATIENCE_S, Claiming
from headgate.lane.positions.partition import SourcePartition
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import LaneReport
from headgate.model.event import Fence, PartitionRef
from headgate.model.position import Position
from headgate.model.topology import Owner
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down


class SlowlyAnswered(FaultyCheckpoints):
    """Takes its time for some."""

    def __init__(self) -> None:
        super().__init__()
        self.slow: dict[PartitionRef, float] = {}

    async def claim(
        self, ref: PartitionRef, fence: Fence, *, after: Collection[Fence] | None = None
    ) -> Position:
        await asyncio.sleep(self.slow.get(ref, 0.0))
        return await super().claim(ref, fence, after=after)


def unclaimed(world: LaneWorld) -> list[Owner]:
    """What the lane said that it can't claim, each time it did."""
    told = [message for message in world.sent if isinstance(message, LaneReport)]
    return [owner for report in told for owner in report.unclaimed]


def claimed(world: LaneWorld) -> list[to_coordinator.Claimed]:
    return [message for message in world.sent if isinstance(message, to_coordinator.Claimed)]


@on_virtual_time
async def test_the_others_of_its_lane_do_not_wait_for_it() -> None:
    world = LaneWorld(partitions=2, window_s=1e6)
    world.checkpoints.damaged.add(world.refs[0])
    for partition in (0, 1):
        world.append(3, partition=partition)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5.0)
    assert world.gateways.seqs("gateway-1", 1) == [1, 2, 3]
    assert world.gateways.seqs("gateway-1", 0) == []
    assert claimed(world) == [to_coordinator.Claimed(world.spec.owns[1:])]
    assert unclaimed(world) == [world.spec.owns[0]]
    await settle_down(2 * CLAIM_PATIENCE_S)
    assert not world.life.done()
    assert unclaimed(world) == [world.spec.owns[0]], "whoever has it now, this is old by then"


@on_virtual_time
async def test_a_lane_that_has_nothing_else_ends_nobodys_window() -> None:
    """It says so early, because somebody may wait for it, and goes on trying for a while: perhaps
    the whole store is away."""
    world = LaneWorld(window_s=120.0)
    world.checkpoints.damaged.add(world.refs[0])
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5.0)
    assert unclaimed(world)[:1] == [world.spec.owns[0]]
    assert claimed(world) == [], "it still wants it"
    await settle_down(CLAIM_PATIENCE_S)
    assert claimed(world) == [to_coordinator.Claimed(())]
    world.checkpoints.damaged.clear()
    await settle_down(30.0)
    assert world.held() == {}, "it was given up, and others may be told to have subscribed"
    assert not world.life.done()
    await settle_down(60.0)
    assert (await world.dead()).fenced


@on_virtual_time
async def test_a_lane_that_gives_up_after_its_window_ends() -> None:
    """When the window ended it might still have got what it tried to claim, so it stayed."""
    world = LaneWorld(window_s=10.0)
    world.checkpoints.failing = StorageFailed("the store is away")
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(15.0)
    await world.lane.tally()
    assert not world.life.done()
    await settle_down(CLAIM_PATIENCE_S)
    assert claimed(world) == [to_coordinator.Claimed(())]
    assert world.life.done()


@on_virtual_time
async def test_its_predecessor_goes_on_with_it() -> None:
    world = LaneWorld(partitions=2, window_s=5.0)
    world.start()
    await world.subscribed(everything("s1"))
    world.checkpoints.damaged.add(world.refs[0])
    await world.lane.tally()
    successor = world.successor(window=4)
    successor.revision = 1
    successor.start()
    await successor.subscribed(everything("s1"))
    await settle_down(3.0)
    for partition in (0, 1):
        world.append(3, partition=partition)
    await settle_down(10.0)
    assert world.gateways.seqs("gateway-1", 0) == [1, 2, 3]
    assert set(world.gateways.seqs("gateway-1", 1)) == {1, 2, 3}
    assert world.lane.holding.fences() == {world.refs[0]: Fence(5, 3, 0)}
    assert successor.lane.holding.fences() == {world.refs[1]: Fence(5, 4, 0)}


@on_virtual_time
async def test_a_proof_of_the_others_does_not_wait_for_it() -> None:
    world = LaneWorld(partitions=2, window_s=1e6)
    world.start()
    await world.subscribed(everything("s1"))
    world.checkpoints.damaged.add(world.refs[0])
    world.sent.clear()
    world.push(from_coordinator.Prove(7))
    await settle_down(5.0)
    assert claimed(world) == [to_coordinator.Claimed(world.spec.owns[1:], 7)]
    assert unclaimed(world) == [world.spec.owns[0]]
    assert world.lane.holding.fences() == {world.refs[1]: Fence(5, 3, 0)}


@on_virtual_time
async def test_a_proof_of_nothing_else_does_not_wait_for_it_either() -> None:
    """The store says that what it has is no position: it isn't away."""
    world = LaneWorld(window_s=1e6)
    world.start()
    await world.subscribed(everything("s1"))
    world.checkpoints.damaged.add(world.refs[0])
    world.sent.clear()
    world.push(from_coordinator.Prove(7))
    await settle_down(5.0)
    assert claimed(world) == [to_coordinator.Claimed((), 7)]
    assert unclaimed(world) == [world.spec.owns[0]]
    assert (await world.dead()).fenced


@on_virtual_time
async def test_a_proof_waits_for_a_store_that_is_away() -> None:
    world = LaneWorld(partitions=2, window_s=1e6)
    world.start()
    await world.subscribed(everything("s1"))
    world.checkpoints.failing = StorageFailed("the store is away")
    world.sent.clear()
    world.push(from_coordinator.Prove(7))
    await settle_down(2 * CLAIM_PATIENCE_S)
    assert claimed(world) == []
    assert unclaimed(world) == []
    assert len(world.lane.holding.fences()) == 2


@on_virtual_time
async def test_a_proof_knows_what_it_found_whoever_begins_another_meanwhile() -> None:
    """Else it would say that the lane holds what nobody can tell of."""
    store = SlowlyAnswered()
    fence = Fence(5, 3, 0)
    held = [
        SourcePartition(Owner(PartitionRef("flights", n), "r", 5), fence, Position(), read_limit=1)
        for n in (0, 1)
    ]
    unreadable, slow = (one.ref for one in held)
    for one in held:
        await store.claim(one.ref, fence)
    store.damaged.add(unreadable)
    store.slow[slow] = CLAIM_MOMENT_S + 1.0
    claiming = Claiming(LaneWorld().spec, store, lambda _: None)
    first = asyncio.ensure_future(claiming.lost(held, may=lambda: True))
    await asyncio.sleep(CLAIM_MOMENT_S + 0.6)  # it has given the first one up, not the other
    second = asyncio.ensure_future(claiming.lost(held, may=lambda: True))
    assert await first == []
    assert claiming.failed.keys() == {unreadable}
    assert await second == []
    assert claiming.failed.keys() == {unreadable}
