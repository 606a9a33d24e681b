"""The owner of tasks: what ends and should not have is noticed, started again, or raised."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import structlog

from headgate.deaths import SHOWN_S, Deaths
from headgate.errors import NotNow
from headgate.tasks import Crew, TaskDied
from tests.virtual_time import run_virtual

FOR_EVER_S = 1_000_000.0


class World:
    """A crew on virtual time, and what it says of its dead."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.deaths = Deaths(self.loop.time)
        self.crew = Crew("crew", deaths=self.deaths)
        self.begun_s: list[float] = []
        self.ended: list[str] = []

    async def wait(self, name: str = "") -> None:
        """A task as it should be."""
        self.begun_s.append(self.loop.time())
        try:
            await asyncio.sleep(FOR_EVER_S)
        finally:
            self.ended.append(name)

    async def die(self, after_s: float = 0.0, error: Exception | None = None) -> None:
        self.begun_s.append(self.loop.time())
        await asyncio.sleep(after_s)
        raise error or ValueError("broken")

    async def fail_at_its_end(self) -> None:
        try:
            await asyncio.sleep(FOR_EVER_S)
        finally:
            raise ValueError("couldn't tidy up")

    async def ignore_its_end(self) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(FOR_EVER_S)
        await asyncio.sleep(FOR_EVER_S)

    async def await_what_was_cancelled(self) -> None:
        self.begun_s.append(self.loop.time())
        future: asyncio.Future[None] = self.loop.create_future()
        future.cancel()
        await future


def on_virtual_time(
    test: Callable[[World], Coroutine[Any, Any, None]],
) -> Callable[[pytest.LogCaptureFixture], None]:
    async def within() -> None:
        world = World()
        await test(world)
        await world.crew.close()

    def run(caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.ERROR)
        run_virtual(within())

    run.__name__ = test.__name__
    return run


# --- one per request -----------------------------------------------------------------------------


@on_virtual_time
async def test_a_task_that_ends_is_nothing_special(world: World) -> None:
    assert await world.crew.start("answer", asyncio.sleep(1, "done")) == "done"
    assert world.deaths.counts() == {}
    assert world.deaths.reasons() == []


@on_virtual_time
async def test_a_task_that_fails_is_noticed_and_fails_nobody_else(world: World) -> None:
    waiting = world.crew.start("wait", world.wait())
    world.crew.start("answer", world.die(), about="request 7")
    await asyncio.sleep(1)
    assert world.deaths.counts() == {"crew answer": 1}
    assert world.deaths.reasons() == ["crew answer died 1 s ago (1 in all): ValueError('broken')"]
    assert not waiting.done()


@on_virtual_time
async def test_what_died_is_shown_for_a_while_and_counted_for_ever(world: World) -> None:
    world.crew.start("answer", world.die())
    await asyncio.sleep(SHOWN_S + 1)
    assert world.deaths.reasons() == []
    assert world.deaths.counts() == {"crew answer": 1}


@on_virtual_time
async def test_whoever_holds_a_task_may_cancel_it(world: World) -> None:
    task = world.crew.start("answer", world.wait())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.sleep(1)
    assert world.deaths.counts() == {}


@on_virtual_time
async def test_an_error_of_our_own_is_an_answer_to_whoever_awaits_it(world: World) -> None:
    task = world.crew.start("ask", world.die(error=NotNow("away")), awaited=True)
    with pytest.raises(NotNow):
        await asyncio.shield(task)
    assert world.deaths.counts() == {}
    world.crew.start("ask", world.die(error=ValueError("a mistake")), awaited=True)
    world.crew.start("tell", world.die(error=NotNow("away")))
    await asyncio.sleep(1)
    assert world.deaths.counts() == {"crew ask": 1, "crew tell": 1}


@on_virtual_time
async def test_a_task_that_awaited_what_was_cancelled_has_died(world: World) -> None:
    world.crew.start("answer", world.await_what_was_cancelled())
    await asyncio.sleep(1)
    assert world.deaths.counts() == {"crew answer": 1}


def test_a_death_is_logged_with_its_name_and_its_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a user's program; where a role runs, or did before this test, structlog has it."""
    monkeypatch.setattr(structlog, "is_configured", lambda: False)

    async def within() -> None:
        world = World()
        world.crew.start("answer", world.die(), about="request 7")
        await asyncio.sleep(1)

    run_virtual(within())
    (record,) = caplog.records
    assert "task_died" in record.getMessage()
    assert "crew answer" in record.getMessage()
    assert "request 7" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


# --- kept running --------------------------------------------------------------------------------


@on_virtual_time
async def test_what_is_kept_is_started_again_after_pauses_that_grow_to_a_bound(
    world: World,
) -> None:
    world.crew.keep("loop", world.die)
    await asyncio.sleep(60)
    pauses_s = [round(b - a, 3) for a, b in zip(world.begun_s, world.begun_s[1:], strict=False)]
    assert pauses_s == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 10.0]
    assert world.deaths.counts() == {"crew loop": 11}
    assert len(world.deaths.reasons()) == 1


@on_virtual_time
async def test_what_ran_for_a_while_is_started_again_soon(world: World) -> None:
    world.crew.keep("loop", lambda: world.die(after_s=40))
    await asyncio.sleep(130)
    assert world.begun_s == pytest.approx([0, 40.2, 80.4, 120.6])


@on_virtual_time
async def test_a_return_is_no_better_than_an_error(world: World) -> None:
    world.crew.keep("loop", lambda: asyncio.sleep(1))
    await asyncio.sleep(3)
    assert world.deaths.counts() == {"crew loop": 2}
    assert "returned and never should" in world.deaths.reasons()[0]


@on_virtual_time
async def test_an_error_before_the_first_step_counts_too(world: World) -> None:
    """A restart that fails by itself: nothing came of it that could be awaited."""
    tries = 0

    def begin() -> Coroutine[Any, Any, None]:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError("no descriptors left")
        return world.wait()

    world.crew.keep("loop", begin)
    await asyncio.sleep(5)
    assert tries == 3
    assert world.begun_s == pytest.approx([0.6])
    assert world.deaths.counts() == {"crew loop": 2}


@on_virtual_time
async def test_what_awaited_something_cancelled_is_started_again(world: World) -> None:
    world.crew.keep("loop", world.await_what_was_cancelled)
    await asyncio.sleep(1)
    assert len(world.begun_s) == 3


@on_virtual_time
async def test_a_keeper_that_is_cancelled_behind_its_crews_back_is_missed(world: World) -> None:
    world.crew.keep("loop", world.wait).cancel()
    with pytest.raises(TaskDied, match="crew loop was cancelled"):
        await world.crew.failed()


# --- needed --------------------------------------------------------------------------------------


@on_virtual_time
async def test_the_end_of_what_is_needed_is_raised(world: World) -> None:
    world.crew.need("listen", world.die(after_s=5))
    world.crew.need("report", world.die(after_s=6, error=OSError("later")))
    with pytest.raises(ValueError, match="broken"):
        await world.crew.failed()
    assert world.loop.time() == 5
    await asyncio.sleep(1 + SHOWN_S)
    assert len(world.deaths.reasons()) == 2  # for as long as the process is there
    assert "so this process ends" in world.deaths.reasons()[0]
    with pytest.raises(ValueError, match="broken"):
        await world.crew.failed()


@on_virtual_time
async def test_a_needed_task_that_returns_is_raised_too(world: World) -> None:
    world.crew.need("listen", asyncio.sleep(1))
    with pytest.raises(TaskDied, match="crew listen returned"):
        await world.crew.failed()


@on_virtual_time
async def test_a_needed_task_that_is_cancelled_is_raised_too(world: World) -> None:
    world.crew.need("listen", world.await_what_was_cancelled())
    with pytest.raises(TaskDied, match="crew listen was cancelled"):
        await world.crew.failed()


@on_virtual_time
async def test_whoever_waits_for_a_failure_is_let_go_at_the_end(world: World) -> None:
    world.crew.need("listen", world.wait())
    waiting = asyncio.create_task(world.crew.failed())
    await asyncio.sleep(1)
    await world.crew.close()
    await waiting


# --- the end -------------------------------------------------------------------------------------


@on_virtual_time
async def test_closing_ends_everything_and_none_of_it_counts(world: World) -> None:
    world.crew.need("needed", world.wait("needed"))
    world.crew.keep("kept", lambda: world.wait("kept"))
    world.crew.start("started", world.wait("started"))
    world.crew.keep("pausing", lambda: world.die(error=ValueError("its first")))
    await asyncio.sleep(0.1)
    await world.crew.close()
    assert sorted(world.ended) == ["kept", "needed", "started"]
    assert world.deaths.counts() == {"crew pausing": 1}
    assert world.loop.time() == pytest.approx(0.1)


@on_virtual_time
async def test_what_can_end_by_itself_is_given_the_time(world: World) -> None:
    goodbye = asyncio.Event()

    async def until_goodbye() -> None:
        await goodbye.wait()
        await asyncio.sleep(1)
        world.ended.append("by itself")

    world.crew.keep("talk", until_goodbye)
    world.crew.need("listen", until_goodbye())
    await asyncio.sleep(0)
    goodbye.set()
    await world.crew.close(grace_s=2)
    assert world.ended == ["by itself", "by itself"]
    assert world.loop.time() == pytest.approx(1)
    assert world.deaths.counts() == {}


@on_virtual_time
async def test_the_time_is_bounded(world: World) -> None:
    world.crew.start("talk", world.wait("cancelled"))
    await world.crew.close(grace_s=2)
    assert world.ended == ["cancelled"]
    assert world.loop.time() == pytest.approx(2)


@on_virtual_time
async def test_what_dies_while_closing_is_noticed_and_doesnt_stop_the_end(world: World) -> None:
    world.crew.need("needed", world.fail_at_its_end())
    world.crew.keep("kept", world.fail_at_its_end)
    world.crew.start("started", world.fail_at_its_end())
    await asyncio.sleep(1)
    await world.crew.close()
    assert world.deaths.counts() == {"crew needed": 1, "crew kept": 1, "crew started": 1}
    assert not any("this process ends" in reason for reason in world.deaths.reasons())
    await world.crew.failed()


@on_virtual_time
async def test_closing_twice_is_fine_also_at_the_same_time(world: World) -> None:
    world.crew.start("wait", world.wait("once"))
    await asyncio.sleep(1)
    await asyncio.gather(world.crew.close(), world.crew.close())
    await world.crew.close()
    assert world.ended == ["once"]


@on_virtual_time
async def test_a_task_that_will_not_end_is_left_behind_in_time(world: World) -> None:
    world.crew.start("wait", world.ignore_its_end())
    await asyncio.sleep(1)
    await world.crew.close(timeout_s=3)
    assert world.loop.time() == pytest.approx(4)


@on_virtual_time
async def test_a_close_that_is_cancelled_has_cancelled_the_tasks(world: World) -> None:
    world.crew.start("wait", world.wait("cancelled"))
    closing = asyncio.create_task(world.crew.close(grace_s=100))
    await asyncio.sleep(1)
    closing.cancel()
    await asyncio.sleep(1)
    assert world.ended == ["cancelled"]
    assert closing.cancelled()
    await world.crew.close()
    assert world.loop.time() == pytest.approx(2)


@on_virtual_time
async def test_a_task_may_close_its_own_crew_and_goes_on(world: World) -> None:
    async def close() -> str:
        await world.crew.close()
        return "still here"

    world.crew.start("wait", world.wait("other"))
    await asyncio.sleep(0)
    assert await world.crew.start("close", close()) == "still here"
    assert world.ended == ["other"]


@on_virtual_time
async def test_nothing_begins_after_the_end(world: World) -> None:
    await world.crew.close()
    late = world.crew.start("late", world.wait("late"))
    world.crew.keep("later", world.wait)
    await asyncio.sleep(1)
    assert late.cancelled()
    assert world.begun_s == []
    assert world.deaths.counts() == {}


@on_virtual_time
async def test_a_block_closes_its_crew(world: World) -> None:
    async def block() -> None:
        async with world.crew as crew:
            crew.start("wait", world.wait("with the block"))
            await world.die(after_s=1)

    with pytest.raises(ValueError, match="broken"):
        await block()
    assert world.ended == ["with the block"]
