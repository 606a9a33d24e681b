"""Whose turn it is among calls that share keys."""

from __future__ import annotations

import asyncio
import math
import random
import sys
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from headgate.client.producing.fair_order import Line, Turns

WAIT_S = 30.0


def lines(*keys: object) -> frozenset[Line]:
    return frozenset(("t", "", str(key)) for key in keys)


async def steps_of_one_more(waiting: int) -> int:
    """What Python calls for one that shares no key, while others wait."""
    turns = Turns()
    async with AsyncExitStack() as stack:
        for number in range(waiting):
            await stack.enter_async_context(turns.taken(lines(number), math.inf))
        calls = 0

        def count(*_: Any) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            await stack.enter_async_context(turns.taken(lines("own"), math.inf))
        finally:
            sys.setprofile(None)
    assert not turns
    return calls


async def test_what_a_call_costs_does_not_grow_with_those_that_wait() -> None:
    assert await steps_of_one_more(1_000) <= await steps_of_one_more(10) + 10


@pytest.mark.parametrize("seed", range(20))
async def test_nobody_is_overtaken_by_a_later_one_of_their_keys_whoever_gives_up(seed: int) -> None:
    chance, turns = random.Random(seed), Turns()
    here: dict[int, frozenset[Line]] = {}
    """Those that came and aren't over, in the order in which they came."""

    async def call(number: int, mine: frozenset[Line]) -> None:
        here[number] = mine
        patience_s = chance.choice([0.003, math.inf])
        try:
            with suppress(TimeoutError):
                async with turns.taken(mine, asyncio.get_running_loop().time() + patience_s):
                    earlier = [theirs for one, theirs in here.items() if one < number]
                    assert all(mine.isdisjoint(theirs) for theirs in earlier)
                    for _ in range(chance.randrange(4)):
                        await asyncio.sleep(0.001)
        finally:
            del here[number]

    tasks: list[asyncio.Task[None]] = []
    for number in range(60):
        mine = lines(*(chance.randrange(6) for _ in range(chance.randrange(4))))
        tasks.append(asyncio.create_task(call(number, mine)))
        if chance.random() < 0.3:
            await asyncio.sleep(0.001)
        if chance.random() < 0.2:
            chance.choice(tasks).cancel()
    async with asyncio.timeout(WAIT_S):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(one) for one in outcomes} <= {type(None), asyncio.CancelledError}, outcomes
    assert not turns
    assert not turns._queues, "nothing of them is left"
