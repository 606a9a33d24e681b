"""Windows without Spark keep what their port promises; lanes outlive their windows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headgate.lane.plain import PlainWindows
from headgate.model.lanes import LaneSpec, LaneTally
from headgate.ports.windows import WindowsDied
from tests.contracts.windows import ERROR, FAILS, Planned, keeps_its_contract, plan, run_lane
from tests.lane.world import on_virtual_time


class Momentary:
    """Implements lane.lives.Living: its tally is there at once; it lives on for `lives_s`."""

    def __init__(self, spec: LaneSpec, lives_s: float = 0.0) -> None:
        self.spec = spec
        self.lives = True
        self._lives_s = lives_s

    async def run(self) -> None:
        try:
            await asyncio.sleep(self._lives_s)
        finally:
            self.lives = False

    async def tally(self) -> LaneTally:
        return run_lane(self.spec)


class Lanes:
    """All that were opened."""

    def __init__(self, lives_s: float = 0.0) -> None:
        self.opened: list[Momentary] = []
        self.closed: list[int] = []
        self._lives_s = lives_s

    def open(self, spec: LaneSpec) -> tuple[Momentary, Callable[[], Awaitable[None]]]:
        async def close() -> None:
            self.closed.append(spec.window)

        self.opened.append(Momentary(spec, self._lives_s))
        return self.opened[-1], close


@on_virtual_time
async def test_plain_windows_keep_the_contract() -> None:
    await keeps_its_contract(PlainWindows(Lanes().open))


@on_virtual_time
async def test_a_lane_goes_on_while_the_next_window_runs() -> None:
    lanes, plans = Lanes(lives_s=30.0), Planned(plan(1), plan(2))
    windows = PlainWindows(lanes.open)
    await windows.begin(plans)
    await asyncio.sleep(1.0)
    assert plans.seen == [1, [(1, 0)], 2, [(2, 0)]]
    assert [lane.lives for lane in lanes.opened] == [True, True]
    await asyncio.sleep(30.0)
    assert lanes.closed == [1, 2]
    await windows.stop()


@on_virtual_time
async def test_what_is_begun_anew_ends_the_lanes_that_were_there() -> None:
    lanes = Lanes(lives_s=30.0)
    windows = PlainWindows(lanes.open)
    await windows.begin(Planned(plan(1)))
    await asyncio.sleep(1.0)
    await windows.begin(Planned(plan(2)))
    await asyncio.sleep(1.0)
    assert [lane.lives for lane in lanes.opened] == [False, True]
    await windows.stop()
    assert lanes.closed == [1, 2]


@on_virtual_time
async def test_a_lane_that_fails_is_started_again_under_the_next_attempt() -> None:
    lanes = Lanes()
    windows = PlainWindows(lanes.open, attempts=3)
    await windows.begin(Planned(plan(1, assignment=FAILS)))
    await asyncio.sleep(1.0)
    assert [lane.spec.attempt for lane in lanes.opened] == [0, 1, 2]
    assert await windows.fault() is not None
    await windows.stop()


@on_virtual_time
async def test_a_fault_ends_all_lanes() -> None:
    lanes = Lanes(lives_s=30.0)
    windows = PlainWindows(lanes.open)
    await windows.begin(Planned(plan(1), plan(2, assignment=FAILS)))
    await asyncio.sleep(1.0)
    assert await windows.fault() == ERROR
    assert not any(lane.lives for lane in lanes.opened)
    await windows.stop()


@on_virtual_time
async def test_what_is_dead_can_not_run_them_again() -> None:
    lanes = Lanes(lives_s=30.0)
    windows = PlainWindows(lanes.open)
    await windows.begin(Planned(plan(1)))
    await asyncio.sleep(1.0)
    await windows.die()
    assert windows.is_dead
    assert not lanes.opened[0].lives
    with pytest.raises(WindowsDied):
        await windows.fault()
    await windows.stop()
