"""A log that was lost and has grown past what was read of it, while its lane didn't look."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from headgate.errors import StorageFailed
from headgate.model.control.reports import LaneReport, PartitionReport
from headgate.model.event import Fence
from headgate.model.position import Position, Tally
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down
from tests.virtual_time import run_virtual

AWAY = StorageFailed("reading flights:0 failed: the server is away")
RESET = "headgate partition reset flights:0 --to earliest"


def partition(world: LaneWorld) -> PartitionReport:
    reports = [message for message in world.sent if isinstance(message, LaneReport)]
    return reports[-1].partitions[0]


async def reading(records: int = 5) -> LaneWorld:
    world = LaneWorld()
    world.append(records)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(6)
    assert (world.position(), partition(world).state) == (records, "flowing")
    return world


async def with_reads_that_fail(world: LaneWorld, meanwhile: Callable[[], None]) -> None:
    world.log.damaged[world.refs[0]] = AWAY
    await settle_down(16)
    meanwhile()
    del world.log.damaged[world.refs[0]]
    await settle_down(60)


async def with_one_read_that_fails(world: LaneWorld, meanwhile: Callable[[], None]) -> None:
    world.log.damaged[world.refs[0]] = AWAY
    asked = len(world.log.asked)
    while len(world.log.asked) == asked:
        await settle_down(0.05)
    meanwhile()
    del world.log.damaged[world.refs[0]]
    await settle_down(10)


async def with_a_read_that_hangs(world: LaneWorld, meanwhile: Callable[[], None]) -> None:
    world.log.gate = asyncio.Event()
    await settle_down(10)
    meanwhile()
    world.log.gate.set()
    await settle_down(10)


async def with_no_room(world: LaneWorld, meanwhile: Callable[[], None]) -> None:
    """The lane has so much in hand that it reads nothing more."""
    with patch("headgate.lane.delivery.pipelines.REMEMBERED", 0):
        await settle_down(10)
        meanwhile()
        await settle_down(2)
    await settle_down(10)


Pause = Callable[[LaneWorld, Callable[[], None]], Awaitable[None]]
each_pause = pytest.mark.parametrize(
    "pause",
    [with_reads_that_fail, with_one_read_that_fails, with_a_read_that_hangs, with_no_room],
)


@each_pause
@pytest.mark.parametrize("taken", [5, 6, 30])
def test_what_is_new_is_not_passed_over(pause: Pause, taken: int) -> None:
    async def scenario() -> None:
        world = await reading()

        def lost() -> None:
            world.log.lose_history(world.refs[0])
            world.append(taken, note="new")

        await pause(world, lost)
        world.append(3, note="newer")
        await settle_down(60)
        assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 5]
        assert partition(world).state == "failed"
        assert "record 5 of flights:0 is not the one that was delivered" in partition(world).reason
        assert RESET in partition(world).reason
        assert world.position() == 5

    run_virtual(scenario())


@pytest.mark.parametrize("dies", [False, True])
def test_the_lanes_to_come_stop_there_too_until_it_is_reset(dies: bool) -> None:
    """They have nothing to compare with."""

    async def scenario() -> None:
        world = await reading()

        def lost() -> None:
            world.log.lose_history(world.refs[0])
            world.append(8, note="new")

        await with_reads_that_fail(world, lost)
        await (world.die() if dies else world.ended())
        world = world.successor(window=4)
        world.start()
        await world.subscribed(everything("s1"))
        world.append(3, note="newer")
        await settle_down(60)
        assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 5]
        assert (partition(world).state, world.position()) == ("failed", 5)
        assert RESET in partition(world).reason
        await world.die()
        await world.checkpoints.reset(world.refs[0], Fence(5, 5), 0)
        world = world.successor(window=6)
        world.start()
        await world.subscribed(everything("s1"))
        await settle_down(5)
        assert world.gateways.seqs("gateway-1")[5:] == list(range(1, 12))
        assert partition(world).state == "flowing"

    run_virtual(scenario())


@on_virtual_time
async def test_that_it_is_stopped_is_saved_once_the_store_of_positions_is_back() -> None:
    world = await reading()

    def lost() -> None:
        world.log.lose_history(world.refs[0])
        world.append(8, note="new")

    world.checkpoints.failing = StorageFailed("away")
    await with_reads_that_fail(world, lost)
    assert partition(world).state == "failed"
    world.checkpoints.failing = None
    await settle_down(10)
    assert (await world.checkpoints.list())[world.refs[0]].stopped == partition(world).reason


@on_virtual_time
async def test_a_hole_in_what_is_new_makes_it_no_better() -> None:
    world = await reading()

    def lost() -> None:
        world.log.lose_history(world.refs[0])
        world.append(9, note="new")
        world.log.lose(world.refs[0], (6, 7))

    await with_reads_that_fail(world, lost)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 5]
    assert (partition(world).state, world.position()) == ("failed", 5)


@each_pause
def test_a_log_that_merely_grew_goes_on(pause: Pause) -> None:
    async def scenario() -> None:
        world = await reading()
        await pause(world, lambda: world.append(700))
        assert world.gateways.seqs("gateway-1") == list(range(1, 706))
        assert partition(world).state == "flowing"

    run_virtual(scenario())


@each_pause
def test_a_record_that_retention_took_says_nothing(pause: Pause) -> None:
    async def scenario() -> None:
        world = await reading()

        def expired() -> None:
            world.append(2)
            world.log.keep_from(world.refs[0], 6)

        await pause(world, expired)
        assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 5, 6, 7]
        assert (partition(world).state, world.tally()) == ("flowing", Tally(acknowledged=7))

    run_virtual(scenario())


@on_virtual_time
async def test_a_gap_is_passed_like_any_other() -> None:
    world = await reading()

    def expired() -> None:
        world.append(4)
        world.log.keep_from(world.refs[0], 8)

    await with_reads_that_fail(world, expired)
    assert world.tally() == Tally(acknowledged=7, skipped=2)
    await with_reads_that_fail(world, lambda: world.append(1))
    assert world.tally() == Tally(acknowledged=8, skipped=2)


@on_virtual_time
async def test_a_gap_at_the_end_leaves_nothing_to_compare_with() -> None:
    world = await reading()

    def expired() -> None:
        world.append(2)
        world.log.keep_from(world.refs[0], 8)

    await with_reads_that_fail(world, expired)
    await with_reads_that_fail(world, lambda: world.append(1))
    assert world.tally() == Tally(acknowledged=6, skipped=2)
    assert partition(world).state == "flowing"


@on_virtual_time
async def test_a_lane_that_took_over_knows_where_its_predecessor_was() -> None:
    world = LaneWorld()
    world.append(5)
    world.checkpoints.put(world.refs[0], Position(5, Tally(acknowledged=5)))
    world.start()
    await world.subscribed(everything("s1"))

    def lost() -> None:
        world.log.lose_history(world.refs[0])
        world.append(7, note="new")

    await with_reads_that_fail(world, lost)
    assert world.gateways.seqs("gateway-1") == []
    assert partition(world).state == "failed"


@on_virtual_time
async def test_a_settled_record_that_cannot_be_read_keeps_no_lane_from_reading() -> None:
    world = LaneWorld()
    world.append(7)
    world.log.damaged_seqs[world.refs[0]] = {5}
    world.checkpoints.put(world.refs[0], Position(5, Tally(acknowledged=5)))
    world.start()
    await world.subscribed(everything("s1"))
    assert world.gateways.seqs("gateway-1") == [6, 7]


@pytest.mark.parametrize("every_s", [0.01, 0.9, 1e9])
def test_who_looks_all_the_time_reads_nothing_twice(every_s: float) -> None:
    async def scenario() -> None:
        world = await reading()
        before, until_s = len(world.log.asked), asyncio.get_running_loop().time() + 60
        while (left_s := until_s - asyncio.get_running_loop().time()) > 0:
            await settle_down(min(every_s, left_s))
            world.append(1)
        asked = world.log.asked[before:]
        assert len(asked) > 50
        assert asked == sorted(asked)

    run_virtual(scenario())
