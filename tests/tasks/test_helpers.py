"""Tasks within a block, threads, and where the dead of a process are kept."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import weakref
from collections.abc import Iterator

import pytest
import structlog

from headgate.deaths import Deaths
from headgate.tasks import Helpers, deaths, first_of, notice_callbacks, start_thread
from headgate.telemetry import configure_logging
from tests.virtual_time import run_virtual


async def fail(after_s: float = 0.0) -> None:
    await asyncio.sleep(after_s)
    raise ValueError("broken")


# --- helpers -------------------------------------------------------------------------------------


def test_helpers_end_with_their_block() -> None:
    async def within() -> None:
        async with Helpers() as helpers:
            quick = helpers.start(asyncio.sleep(1, "done"))
            slow = helpers.start(asyncio.sleep(100))
            assert await quick == "done"
        assert slow.cancelled()
        assert asyncio.get_running_loop().time() == 1

    run_virtual(within())


def test_a_block_that_lasts_keeps_none_of_those_that_ended_well() -> None:
    async def within() -> None:
        async with Helpers() as helpers:
            ended = []
            for _ in range(10):
                task = helpers.start(asyncio.sleep(1))
                ended.append(weakref.ref(task))
                await task
            task = helpers.start(asyncio.sleep(1))
            await task
            assert [one() for one in ended] == [None] * 10

    run_virtual(within())


def test_an_error_that_the_block_did_not_see_is_raised_at_its_end() -> None:
    async def within() -> None:
        async with Helpers() as helpers:
            helpers.start(fail())
            await asyncio.sleep(1)

    with pytest.raises(ValueError, match="broken"):
        run_virtual(within())


def test_the_blocks_own_error_comes_first() -> None:
    async def within() -> None:
        async with Helpers() as helpers:
            helpers.start(fail())
            await asyncio.sleep(1)
            raise KeyError("the block's own")

    with pytest.raises(KeyError):
        run_virtual(within())
    assert deaths.counts() == {"helper": 1}


def test_what_the_block_has_seen_is_not_told_twice() -> None:
    async def within() -> None:
        async with Helpers() as helpers:
            failing = helpers.start(fail())
            try:
                await failing
            except ValueError as error:
                raise KeyError("in the block's own words") from error

    with pytest.raises(KeyError):
        run_virtual(within())
    assert deaths.counts() == {}


def test_a_helper_that_fails_as_it_is_cancelled_is_noticed() -> None:
    async def fail_at_its_end() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            raise ValueError("couldn't tidy up")

    async def within() -> None:
        async with Helpers() as helpers:
            helpers.start(fail_at_its_end())
            await asyncio.sleep(1)

    run_virtual(within())
    assert deaths.counts() == {"helper": 1}


# --- the first of several ------------------------------------------------------------------------


def test_the_work_wins_or_an_interruption_does() -> None:
    async def within() -> None:
        assert await first_of(asyncio.sleep(1, "done"), asyncio.sleep(2)) == "done"
        assert await first_of(asyncio.sleep(3, "done"), asyncio.sleep(5), asyncio.sleep(2)) is None
        assert asyncio.get_running_loop().time() == 3

    run_virtual(within())


@pytest.mark.parametrize("failing", ["work", "interruption"])
def test_an_error_on_either_side_is_raised(failing: str) -> None:
    async def within() -> None:
        waiting = asyncio.sleep(100)
        pair = (fail(1), waiting) if failing == "work" else (waiting, fail(1))
        await first_of(*pair)

    with pytest.raises(ValueError, match="broken"):
        run_virtual(within())


# --- threads -------------------------------------------------------------------------------------


def test_a_thread_that_fails_is_noticed() -> None:
    start_thread("clean", lambda: None).join(30)
    start_thread("reader", lambda: int("broken"), about="standard input").join(30)
    assert deaths.counts() == {"reader": 1}


# --- callbacks -----------------------------------------------------------------------------------


def test_a_callback_that_fails_is_noticed_and_a_connection_that_breaks_is_not() -> None:
    def fail_with(error: Exception) -> None:
        raise error

    async def within() -> None:
        loop = asyncio.get_running_loop()
        notice_callbacks(loop)
        loop.call_later(1, fail_with, ValueError("a mistake"))
        loop.call_soon(fail_with, ConnectionResetError("gone"))
        await asyncio.sleep(2)

    run_virtual(within())
    assert deaths.counts() == {"callback": 1}


# --- the dead ------------------------------------------------------------------------------------


@pytest.fixture
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("_logging_as_before")
def test_a_role_logs_a_death_as_it_logs_everything() -> None:
    stream = io.StringIO()
    configure_logging("error", stream=stream, role="ingest")
    try:
        int("broken")
    except ValueError as error:
        Deaths().note("ingest report", error, about="x")
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["event"], line["role"], line["task"]) == ("task_died", "ingest", "ingest report")
    assert "ValueError: invalid literal" in line["exception"]


def test_a_reason_stays_short() -> None:
    kept = Deaths(lambda: 1.0)
    kept.note("task", ValueError("x" * 10_000))
    (reason,) = kept.reasons()
    assert len(reason) < 300
