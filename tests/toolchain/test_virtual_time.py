"""The virtual clock moves whatever a test does, or a run of the suite would hang."""

from __future__ import annotations

import asyncio

from tests.virtual_time import run_virtual

CLOSE_S = 2e-10
"""Below the resolution of a loop's clock: a timer that far ahead fires at once."""
TURNS_MAX = 100_000


def test_a_timer_that_fires_early_is_reached_while_others_run() -> None:
    async def waits(late: int) -> int:
        loop = asyncio.get_running_loop()
        for _ in range(late):
            await asyncio.sleep(0)
        until_s, turns = 1.06 + CLOSE_S, 0
        while loop.time() < until_s:
            turns += 1
            assert turns < TURNS_MAX, "the clock stands still"
            reached = asyncio.Event()
            loop.call_at(until_s, reached.set)
            await reached.wait()
        return turns

    async def some_that_take_turns() -> list[int]:
        await asyncio.sleep(1.06)
        return await asyncio.gather(*(waits(late) for late in range(4)))

    assert max(run_virtual(some_that_take_turns())) < TURNS_MAX


def test_time_passes_only_where_nothing_is_to_be_done() -> None:
    async def a_few_turns_and_a_sleep() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        for _ in range(100):
            await asyncio.sleep(0)
        busy_s = loop.time()
        await asyncio.sleep(3_600)
        return busy_s, loop.time()

    assert run_virtual(a_few_turns_and_a_sleep()) == (0.0, 3_600.0)
