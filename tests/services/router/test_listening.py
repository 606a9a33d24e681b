"""What the coordinator says, and what the router answers and notes."""

from __future__ import annotations

import asyncio

import structlog

from headgate.errors import StorageFailed
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.notes import RouterMemory
from headgate.model.topology import Topology
from headgate.telemetry import LogLine
from tests.services.router.stage import (
    MINE,
    Stage,
    assigns_mine,
    on_virtual_time,
    ready,
)


@on_virtual_time
async def test_a_topology_is_acknowledged_and_an_older_one_is_not_taken() -> None:
    async with ready() as stage:
        for generation in (7, 5):
            stage.coordinator.push(Topology(generation))
            await stage.coordinator.heard(to_coordinator.AckTopology(generation))
        stage.leave()
        hello = stage.coordinator.session.connect()
        assert (hello.generation, hello.assignment, hello.owns) == (7, 4, (MINE,))


@on_virtual_time
async def test_a_coordinator_that_learns_is_told_the_topology() -> None:
    def learns(stage: Stage) -> None:
        assigns_mine(stage)
        stage.coordinator.push(Topology(7))
        stage.coordinator.say(
            from_coordinator.Welcome("coordinator-2", 30_000, 5_000, learning=True)
        )

    async with ready(learns) as stage:
        assert to_coordinator.Recall(Topology(7)) in stage.coordinator.sent


@on_virtual_time
async def test_notes_that_can_not_be_written_hold_nobody_up() -> None:
    def fails(stage: Stage) -> None:
        stage.notes.failing = StorageFailed("the disk is full")
        assigns_mine(stage)

    with structlog.testing.capture_logs() as logs:
        async with ready(fails) as stage:
            stage.lanes[0].returns()
            assert (await stage.opened(2)).spec.window == 2
    failed = [one["error"] for one in logs if one["event"] == LogLine.NOTES_FAILED]
    assert failed == ["the disk is full"] * 3, "an assignment and two windows"


@on_virtual_time
async def test_a_number_that_another_router_of_its_name_gave_out_is_passed_over() -> None:
    async with ready() as stage:
        stage.notes.memory = RouterMemory(7)
        stage.lanes[0].returns()
        assert (await stage.opened(2)).spec.window == 8
        assert stage.said[-1] == "ready 8"


@on_virtual_time
async def test_no_window_is_planned_for_a_router_that_was_stopped_meanwhile() -> None:
    async with ready() as stage:
        stage.notes.gate = asyncio.Event()
        asking = asyncio.ensure_future(stage.router.next_plan())
        await asyncio.sleep(1.0)
        stopping = asyncio.ensure_future(stage.router.stop())
        await asyncio.sleep(1.0)
        stage.notes.gate.set()
        assert await asking is None
        stage.lanes[0].returns()
        await stopping


@on_virtual_time
async def test_what_is_assigned_while_it_stops_gets_no_window() -> None:
    """The last window is still to end when something is assigned."""
    async with ready() as stage:
        stopping = asyncio.ensure_future(stage.router.stop())
        await asyncio.sleep(1.0)
        numbered = stage.notes.memory.window
        stage.lanes[0].returns()
        stage.coordinator.say(from_coordinator.Assign(5, (MINE,)))
        await stopping
        assert len(stage.lanes) == 1
        assert stage.notes.memory.window == numbered
