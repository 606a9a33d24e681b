"""A router goes on with what it noted while nobody tells it what to read."""

from __future__ import annotations

import asyncio

import structlog

from headgate.model.control import from_coordinator
from headgate.model.notes import RouterMemory
from headgate.model.topology import Owner, Topology
from headgate.services.router.plans import NO_WINDOW, NOTHING_NOTED
from headgate.telemetry import LogLine
from tests.services.router.stage import (
    MINE,
    P,
    Q,
    assigns,
    is_away,
    on_virtual_time,
    says_nothing,
    starting,
    until,
)

NOTED = RouterMemory(7, from_coordinator.Assign(3, (Owner(P, "router-1", 4),)), Topology(9))
WAITS = ("nobody", NOTHING_NOTED)


@on_virtual_time
async def test_it_reads_what_it_did_before_under_the_next_number() -> None:
    with structlog.testing.capture_logs() as logs:
        async with starting(is_away, noted=NOTED) as stage:
            lane = await stage.opened()
    assert (lane.spec.window, lane.spec.owns) == (8, NOTED.assignment.sources)
    [said] = [one for one in logs if one["event"] == LogLine.GOES_ON_ALONE]
    assert (said["window"], said["sources"]) == (7, 1)


@on_virtual_time
async def test_it_does_so_too_when_it_was_welcomed_and_left() -> None:
    async with starting(says_nothing, noted=NOTED) as stage:
        await until(lambda: "ready 8" in stage.said)
        assert stage.lanes == [], "an empty window has warmed it up"
        assert stage.notes.memory.assignment == NOTED.assignment, "nobody has said otherwise"
        is_away(stage)
        keeping = asyncio.ensure_future(stage.router.failed())
        assert (await stage.opened()).spec.owns == NOTED.assignment.sources
        keeping.cancel()


@on_virtual_time
async def test_it_says_that_it_has_noted_nothing() -> None:
    with structlog.testing.capture_logs() as logs:
        async with starting(is_away) as stage:
            await until(lambda: LogLine.WAITS_FOR_COORDINATOR in [one["event"] for one in logs])
            assert await stage.reasons(*WAITS) == [NOTHING_NOTED]
            stage.coordinator.connect()
            stage.coordinator.say(from_coordinator.Assign(1, ()))


@on_virtual_time
async def test_what_it_is_assigned_is_noted_before_a_window_knows_of_it() -> None:
    other = Owner(Q, "router-1", 2)
    async with starting(assigns(MINE)) as stage:
        await stage.opened()
        stage.coordinator.say(from_coordinator.Assign(5, (MINE, other)))
        await until(lambda: stage.notes.memory.assignment.sources == (MINE, other))
        assert await stage.reasons(*WAITS) == []
        is_away(stage)
        assert await stage.reasons(*WAITS) == [f"nobody reads {Q}: {NO_WINDOW}"]
