"""What ports.windows.Windows promises, for whoever implements it. Lanes here last a moment."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from headgate.model.lanes import LaneSettings, LaneSpec, LaneTally, WindowPlan
from headgate.ports.windows import Windows

FAILS = 13
"""The number of an assignment whose lanes fail."""
ERROR = "this lane always fails"
QUIET_S = 1.0


def run_lane(spec: LaneSpec) -> LaneTally:
    """What each lane does."""
    if spec.assignment == FAILS:
        raise RuntimeError(ERROR)
    return LaneTally(
        lane=spec.lane,
        window=spec.window,
        pid=1,
        reason="contract",
        fenced=False,
        read=0,
        matched=0,
        delivered=0,
        started_s=1.0,
        ended_s=2.0,
    )


def warm_lane() -> None: ...


def plan(window: int, *, lanes: int = 1, warm: int = 0, assignment: int = 1) -> WindowPlan:
    specs = [
        LaneSpec(
            router_id="router-1",
            incarnation="a",
            lane=number,
            window=window,
            attempt=0,
            assignment=assignment,
            owns=(),
            coordinator="",
            data="",
            settings=LaneSettings(),
        )
        for number in range(lanes)
    ]
    return WindowPlan(window, tuple(specs), warm)


class Planned:
    """Implements ports.windows.Plans with what the test has planned, and notes what it sees."""

    def __init__(self, *plans: WindowPlan) -> None:
        self._ahead = deque(plans)
        self.asked = 0
        self.seen: list[object] = []

    async def next_plan(self) -> WindowPlan | None:
        self.asked += 1
        if not self._ahead:
            await asyncio.sleep(0.02)
            return None
        self.seen.append(self._ahead[0].window)
        return self._ahead.popleft()

    async def returned(self, tallies: Sequence[LaneTally]) -> None:
        self.seen.append(sorted((one.window, one.lane) for one in tallies))


async def keeps_its_contract(windows: Windows) -> None:
    assert await windows.launch()
    first = Planned(plan(1, lanes=2), plan(2, lanes=0, warm=1), plan(3))
    await windows.begin(first)
    await until(lambda: len(first.seen) == 6)
    assert first.seen == [1, [(1, 0), (1, 1)], 2, [], 3, [(3, 0)]]
    assert await windows.fault() is None
    await is_asked(first)

    second = Planned(plan(4))
    await windows.begin(second)
    await until(lambda: second.seen == [4, [(4, 0)]])
    await is_left_alone(first)

    failing = Planned(plan(5, lanes=2, assignment=FAILS), plan(6))
    await windows.begin(failing)
    assert await fault_of(windows)
    assert failing.seen == [5]
    await is_left_alone(failing)
    assert not windows.is_dead

    last = Planned(plan(7))
    await windows.begin(last)
    assert await windows.fault() is None
    await until(lambda: last.seen == [7, [(7, 0)]])
    windows.settled_in()
    await windows.stop()
    await is_left_alone(last)
    await windows.close()


async def fault_of(windows: Windows) -> str:
    async with asyncio.timeout(60):
        while True:
            fault = await windows.fault()
            if fault is not None:
                return fault
            await asyncio.sleep(0.02)


async def is_asked(plans: Planned) -> None:
    before = plans.asked
    await until(lambda: plans.asked > before)


async def is_left_alone(plans: Planned) -> None:
    before = plans.asked
    await asyncio.sleep(QUIET_S)
    assert plans.asked == before


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition is somebody else's state
            await asyncio.sleep(0.02)
