"""Records that will not come: every gateway hears of it in their place."""

from __future__ import annotations

import pytest

from headgate.decide.delivery.lost_logs import next_head
from headgate.errors import NotNow
from headgate.model.control.reports import LaneReport, PartitionReport
from headgate.model.position import Position, Tally
from headgate.model.subscription import Subscription
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down
from tests.virtual_time import run_virtual


def partition(world: LaneWorld) -> PartitionReport:
    reports = [message for message in world.sent if isinstance(message, LaneReport)]
    return reports[-1].partitions[0]


def told(world: LaneWorld, gateway_id: str) -> list[tuple[int, int]]:
    """What came, in order: records as (0, seq), gaps as (first lost, last lost)."""
    return [(one.lost_from, one.seq) for one in world.gateways.accepted.get(gateway_id, [])]


async def with_a_hole(world: LaneWorld) -> None:
    """Two records, three that retention took, one more."""
    world.append(6)
    world.log.lose(world.refs[0], (3, 4, 5))
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
    world.log.keep_from(world.refs[0], 3)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)
    assert told(world, "gateway-1") == [(1, 2), (0, 3)]


@on_virtual_time
async def test_what_an_operator_skips_is_said_before_anything_is_read() -> None:
    world = LaneWorld()
    world.checkpoints.put(world.refs[0], Position(0, skip_to=4))
    world.append(6)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)
    assert told(world, "gateway-1") == [(1, 4), (0, 5), (0, 6)]
    assert world.tally() == Tally(acknowledged=2, skipped=4)


@on_virtual_time
async def test_what_an_operator_wants_again_is_marked() -> None:
    world = LaneWorld()
    world.checkpoints.put(world.refs[0], Position(1, redeliver_to=3))
    world.append(4)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down()
    got = world.gateways.accepted["gateway-1"]
    assert [(one.seq, one.redelivery) for one in got] == [(2, True), (3, True), (4, False)]


@pytest.mark.parametrize("is_alone", [True, False])
def test_to_groups_it_is_the_record_that_their_positions_bring_again(*, is_alone: bool) -> None:
    """Beside others at their gateway it is marked for those."""

    async def scenario() -> None:
        world = LaneWorld()
        world.checkpoints.put(world.refs[0], Position(1, redeliver_to=3))
        world.append(4)
        world.start()
        targets = [
            Subscription(f"t{number}", "gateway-1", world.refs[0].topic, shard=(2, number))
            for number in range(2)
        ]
        await world.subscribed(*targets, *([] if is_alone else [everything("s1")]))
        await settle_down()
        got = world.gateways.accepted["gateway-1"]
        marked = not is_alone
        assert [(one.seq, one.redelivery) for one in got] == [(2, marked), (3, marked), (4, False)]
        assert {one.in_turn for one in got[:2]} == {marked}

    run_virtual(scenario())


@on_virtual_time
async def test_where_gaps_are_not_looked_for_they_are_counted_and_passed() -> None:
    world = LaneWorld(gap_enabled=False)
    await with_a_hole(world)
    await settle_down(6)
    assert told(world, "gateway-1") == [(0, 1), (0, 2), (0, 6)]
    assert world.tally() == Tally(acknowledged=3, skipped=3)


@on_virtual_time
async def test_records_that_are_gone_at_the_end_of_the_log_are_said_without_a_newer_one() -> None:
    world = LaneWorld()
    world.append(5)
    world.log.lose(world.refs[0], (4, 5))
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)
    assert told(world, "gateway-1") == [(0, 1), (0, 2), (0, 3), (4, 5)]
    assert (world.position(), world.tally()) == (5, Tally(acknowledged=3, skipped=2))


# --- a log whose history is lost -----------------------------------------------------------------


async def with_lost_history(world: LaneWorld, *, settled: int = 10, records: int = 2) -> None:
    """A log of a few records, whose readers have settled more than that."""
    world.append(records)
    world.checkpoints.put(world.refs[0], Position(settled, Tally(acknowledged=settled)))
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(2)


@on_virtual_time
async def test_a_log_that_ends_before_its_position_makes_the_partition_stale() -> None:
    world = LaneWorld()
    await with_lost_history(world)
    report = partition(world)
    assert report.state == "stale"
    assert "the log of flights:0 ends at 2" in report.reason
    assert "headgate partition reset flights:0 --to earliest" in report.reason
    assert told(world, "gateway-1") == []


@on_virtual_time
async def test_a_log_that_is_moved_on_flows_again_when_all_have_heard_of_it() -> None:
    world = LaneWorld(gap_max_s=1e9)
    world.gateways.delays_s["gateway-2"] = 3.0
    await with_lost_history(world)
    head = next_head(10)
    world.log.move_on(world.refs[0], head)
    await settle_down(2)
    assert partition(world).state == "stale", "a gap like this is never a small one"
    assert told(world, "gateway-1") == [(11, head)], "nobody waits for a newer record"
    world.append(1)
    await settle_down(8)
    assert told(world, "gateway-1") == [(11, head), (0, head + 1)]
    assert told(world, "gateway-2") == [(11, head)]
    assert partition(world).state == "flowing"
    assert world.position() == head + 1 == world.tally().total
    assert world.tally() == Tally(acknowledged=11, skipped=head - 10)


@on_virtual_time
async def test_records_that_nobody_moved_behind_the_position_are_not_passed_over() -> None:
    world = LaneWorld()
    await with_lost_history(world)
    world.append(8)
    await settle_down(2)
    assert partition(world).state == "stale", "it is where it was, but it isn't what it was"
    world.append(3)
    await settle_down(2)
    assert partition(world).state == "failed"
    assert "headgate partition reset flights:0 --to earliest" in partition(world).reason
    assert told(world, "gateway-1") == []
    assert world.position() == 10


@on_virtual_time
async def test_history_that_is_lost_under_a_lane_is_noticed_and_never_small() -> None:
    world = LaneWorld(gap_max_s=1e9)
    world.gateways.delays_s["gateway-2"] = 3.0
    world.append(5)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)
    assert partition(world).state == "flowing"
    world.log.lose_history(world.refs[0])
    await settle_down(6)
    assert partition(world).state == "stale"
    assert "ends at 0, but it was delivered up to 5" in partition(world).reason
    world.log.move_on(world.refs[0], 100)
    world.append(1)
    await settle_down(2)
    assert told(world, "gateway-1")[5:] == [(6, 100), (0, 101)]
    assert partition(world).state == "stale"
    assert "not every gateway has told its subscribers yet" in partition(world).reason
