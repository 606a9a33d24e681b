"""A partition leaves a lane in the middle of a window; the lane goes on with the others."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace

from headgate.errors import StorageFailed
from headgate.lane.delivery.pipeline import GatewayPipeline
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.message import Message
from headgate.model.control.reports import LaneReport
from headgate.model.event import Fence, PartitionRef
from headgate.model.topology import Owner
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down

M = TypeVar("M", bound=Message)


def said(world: LaneWorld, kind: type[M]) -> list[M]:
    return [message for message in world.sent if isinstance(message, kind)]


async def reading(partitions: int = 2, **settings: float) -> LaneWorld:
    world = LaneWorld(partitions=partitions, attempt=0, **settings)
    world.start()
    await world.subscribed(everything("s1"))
    return world


@on_virtual_time
async def test_a_handoff_settles_and_saves_before_it_says_so() -> None:
    world = await reading()
    world.gateways.hanging.add("gateway-1")
    world.append(3)
    await settle_down()
    world.push(from_coordinator.LetGo(world.spec.owns[:1], settle=True))
    await settle_down()
    world.append(2)
    await settle_down()
    assert not said(world, to_coordinator.Released), "three deliveries are in flight"
    world.gateways.hanging.clear()
    await settle_down(6.0)
    assert said(world, to_coordinator.Released) == [to_coordinator.Released(world.spec.owns[:1])]
    assert world.position(0) == 3
    assert world.gateways.seqs("gateway-1") == [1, 2, 3], "what came since is the recipient's"


@on_virtual_time
async def test_what_is_handed_off_is_not_read_and_the_rest_is() -> None:
    world = await reading()
    world.push(from_coordinator.LetGo(world.spec.owns[:1], settle=True))
    await settle_down()
    world.append(2)
    world.append(2, partition=1)
    await settle_down()
    assert world.gateways.seqs("gateway-1", 0) == []
    assert world.gateways.seqs("gateway-1", 1) == [1, 2]
    report = said(world, LaneReport)[-1]
    assert [partition.ref for partition in report.partitions] == world.refs[1:]
    await world.ended()
    assert world.position(1) == 2


@on_virtual_time
async def test_what_was_read_but_not_matched_yet_is_left_to_the_recipient() -> None:
    world = LaneWorld()
    world.append(400)
    world.start()
    world.gateways.on_batch = lambda: world.push(
        from_coordinator.LetGo(world.spec.owns, settle=True)
    )
    await world.subscribed(everything("s1"))
    await settle_down(2.0)
    assert said(world, to_coordinator.Released)
    settled = world.position()
    assert 0 < settled < 400, "it is let go while one read of the log is being matched"
    assert world.gateways.seqs("gateway-1") == list(range(1, settled + 1))


@on_virtual_time
async def test_a_handoff_waits_only_so_long_for_a_gateway() -> None:
    world = await reading(flush_timeout_s=2.0)
    world.gateways.hanging.add("gateway-1")
    world.append(3)
    await settle_down()
    world.push(from_coordinator.LetGo(world.spec.owns[:1], settle=True))
    await settle_down(3.0)
    assert said(world, to_coordinator.Released)
    assert world.position(0) == 0, "what isn't settled is the recipient's"


@on_virtual_time
async def test_a_reader_that_waits_for_room_goes_on_when_the_full_partition_leaves() -> None:
    world = await reading(queue_size=2, flush_timeout_s=1.0)
    world.gateways.hanging.add("gateway-1")
    world.append(2)
    await settle_down()
    world.append(1, partition=1)
    await settle_down()
    world.push(from_coordinator.LetGo(world.spec.owns[:1], settle=True))
    await settle_down(2.0)
    world.gateways.hanging.clear()
    await settle_down(30.0)
    assert world.gateways.seqs("gateway-1", 1) == [1]


@on_virtual_time
async def test_what_somebody_newer_has_is_dropped_alone() -> None:
    world = await reading()
    world.gateways.hanging.add("gateway-1")
    world.append(2)
    await settle_down()
    world.push(from_coordinator.LetGo(world.spec.owns[:1], settle=False))
    world.gateways.hanging.clear()
    world.append(2, partition=1)
    await settle_down(6.0)
    assert world.gateways.seqs("gateway-1", 0) == []
    assert world.gateways.seqs("gateway-1", 1) == [1, 2]
    assert not said(world, to_coordinator.Released)


@on_virtual_time
async def test_a_gateway_that_has_seen_a_newer_owner_ends_one_partition() -> None:
    world = await reading()
    world.gateways.scripts["gateway-1"] = [["stale_fence"]]
    world.append(1)
    await settle_down()
    world.append(1, partition=1)
    await settle_down()
    assert world.gateways.seqs("gateway-1", 1) == [1]
    assert not world.life.done()


@on_virtual_time
async def test_nobody_who_finds_out_about_a_newer_owner_is_called_back() -> None:
    """What one pipeline says goes to the lane, which tells all of them later, that one included."""
    callers: list[set[str]] = []
    drop = GatewayPipeline.drop

    def noticed(self: GatewayPipeline, ref: PartitionRef) -> None:
        callers.append({Path(frame.filename).name for frame in traceback.extract_stack()})
        drop(self, ref)

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(GatewayPipeline, "drop", noticed)
        world = await reading(checkpoint_interval_s=1.0)
        world.gateways.scripts["gateway-1"] = [["stale_fence"]]
        world.append(1)
        await settle_down()
        await world.checkpoints.claim(world.refs[1], Fence(9))
        world.append(1, partition=1)
        await settle_down(3.0)
    assert len(callers) == 2, "a gateway and the store of positions have each found out"
    assert not any({"dispatch.py", "saving.py"} & files for files in callers)


@on_virtual_time
async def test_a_checkpoint_that_was_claimed_ends_one_partition() -> None:
    world = await reading(checkpoint_interval_s=1.0)
    await world.checkpoints.claim(world.refs[0], Fence(9))
    world.append(1)
    world.append(1, partition=1)
    await settle_down(3.0)
    assert not world.life.done()
    world.append(1)
    await settle_down()
    assert world.gateways.seqs("gateway-1", 0) == [1], "it reads no further"


@on_virtual_time
async def test_a_lane_with_nothing_left_ends() -> None:
    world = await reading()
    world.push(from_coordinator.LetGo(world.spec.owns, settle=True))
    tally = await world.dead()
    assert tally.reason == "everything is handed off"


@on_virtual_time
async def test_a_lane_with_nothing_left_ends_when_it_hears_who_has_it() -> None:
    """Lanes are sent no topology when only owners have changed: the coordinator says so."""
    world = await reading()
    known = world.topology("gateway-1", "gateway-2")
    world.push(from_coordinator.PushTopology(replace(known, generation=2, sources=world.spec.owns)))
    world.push(from_coordinator.LetGo(world.spec.owns, settle=True))
    await settle_down(30.0)
    assert said(world, to_coordinator.Released) == [to_coordinator.Released(world.spec.owns)]
    assert not world.life.done(), "perhaps nobody has heard it"
    for owner in world.spec.owns:
        assert not world.life.done()
        world.push(from_coordinator.LetGo((owner,), settle=False))
        await settle_down()
    assert (await world.dead()).reason == "everything is handed off"


@on_virtual_time
async def test_a_partition_of_another_epoch_stays() -> None:
    world = await reading(partitions=1)
    older = from_coordinator.LetGo((Owner(world.refs[0], "router-1", 4),), settle=False)
    world.push(older)
    world.append(1)
    await settle_down()
    assert world.gateways.seqs("gateway-1") == [1]


@on_virtual_time
async def test_a_coordinator_that_was_away_hears_again_what_was_handed_off() -> None:
    world = await reading()
    world.push(from_coordinator.LetGo(world.spec.owns[:1], settle=True))
    await settle_down()
    world.push(from_coordinator.Welcome("coordinator-2", 30_000, 5_000))
    await settle_down()
    assert (
        said(world, to_coordinator.Released) == [to_coordinator.Released(world.spec.owns[:1])] * 2
    )


@on_virtual_time
async def test_a_lane_starts_with_what_it_can_claim() -> None:
    world = LaneWorld(partitions=2)
    await world.checkpoints.claim(world.refs[0], Fence(9))
    world.start()
    await world.subscribed(everything("s1"))
    world.append(1)
    world.append(1, partition=1)
    await settle_down()
    assert world.gateways.seqs("gateway-1", 0) == []
    assert world.gateways.seqs("gateway-1", 1) == [1]


@on_virtual_time
async def test_a_lane_waits_a_while_for_a_checkpoint_store_that_is_away() -> None:
    world = LaneWorld()
    world.checkpoints.failing = StorageFailed("the store is away")
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5.0)
    world.checkpoints.failing = None
    await settle_down(5.0)
    world.append(1)
    await settle_down()
    assert world.gateways.seqs("gateway-1") == [1]
