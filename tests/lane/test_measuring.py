"""What a lane measures of itself, as the coordinator gets it."""

from __future__ import annotations

from unittest.mock import patch

from headgate.errors import NotNow, StorageFailed
from headgate.model.control.reports import LATENCY_BUCKETS_S, LaneReport, Latencies
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down


def last_report(world: LaneWorld) -> LaneReport:
    return [message for message in world.sent if isinstance(message, LaneReport)][-1]


def number(latencies: Latencies) -> int:
    return sum(latencies.counts)


def at_most(latencies: Latencies, bound_s: float) -> int:
    return sum(latencies.counts[: LATENCY_BUCKETS_S.index(bound_s) + 1])


@on_virtual_time
async def test_every_acknowledged_record_has_its_age_and_every_batch_its_round_trip() -> None:
    world = LaneWorld(batch_max_size=10)
    world.gateways.delays_s["gateway-1"] = 0.2
    world.start()
    await world.subscribed(everything("all"))
    world.append(20)
    await settle_down(3)
    report = last_report(world)
    assert number(report.routing) == report.delivered == 20
    [link] = report.links
    assert number(link.round_trips) == link.sent == len(world.gateways.batches)
    assert at_most(link.round_trips, 0.1) == 0
    assert at_most(link.round_trips, 0.25) == link.sent
    await world.ended()


@on_virtual_time
async def test_the_age_is_that_of_the_record() -> None:
    world = LaneWorld()
    world.start()
    await world.subscribed(everything("all"))
    world.log.append({"n": 1}, time_ms=world.machine.wall_ms() - 20_000)
    await settle_down(1)
    routing = last_report(world).routing
    assert (at_most(routing, 10.0), at_most(routing, 30.0)) == (0, 1)
    await world.ended()


@on_virtual_time
async def test_failed_round_trips_are_failures_and_no_latencies() -> None:
    world = LaneWorld()
    world.gateways.scripts["gateway-1"] = [NotNow("busy"), NotNow("busy")]
    world.start()
    await world.subscribed(everything("all"))
    world.append(1)
    await settle_down(3)
    [link] = last_report(world).links
    assert (link.failures, link.retries, number(link.round_trips)) == (2, 2, 1)
    await world.ended()


@on_virtual_time
async def test_saves_are_counted_and_failures_said_until_one_works() -> None:
    world = LaneWorld(checkpoint_interval_s=1.0)
    world.start()
    await world.subscribed(everything("all"))
    world.checkpoints.failing = StorageFailed("the disk is full")
    world.append(1)
    await settle_down(2.5)
    report = last_report(world)
    assert (report.checkpoints, report.checkpoints_saved) == ("the disk is full", 0)
    assert report.checkpoint_errors >= 2
    assert number(report.saving) == 0
    world.checkpoints.failing = None
    await settle_down(2)
    report = last_report(world)
    assert (report.checkpoints, report.checkpoints_saved, number(report.saving)) == ("", 1, 1)
    await world.ended()


@on_virtual_time
async def test_a_position_that_has_not_moved_is_no_save() -> None:
    world = LaneWorld(checkpoint_interval_s=1.0)
    world.start()
    await world.subscribed(everything("all"))
    world.append(3)
    await settle_down(10)
    assert last_report(world).checkpoints_saved == 1
    await world.ended()


@on_virtual_time
async def test_pressure_is_counted_when_it_rises() -> None:
    world = LaneWorld(queue_size=10, batch_max_size=1)
    world.gateways.hanging.add("gateway-1")
    world.start()
    await world.subscribed(everything("all"))
    world.append(8)
    await settle_down(1)
    [link] = last_report(world).links
    assert (link.pressure, link.soft, link.hard) == ("soft", 1, 0)
    await world.ended()


@on_virtual_time
async def test_a_record_that_was_never_read_has_an_age_too() -> None:
    """Too much is unsettled, so nothing more is read, of either partition."""
    world = LaneWorld(partitions=2, read_limit=500)
    world.start()
    await world.subscribed(everything("all"))
    world.gateways.scripts["gateway-1"] = [NotNow("down")] * 1_000
    world.letters.failing = StorageFailed("the disk is full")
    world.append(3_000)
    with patch("headgate.lane.delivery.pipelines.REMEMBERED", 1_000):
        await settle_down(20)
        world.append(3, partition=1)
        await settle_down(5)
    stuck, unread = last_report(world).partitions
    assert stuck.oldest_unsettled_ms == world.log.records[world.refs[0]][0].time_ms
    assert unread.head == 0, "how far it was read"
    assert unread.oldest_unsettled_ms == world.log.records[world.refs[1]][0].time_ms
    world.letters.failing = None
    world.gateways.scripts.clear()
    await settle_down(60)
    assert [one.oldest_unsettled_ms for one in last_report(world).partitions] == [0, 0]


@on_virtual_time
async def test_of_what_it_has_yet_to_claim_a_lane_says_nothing() -> None:
    """Its predecessor does, or the coordinator looks into the log itself."""
    world = LaneWorld()
    world.append(3)
    world.start()
    await settle_down(5)
    assert last_report(world).partitions == ()
    world.gateways.hanging.add("gateway-1")
    await world.subscribed(everything("all"))
    await settle_down(1)
    [partition] = last_report(world).partitions
    assert partition.oldest_unsettled_ms == world.log.records[world.refs[0]][0].time_ms
