"""What an operator wants again is one wish, whoever has the partition: a gateway that knows who has
had something of it must recognise it from the next lane, too, and tell it from a later wish."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.model.control import from_coordinator
from headgate.model.delivery import Delivery
from headgate.model.event import Fence
from headgate.model.topology import Owner
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down


async def reset(world: LaneWorld, *, settled: int) -> None:
    """As the coordinator does it: under a new epoch, before the next lane begins."""
    await world.ended()
    epoch = take_epoch(world)
    ref = world.refs[0]
    await world.checkpoints.reset(ref, Fence(epoch), settled, resync=False)
    await start(world)


async def hand_on(world: LaneWorld) -> None:
    """Another owner, another epoch, and nothing else."""
    if not world.life.done():
        await world.ended()
    take_epoch(world)
    await start(world)


async def start(world: LaneWorld) -> None:
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(12)


def take_epoch(world: LaneWorld) -> int:
    [owner] = world.spec.owns
    newer = Owner(owner.ref, owner.node_id, owner.epoch + 1)
    world.spec = replace(world.spec, owns=(newer,))
    return newer.epoch


def tries(world: LaneWorld, seq: int) -> list[Delivery]:
    """What was sent of a record, each time, as a redelivery."""
    batches = [batch for _, batch in world.gateways.batches]
    sent = [one for batch in batches for one in batch.deliveries]
    return [one for one in sent if one.seq == seq and one.redelivery]


def wishes(world: LaneWorld, seq: int) -> set[int]:
    return {one.wish for one in tries(world, seq)}


@on_virtual_time
async def test_a_reset_is_one_wish_for_all_who_have_the_partition_after_it() -> None:
    world = LaneWorld(redrive_every_s=5.0)
    world.append(4)
    await start(world)
    world.gateways.slow_readers = {"s1"}
    await reset(world, settled=1)
    assert world.letters.seqs("parked") == [2, 3, 4]
    for _ in range(2):
        await hand_on(world)
    found = tries(world, 2)
    assert len({one.epoch for one in found}) == 3
    assert wishes(world, 2) == wishes(world, 3)
    [wish] = wishes(world, 2)
    assert wish != 0
    assert all(one.in_turn for one in found), "also from its letter"


@on_virtual_time
async def test_what_comes_again_for_somebody_who_leaves_becomes_a_dead_letter() -> None:
    """Who comes back resumes at a position, which doesn't bring it."""
    world = LaneWorld(redrive_every_s=5.0)
    world.append(4)
    await start(world)
    world.gateways.slow_readers = {"s1"}
    await reset(world, settled=1)
    assert world.letters.seqs("parked") == [2, 3, 4]
    world.append(1)
    world.push(from_coordinator.SubscriptionChanges(world.revision + 1, removals=("s1",)))
    await settle_down(30.0)
    assert world.letters.seqs("parked") == []
    assert world.letters.seqs("dead") == [2, 3, 4], "not what is new: that is in the log for it"
    assert {letter.reason for letter in world.letters.of("dead")} == {"left"}


@on_virtual_time
async def test_also_where_the_gateway_is_the_first_to_know() -> None:
    world = LaneWorld(redrive_every_s=5.0)
    world.append(4)
    await start(world)
    world.gateways.scripts["gateway-1"] = [["no_subscriber"] * 3]
    await reset(world, settled=1)
    world.append(1)
    await settle_down(12.0)
    assert world.letters.seqs("dead") == [2, 3, 4]
    assert {letter.reason for letter in world.letters.of("dead")} == {"left"}
    assert world.position(0) == 5


@on_virtual_time
async def test_each_reset_is_a_wish_of_its_own() -> None:
    world = LaneWorld(redrive_every_s=5.0)
    world.append(4)
    await start(world)
    for _ in range(3):  # the same records, and nothing new in between
        await reset(world, settled=1)
    assert world.gateways.seqs("gateway-1") == [1, *[2, 3, 4] * 4]
    assert len(wishes(world, 2)) == 3


@on_virtual_time
async def test_what_a_lane_reads_again_is_of_the_same_wish() -> None:
    """It died before it could save what it had delivered."""
    world = LaneWorld(checkpoint_interval_s=1_000.0)
    world.append(4)
    await start(world)
    await reset(world, settled=0)
    await world.die()
    world.away = False
    await hand_on(world)
    assert len({one.epoch for one in tries(world, 1)}) == 2
    assert len(wishes(world, 1)) == 1


@on_virtual_time
async def test_each_retry_of_a_letter_is_a_wish_of_its_own_whoever_sends_it() -> None:
    world = LaneWorld(redrive_every_s=5.0)
    world.gateways.rejected = {("gateway-1", 1)}
    world.append(1)
    await start(world)
    world.gateways.rejected, world.gateways.slow_readers = set(), {"s1"}
    [letter] = world.letters.of("dead")
    await world.letters.revive([letter.id], now_ms=1_000)
    world.push(from_coordinator.LettersRevived())
    await settle_down()
    await hand_on(world)
    assert len({one.epoch for one in tries(world, 1)}) == 2
    assert wishes(world, 1) == {1_000}
    assert not any(one.in_turn for one in tries(world, 1))
    world.gateways.rejected = {("gateway-1", 1)}
    await settle_down(12)
    assert world.letters.seqs("dead") == [1]
    await world.letters.revive([letter.id], now_ms=2_000)
    world.push(from_coordinator.LettersRevived())
    await settle_down()
    assert wishes(world, 1) == {1_000, 2_000}


@on_virtual_time
async def test_a_letter_of_a_reset_that_is_retried_comes_out_of_turn() -> None:
    world = LaneWorld(redrive_every_s=5.0)
    world.append(2)
    await start(world)
    world.gateways.rejected = {("gateway-1", 1)}
    await reset(world, settled=0)
    world.gateways.rejected = set()
    [letter] = world.letters.of("dead")
    assert letter.delivery.in_turn
    await world.letters.revive([letter.id], now_ms=1_000)
    world.push(from_coordinator.LettersRevived())
    await settle_down()
    assert [one.in_turn for one in tries(world, 1)] == [True, False]


@on_virtual_time
async def test_what_is_marked_without_a_wish_stays_the_same_for_the_next_owner() -> None:
    world = LaneWorld(dlq_enabled=False, redrive_every_s=5.0)
    world.gateways.scripts["gateway-1"] = [["accepted", "rejected", "accepted"]]
    world.gateways.slow_readers = {"s1"}
    world.append(3)
    await start(world)
    await hand_on(world)
    assert len({one.epoch for one in tries(world, 2)}) == 2
    assert len(wishes(world, 2)) == 1
