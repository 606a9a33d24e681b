"""When a router is ready, and what it says until then."""

from __future__ import annotations

import asyncio

import pytest

from headgate.decide.states import OutOfTurn
from headgate.model.control import from_coordinator
from headgate.services.router import service
from tests.services.router.stage import (
    LANE,
    MINE,
    NOTHING,
    Stage,
    assigns,
    assigns_mine,
    is_away,
    on_virtual_time,
    starting,
    until,
)


@on_virtual_time
async def test_it_is_ready_when_lanes_read_what_is_its_own() -> None:
    async with starting() as stage:
        await stage.opened()
        await asyncio.sleep(service.LANES_WAIT_S / 2)
        assert stage.said == ["starting 0", "starting 1"]
        assert await stage.reasons("starting") == ["Spark is starting"]
        stage.coordinator.say(from_coordinator.AllRead())
        await until(lambda: stage.said[-1] == "ready 1")
        assert (await stage.health()).reasons == [
            "the coordinator hasn't told yet how its partitions fare"
        ]


@on_virtual_time
async def test_lanes_that_read_before_it_has_a_window_are_not_its_own() -> None:
    def hears_of_them(stage: Stage) -> None:
        stage.coordinator.say(from_coordinator.AllRead())
        stage.coordinator.say(from_coordinator.Assign(4, (MINE,)))

    async with starting(hears_of_them) as stage:
        await stage.opened()
        await asyncio.sleep(1.0)
        assert stage.said[-1] == "starting 1"
        stage.coordinator.say(from_coordinator.AllRead())


@on_virtual_time
async def test_it_is_ready_when_nobody_is_there_to_say_so() -> None:
    async with starting() as stage:
        await stage.opened()
        is_away(stage)
        assert await stage.reasons("starting") == ["Spark is starting"]
        await asyncio.sleep(1.0)
        assert await stage.reasons("starting") == []


@on_virtual_time
async def test_it_is_ready_at_once_when_there_is_nothing_to_read() -> None:
    async with starting(assigns()) as stage:
        await until(lambda: stage.said[-1:] == ["ready 1"], timeout_s=1.0)


@on_virtual_time
async def test_it_waits_for_lanes_no_longer_than_a_while() -> None:
    async with starting() as stage:
        await stage.opened()
        await asyncio.sleep(service.LANES_WAIT_S + 1.0)
        assert stage.said[-1] == "ready 1"


@on_virtual_time
async def test_it_is_ready_to_begin_again_when_its_windows_fail() -> None:
    async with starting() as stage:
        for number in range(1, 5):
            (await stage.opened(number)).fails()
        await until(lambda: stage.said[-1] == "ready 1", timeout_s=1.0)


@on_virtual_time
async def test_it_is_so_too_when_they_fail_before_one_has_begun() -> None:
    async with starting() as stage:
        stage.notes.stuck = RuntimeError("a mistake")
        await asyncio.sleep(service.LANES_WAIT_S / 2)
        assert stage.said[-1] == "ready 0"
        stage.notes.stuck = None
        keeping = asyncio.ensure_future(stage.router.failed())
        await stage.opened()
        keeping.cancel()


@on_virtual_time
async def test_a_start_that_goes_on_after_a_stop_is_a_mistake() -> None:
    stage = Stage(assigns_mine, NOTHING, LANE)
    start = asyncio.ensure_future(stage.router.start())
    lane = await stage.opened()
    stopping = asyncio.ensure_future(stage.router.stop())
    await asyncio.sleep(0.1)
    lane.returns("the router stops")
    await stopping
    with pytest.raises(OutOfTurn):
        await start
