"""A partition that can't be read stops by name; the others go on, and so does it once it can."""

from __future__ import annotations

import pytest

from headgate.errors import DataFolderError, OperatorError, StorageFailed
from headgate.model.control.reports import LaneReport, PartitionReport
from headgate.model.position import Tally
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down
from tests.virtual_time import run_virtual

DAMAGED = StorageFailed("reading flights:0 failed: the file is damaged; restore it from a copy")


def reports(world: LaneWorld) -> list[PartitionReport]:
    """What the lane said last of its partitions."""
    told = [message for message in world.sent if isinstance(message, LaneReport)]
    return sorted(told[-1].partitions, key=lambda one: one.ref)


async def reading(partitions: int = 2) -> LaneWorld:
    world = LaneWorld(partitions=partitions)
    world.start()
    await world.subscribed(everything("s1"))
    for partition in range(partitions):
        world.append(3, partition=partition)
    await settle_down(2)
    return world


@pytest.mark.parametrize(
    "error", [DAMAGED, DataFolderError("written by a newer Headgate")], ids=["damaged", "newer"]
)
def test_one_that_cannot_be_read_stops_no_other(error: OperatorError) -> None:
    async def scenario() -> None:
        world = await reading()
        world.log.damaged[world.refs[0]] = error
        world.append(4)
        world.append(4, partition=1)
        await settle_down(10)
        assert not world.life.done()
        assert world.gateways.seqs("gateway-1", 1) == [1, 2, 3, 4, 5, 6, 7]
        assert world.position(1) == 7
        damaged, well = reports(world)
        assert (damaged.state, damaged.reason) == ("failed", error.message)
        assert (well.state, well.reason) == ("flowing", "")
        assert world.gateways.seqs("gateway-1", 0) == [1, 2, 3]

    run_virtual(scenario())


@on_virtual_time
async def test_it_goes_on_by_itself_where_it_was_once_it_can_be_read() -> None:
    world = await reading()
    world.log.damaged[world.refs[0]] = DAMAGED
    world.append(4)
    await settle_down(600)
    assert reports(world)[0].state == "failed"
    del world.log.damaged[world.refs[0]]
    await settle_down(40)
    assert world.gateways.seqs("gateway-1", 0) == [1, 2, 3, 4, 5, 6, 7]
    assert (reports(world)[0].state, reports(world)[0].reason) == ("flowing", "")
    assert world.position() == 7
    assert world.tally() == Tally(acknowledged=7)
    world.append(1)
    await settle_down()
    assert world.gateways.seqs("gateway-1", 0)[-1] == 8, "it doesn't wait any more"


@on_virtual_time
async def test_it_is_tried_less_and_less_often() -> None:
    world = await reading(partitions=1)
    world.log.damaged[world.refs[0]] = DAMAGED
    before = world.log.reads
    await settle_down(600)
    assert 15 < world.log.reads - before < 40


@on_virtual_time
async def test_one_that_never_could_be_read_stops_no_other_either() -> None:
    world = LaneWorld(partitions=3)
    world.log.damaged[world.refs[1]] = DAMAGED
    for partition in range(3):
        world.append(3, partition=partition)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(10)
    assert [one.state for one in reports(world)] == ["flowing", "failed", "flowing"]
    assert [world.position(partition) for partition in range(3)] == [3, 0, 3]


@on_virtual_time
async def test_a_lane_whose_log_is_away_goes_on_when_it_is_back() -> None:
    world = await reading()
    world.log.failing = StorageFailed("the server is away")
    world.append(2, partition=1)
    await settle_down(60)
    assert [one.state for one in reports(world)] == ["failed", "failed"]
    world.log.failing = None
    await settle_down(40)
    assert [one.state for one in reports(world)] == ["flowing", "flowing"]
    assert world.gateways.seqs("gateway-1", 1) == [1, 2, 3, 4, 5]


@on_virtual_time
async def test_what_is_too_much_for_one_read_is_read_by_and_by() -> None:
    world = LaneWorld()
    world.log.at_a_time = 20
    world.append(2_000)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(300)
    assert world.gateways.seqs("gateway-1") == list(range(1, 2_001))
    assert reports(world)[0].state == "flowing"


@on_virtual_time
async def test_one_that_is_stopped_while_it_cannot_be_read_stays_stopped() -> None:
    world = await reading(partitions=1)
    world.log.damaged[world.refs[0]] = DAMAGED
    await settle_down(3)
    assert reports(world)[0].reason == DAMAGED.message
    world.lane.holding.partitions[world.refs[0]].stop("for a reason")
    world.lane.holding.partitions[world.refs[0]].stop("for another")
    del world.log.damaged[world.refs[0]]
    world.append(1)
    await settle_down(40)
    assert (reports(world)[0].state, reports(world)[0].reason) == ("failed", "for a reason")
    assert world.gateways.seqs("gateway-1", 0) == [1, 2, 3]


@on_virtual_time
async def test_the_lag_of_the_others_is_known() -> None:
    """Of the last one nothing more is read, and it is asked how long that waits."""
    world = await reading(partitions=3)
    world.log.damaged[world.refs[0]] = DAMAGED
    world.lane.holding.partitions[world.refs[2]].stop("for a reason")
    world.append(1, partition=2)
    await settle_down(10)
    assert reports(world)[2].oldest_unsettled_ms == world.log.records[world.refs[2]][-1].time_ms
