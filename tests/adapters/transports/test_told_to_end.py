"""Whoever delivers and is told to end, ends, also where the client keeps that to itself."""

from __future__ import annotations

import asyncio

import pytest

from headgate.adapters.delivery_wire import answer_to


@pytest.mark.parametrize("fails", [False, True], ids=["answers", "fails"])
async def test_an_answer_that_comes_in_the_same_moment_keeps_nobody(fails: bool) -> None:
    async def comes_anyway() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if fails:
                raise ConnectionError from None
        return "the answer"

    delivering = asyncio.create_task(answer_to(comes_anyway(), None, turns=1))
    for _ in range(3):
        await asyncio.sleep(0)
    delivering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await delivering


async def test_one_that_was_told_to_end_before_may_still_deliver() -> None:
    async def answers() -> str:
        return "the answer"

    async def last_words() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await answer_to(answers(), None, turns=1)
        return ""

    speaking = asyncio.create_task(last_words())
    await asyncio.sleep(0)
    speaking.cancel()
    assert await speaking == "the answer"
