"""What PyMongo does ends when it is to, also where it loses a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from headgate.adapters.mongo.asking import within
from tests.virtual_time import run_virtual

HOUR_S = 3_600.0


async def deaf(times: int) -> str:
    """Loses so many cancellations, as `asyncio.wait_for` of Python 3.11 may."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + HOUR_S
    while (left_s := ends_s - loop.time()) > 0:
        try:
            await asyncio.sleep(left_s)
        except asyncio.CancelledError:
            if times == 0:
                raise
            times -= 1
    return "done"


@pytest.mark.parametrize("times", [0, 1, 2])
def test_whoever_is_cancelled_ends_soon(times: int) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        asking = loop.create_task(within(None, deaf(times)))
        await asyncio.sleep(1)
        began_s = loop.time()
        asking.cancel()
        await asyncio.wait([asking], timeout=HOUR_S / 2)
        assert asking.cancelled()
        assert loop.time() - began_s < 4
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(scenario())


@pytest.mark.parametrize("times", [0, 1, 2])
def test_what_takes_too_long_is_given_up(times: int) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with pytest.raises(TimeoutError):
            await within(10, deaf(times))
        assert 10 <= loop.time() - began_s < 14

    run_virtual(scenario())


def test_what_comes_of_it_is_handed_on() -> None:
    async def scenario() -> None:
        assert await within(None, deaf(0)) == "done"
        assert await within(2 * HOUR_S, deaf(0)) == "done"
        with pytest.raises(ZeroDivisionError):
            await within(1, failing())

    run_virtual(scenario())


async def failing() -> None:
    await asyncio.sleep(0.1)
    raise ZeroDivisionError
