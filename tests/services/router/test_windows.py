"""One window after the other: what is planned, what is reported, and what happens when one doesn't
end."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import structlog
from msgspec.structs import replace

from headgate.decide.lane.window_shares import Patience
from headgate.metrics.roles import RouterMetrics
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.reports import RouterReport
from headgate.model.lanes import LaneSettings
from headgate.model.topology import Owner
from headgate.ports.windows import WindowsDied
from headgate.services.router import current
from headgate.telemetry import LogLine
from tests.services.router.stage import (
    LANE,
    MINE,
    NOTHING,
    Q,
    Stage,
    assigns,
    is_away,
    on_virtual_time,
    ready,
    starting,
)

OTHER = Owner(Q, "router-1", 2)


@on_virtual_time
async def test_the_next_window_has_what_was_assigned_meanwhile() -> None:
    async with ready() as stage:
        [lane] = stage.lanes
        stage.coordinator.say(from_coordinator.Assign(5, (MINE, OTHER)))
        await asyncio.sleep(1.0)
        assert stage.lanes == [lane], "nobody has ended the window"
        lane.returns()
        await stage.opened(3)
        assert [(one.spec.window, one.spec.owns) for one in stage.lanes[1:]] == [
            (2, (MINE,)),
            (2, (OTHER,)),
        ]
        assert lane.lives, "until it is overtaken"
        assert stage.said == ["starting 0", "starting 1", "ready 1", "ready 2"]


@on_virtual_time
async def test_a_window_ends_with_the_last_of_its_tallies() -> None:
    with structlog.testing.capture_logs() as logs:
        async with ready(assigns(MINE, OTHER)) as stage:
            one, other = stage.lanes
            one.returns()
            await asyncio.sleep(1.0)
            assert len(stage.lanes) == 2
            other.returns()
            await stage.opened(4)
    ended = [(entry["window"], entry["lane"]) for entry in logs if entry["event"] == "lane_ended"]
    assert ended == [(1, 0), (1, 1)]


@on_virtual_time
async def test_how_long_a_change_took_is_reported() -> None:
    async with ready() as stage:
        for count in (1, 2):
            await asyncio.sleep(5.0)
            stage.lanes[-1].returns(began_late_s=0.25)
            await stage.opened(count + 1)
        await stage.coordinator.heard(RouterReport("ready", 3, 250.0))
        metrics = await stage.lookout.get("/metrics")
        assert b"headgate_windows_ended_total 2.0" in metrics
        assert b"headgate_window_change_seconds_sum 0.25" in metrics


@on_virtual_time
async def test_without_anything_to_read_workers_are_kept_warm() -> None:
    async with starting(assigns()) as stage:
        await asyncio.sleep(2.5 * (current.WARM_EVERY_S + 2.0))
        assert stage.said[-1] == "ready 3"
        assert stage.lanes == []
        stage.coordinator.say(from_coordinator.Assign(5, (MINE,)))
        await asyncio.sleep(0.1)
        assert [lane.spec.window for lane in stage.lanes] == [4]


@on_virtual_time
async def test_what_fails_is_begun_again_and_said() -> None:
    with structlog.testing.capture_logs() as logs:
        async with ready() as stage:
            keeping = asyncio.ensure_future(stage.router.failed())
            for number in range(1, 5):
                (await stage.opened(number)).fails("a lane died")
            await stage.opened(5)
            assert [lane.spec.attempt for lane in stage.lanes] == [0, 1, 2, 3, 0]
            said = "its query failed and was started again: a lane died"
            assert await stage.reasons("query") == [said]
            stage.lanes[-1].returns()
            await stage.opened(6)
            assert await stage.reasons("query") == []
            assert b"headgate_query_restarts_total 1.0" in await stage.lookout.get("/metrics")
            keeping.cancel()
    [failed] = [one for one in logs if one["event"] == LogLine.QUERY_FAILED]
    assert (failed["restarts"], failed["error"]) == (1, "a lane died")


@on_virtual_time
async def test_a_window_that_does_not_end_is_overdue_and_begun_again() -> None:
    async with ready() as stage:
        [lane] = stage.lanes
        stage.coordinator.say(from_coordinator.EndWindow("a topic was added"))
        await asyncio.sleep(10.5)
        assert await stage.reasons("ended") == [
            "its window should have ended; a lane doesn't return"
        ]
        keeping = asyncio.ensure_future(stage.router.failed())
        await stage.opened(2)
        assert not lane.lives
        assert await stage.reasons("query") == [
            "its query failed and was started again: a lane did not return"
        ]
        keeping.cancel()


@on_virtual_time
async def test_the_end_of_a_former_window_is_not_that_of_the_open_one() -> None:
    """Lanes go on after their tallies; the next window may be slow to start meanwhile."""
    async with ready() as stage:
        keeping = asyncio.ensure_future(stage.router.failed())
        stage.lanes[0].returns()
        healthy = await stage.opened(2)
        stage.coordinator.say(from_coordinator.EndWindow("no lane reads flights:1", window=1))
        await asyncio.sleep(30.0)
        assert await stage.reasons("ended", "query") == []
        assert len(stage.lanes) == 2
        stage.coordinator.say(from_coordinator.EndWindow("a topic was added", window=2))
        await stage.opened(3)
        assert not healthy.lives, "it did not return"
        keeping.cancel()


def test_an_older_coordinator_means_whichever_window_is_open() -> None:
    said = msgspec.msgpack.encode({"type": "EndWindow", "reason": "time", "hand_over": True})
    heard = msgspec.msgpack.decode(said, type=from_coordinator.FromCoordinator)
    assert heard == from_coordinator.EndWindow("time", window=0)


@on_virtual_time
async def test_nothing_is_overdue_while_the_coordinator_is_away() -> None:
    async with ready() as stage:
        keeping = asyncio.ensure_future(stage.router.failed())
        await asyncio.sleep(1.0)
        stage.leave()
        await asyncio.sleep(10 * LANE.window_s)
        assert len(stage.lanes) == 1
        stage.coordinator.connect()
        await asyncio.sleep(59.0)
        assert len(stage.lanes) == 1
        await stage.opened(2)
        keeping.cancel()


@on_virtual_time
async def test_only_failures_without_a_window_in_between_count() -> None:
    """A router that has run for months has met more of them than it takes in a row."""
    most = current.QUERY_RESTARTS_MAX
    async with ready() as stage:
        keeping = asyncio.ensure_future(stage.router.failed())
        opened = 0

        async def fail() -> None:
            nonlocal opened
            for _ in range(4):
                opened += 1
                (await stage.opened(opened)).fails()

        for _ in range(most):
            await fail()
        opened += 1
        (await stage.opened(opened)).returns()
        for _ in range(most):
            await fail()
            assert not keeping.done()
        await fail()
        with pytest.raises(WindowsDied, match=f"the query failed {most + 1} times within 10 min"):
            await keeping


def test_a_query_that_fails_now_and_then_ends_no_router() -> None:
    """As where a store is away for hours: each window fails when its patience is over."""
    most, within_s = current.QUERY_RESTARTS_MAX, current.QUERY_RESTARTS_WITHIN_S
    window = current.CurrentWindow(RouterMetrics(), length_s=120.0, patience=Patience())
    for number in range(10 * most):
        window.failed("a lane did not return", now_s=number * (within_s / most + 1))
    now_s = 10 * most * (within_s / most + 1) + within_s
    for _ in range(most):
        window.failed("a lane died", now_s=now_s)
    with pytest.raises(WindowsDied, match="within 10 minutes: a lane died"):
        window.failed("a lane died", now_s=now_s)


@on_virtual_time
async def test_a_router_with_nothing_left_to_run_windows_on_ends() -> None:
    async with ready() as stage:
        keeping = asyncio.ensure_future(stage.router.failed())
        await stage.windows.die()
        with pytest.raises(WindowsDied, match="must be started again"):
            await asyncio.wait_for(keeping, 1.0)
        began_s = asyncio.get_running_loop().time()
        await stage.router.stop()
        assert asyncio.get_running_loop().time() - began_s < 1.0, "nobody returns tallies"


# --- refused -------------------------------------------------------------------------------------


async def refused(stage: Stage, count: int) -> list[float]:
    """The lanes of so many windows are refused as they start; returns how long each of the next
    ones took to come."""
    clock = asyncio.get_running_loop().time
    gaps_s: list[float] = []
    for opened in range(len(stage.lanes), len(stage.lanes) + count):
        stage.lanes[-1].returns("nothing of it is this lane's", fenced=True)
        began_s = clock()
        await stage.opened(opened + 1)
        gaps_s.append(round(clock() - began_s, 1))
    return gaps_s


@on_virtual_time
async def test_windows_whose_lanes_are_refused_are_planned_ever_more_slowly() -> None:
    """The assignment is out of date, and the next one is held back. It may be right after all, so
    that it is tried again."""
    async with ready() as stage:
        assert await refused(stage, 8) == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


@on_virtual_time
async def test_another_assignment_is_planned_at_once_after_refused_windows() -> None:
    async with ready() as stage:
        await refused(stage, 10)
        stage.lanes[-1].returns(fenced=True)
        await asyncio.sleep(0.5)
        assert len(stage.lanes) == 11
        stage.coordinator.say(from_coordinator.Assign(5, (MINE,)))
        await asyncio.sleep(0.05)
        assert [lane.spec.assignment for lane in stage.lanes[-2:]] == [4, 5]
        assert await refused(stage, 1) == [0.1], "of that one nothing is known"


@on_virtual_time
async def test_a_window_with_a_lane_that_read_is_followed_by_the_next_at_once() -> None:
    async with ready(assigns(MINE, OTHER)) as stage:
        for count in (4, 6, 8):
            one, other = stage.lanes[-2:]
            one.returns(fenced=True)
            other.returns()
            await asyncio.sleep(0.05)
            assert len(stage.lanes) == count


# --- stopping ------------------------------------------------------------------------------------


@on_virtual_time
async def test_a_stop_waits_for_the_tallies_of_the_window() -> None:
    async with ready() as stage:
        [lane] = stage.lanes
        stopping = asyncio.ensure_future(stage.router.stop())
        await stage.coordinator.heard(to_coordinator.EndMyWindow(1, "the router stops"))
        assert (await stage.health()).status == "unhealthy"
        await asyncio.sleep(5.0)
        assert lane.lives
        assert to_coordinator.Goodbye() not in stage.coordinator.sent
        lane.returns("the router stops")
        await asyncio.wait_for(stopping, 1.0)
        assert stage.coordinator.sent[-2:] == [
            RouterReport("stopping", 1, 0.0),
            to_coordinator.Goodbye(),
        ]
        assert len(stage.lanes) == 1, "no window is planned any more"


@on_virtual_time
async def test_a_router_that_is_to_begin_anew_ends_its_window_and_says_that_it_returns() -> None:
    async with ready() as stage:
        stage.coordinator.say(from_coordinator.Restart())
        await asyncio.wait_for(stage.router.failed(), 1.0)
        assert stage.router.is_to_restart
        stopping = asyncio.ensure_future(stage.router.stop(returns=True))
        await stage.coordinator.heard(to_coordinator.EndMyWindow(1, "the router stops"))
        stage.lanes[0].returns("the router stops")
        await asyncio.wait_for(stopping, 1.0)
        assert stage.coordinator.sent[-1] == to_coordinator.Goodbye(returns=True)


@on_virtual_time
async def test_two_who_stop_a_router_at_once_both_wait_for_its_end() -> None:
    async with ready() as stage:
        [lane] = stage.lanes
        stopping = [asyncio.ensure_future(stage.router.stop()) for _ in range(2)]
        await asyncio.sleep(5.0)
        assert not any(one.done() for one in stopping)
        lane.returns("the router stops")
        await asyncio.wait_for(asyncio.gather(*stopping), 1.0)


@on_virtual_time
async def test_a_stop_asks_again_when_the_coordinator_is_back() -> None:
    async with ready() as stage:
        stage.leave()
        stopping = asyncio.ensure_future(stage.router.stop())
        await asyncio.sleep(1.0)
        stage.coordinator.connect()
        await stage.coordinator.heard(to_coordinator.EndMyWindow(1, "the router stops"))
        stage.lanes[0].returns()
        await stopping


@on_virtual_time
async def test_a_stop_waits_no_longer_than_lanes_are_given() -> None:
    settings: LaneSettings = replace(LANE, flush_timeout_s=3.0, checkpoint_timeout_s=2.0)
    async with ready(settings=settings) as stage:
        began_s = asyncio.get_running_loop().time()
        await stage.router.stop()
        assert 5.0 <= asyncio.get_running_loop().time() - began_s < 6.0
        assert not stage.lanes[0].lives


@on_virtual_time
async def test_a_router_that_waits_for_the_coordinator_can_be_stopped() -> None:
    stage = Stage(is_away, NOTHING, LANE)
    start = asyncio.ensure_future(stage.router.start())
    await asyncio.sleep(20.0)
    start.cancel()
    await stage.router.stop()
    await stage.router.stop()
    assert (stage.lanes, stage.said) == ([], [])
