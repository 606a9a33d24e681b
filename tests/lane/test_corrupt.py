"""A record that isn't what was appended: its partition stops there, by name, and nobody gets it."""

from __future__ import annotations

from headgate.errors import StorageFailed
from headgate.model.control.reports import LaneReport, PartitionReport
from headgate.model.position import Position
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down

SENTENCE = (
    "record 3 of flights:0 is corrupt: it isn't what its checksum was made for; nobody gets it, "
    "and the partition stops there: bring its store back from a copy, or go on behind it with "
    "`headgate partition reset flights:0 --to 4 --resync`"
)


def reports(world: LaneWorld) -> list[PartitionReport]:
    return list([one for one in world.sent if isinstance(one, LaneReport)][-1].partitions)


async def started(world: LaneWorld) -> None:
    world.append(5)
    world.log.flip(world.refs[0], 3)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)


@on_virtual_time
async def test_a_partition_stops_before_a_corrupt_record_and_says_how_to_go_on() -> None:
    world = LaneWorld(partitions=2)
    world.append(4, partition=1)
    await started(world)
    stopped, well = reports(world)
    assert (stopped.state, stopped.reason) == ("failed", SENTENCE)
    assert world.gateways.seqs("gateway-1") == [1, 2]
    assert world.position() == 2
    assert well.state == "flowing"
    assert world.gateways.seqs("gateway-1", 1) == [1, 2, 3, 4]
    assert world.position(1) == 4


@on_virtual_time
async def test_it_goes_on_by_itself_when_the_record_is_back() -> None:
    world = LaneWorld()
    await started(world)
    world.log.flip(world.refs[0], 3)
    await settle_down(60)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 5]
    assert reports(world)[0].state == "flowing"


@on_virtual_time
async def test_it_is_skipped_when_an_operator_says_so_and_everybody_hears_of_it() -> None:
    world = LaneWorld()
    world.append(5)
    world.log.flip(world.refs[0], 3)
    world.checkpoints.put(world.refs[0], Position(2, skip_to=3))
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)
    came = [(one.lost_from, one.seq) for one in world.gateways.accepted["gateway-1"]]
    assert came == [(3, 3), (0, 4), (0, 5)]
    assert reports(world)[0].state == "flowing"
    assert world.position() == 5


@on_virtual_time
async def test_what_was_delivered_may_be_corrupt_later() -> None:
    """The last record that was read is looked at again after a pause."""
    world = LaneWorld()
    world.append(3)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)
    world.log.flip(world.refs[0], 3)
    world.log.damaged[world.refs[0]] = StorageFailed("away")
    await settle_down(10)
    world.log.damaged.clear()
    world.append(1)
    await settle_down(60)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4]
    assert reports(world)[0].state == "flowing"
