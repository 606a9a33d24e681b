"""Records that will not come: every gateway hears of it in their place."""

from __future__ import annotations

from headgate.errors import NotNow
from headgate.model import control
from headgate.model.position import Position, Tally
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down


def partition(world: LaneWorld) -> control.PartitionReport:
    reports = [message for message in world.sent if isinstance(message, control.LaneReport)]
    return reports[-1].partitions[0]


def told(world: LaneWorld, gateway_id: str) -> list[tuple[int, int]]:
    """What came, in order: records as (0, seq), gaps as (first lost, last lost)."""
    return [(one.lost_from, one.seq) for one in world.gateways.accepted.get(gateway_id, [])]


async def with_a_hole(world: LaneWorld) -> None:
    """Two records, three that retention took, one more."""
    world.append(6)
    world.log.holes = {(world.refs[0], seq) for seq in (3, 4, 5)}
    world.start()
    await world.subscribed(everything("s1"))


@on_virtual_time
async def test_every_gateway_hears_of_a_gap_between_the_records_around_it() -> None:
    world = LaneWorld()
    await with_a_hole(world)
    await settle_down(6)
    assert told(world, "gateway-1") == [(0, 1), (0, 2), (3, 5), (0, 6)]
    assert told(world, "gateway-2") == [(3, 5)]
    assert partition(world).state == "flowing"
    assert world.position() == 6
    assert world.tally() == Tally(acknowledged=3, skipped=3)


@on_virtual_time
async def test_the_partition_is_stale_and_nothing_is_settled_until_all_have_heard_of_it() -> None:
    world = LaneWorld(gap_max_s=0.0, retry_max_attempts=50, breaker_threshold=50)
    world.gateways.scripts["gateway-2"] = [NotNow("down")] * 8
    await with_a_hole(world)
    await settle_down(6)
    report = partition(world)
    assert report.state == "stale"
    assert "records 3 to 5 are no longer in the log" in report.reason
    assert world.position() == 2
    await settle_down(60)
    assert partition(world).state == "flowing"
    assert world.position() == 6


@on_virtual_time
async def test_a_gap_that_is_parked_comes_before_what_is_newer() -> None:
    world = LaneWorld(redrive_every_s=5.0)
    world.gateways.scripts["gateway-1"] = [NotNow("down")] * 3
    await with_a_hole(world)
    await settle_down(2)
    assert len(world.letters.of("parked")) == 4
    await settle_down(10)
    assert told(world, "gateway-1") == [(0, 1), (0, 2), (3, 5), (0, 6)]


@on_virtual_time
async def test_a_gap_at_the_very_beginning_is_said_too() -> None:
    world = LaneWorld()
    world.append(3)
    world.log.earliest[world.refs[0]] = 3
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)
    assert told(world, "gateway-1") == [(1, 2), (0, 3)]


@on_virtual_time
async def test_what_an_operator_skips_is_said_before_anything_is_read() -> None:
    world = LaneWorld()
    world.checkpoints.claimed = Position(0, skip_to=4)
    world.append(6)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)
    assert told(world, "gateway-1") == [(1, 4), (0, 5), (0, 6)]
    assert world.tally() == Tally(acknowledged=2, skipped=4)


@on_virtual_time
async def test_what_an_operator_wants_again_is_marked() -> None:
    world = LaneWorld()
    world.checkpoints.claimed = Position(1, redeliver_to=3)
    world.append(4)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down()
    got = world.gateways.accepted["gateway-1"]
    assert [(one.seq, one.redelivery) for one in got] == [(2, True), (3, True), (4, False)]


@on_virtual_time
async def test_where_gaps_are_not_looked_for_they_are_counted_and_passed() -> None:
    world = LaneWorld(gap_enabled=False)
    await with_a_hole(world)
    await settle_down(6)
    assert told(world, "gateway-1") == [(0, 1), (0, 2), (0, 6)]
    assert world.tally() == Tally(acknowledged=3, skipped=3)
