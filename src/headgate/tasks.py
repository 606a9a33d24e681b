"""The one way to start a task or a thread: each has an owner that notices its end.

    Helpers         tasks that end within the block that starts them
    Crew.start      one per request, connection or event: it may end, it must not fail
    Crew.keep       must not end: it is started again, after a pause that grows up to a bound
    Crew.need       must not end: when it does, `failed` raises, and ends the task that waits there
    start_thread    a thread, which must not fail
    notice_callbacks    the same for timers and other callbacks of a loop

Invariant: whatever ends and should not have is among the `deaths` of this process, which the log,
/health and /metrics show. `make check` refuses any other way.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from headgate.deaths import Deaths, deaths, log_error
from headgate.decide.operations.supervision import RestartPolicy
from headgate.errors import HeadgateError

__all__ = [
    "Crew",
    "Helpers",
    "TaskDied",
    "deaths",
    "end_if_told",
    "first_of",
    "notice_callbacks",
    "start_thread",
]

T = TypeVar("T")

CLOSE_TIMEOUT_S: Final = 5.0
"""Longest wait for tasks that were cancelled; one that goes on all the same is left behind."""
RESTARTS: Final = RestartPolicy()


class TaskDied(HeadgateError):
    """A task ended that never should, and left no error."""


class Crew:
    """The owner of tasks that outlive the function that starts them; `name` and the tasks' own
    names are fixed words, because metrics are kept by them: what a task is `about` isn't."""

    def __init__(
        self,
        name: str,
        *,
        restarts: RestartPolicy = RESTARTS,
        deaths: Deaths = deaths,
    ) -> None:
        self._name = name
        self._restarts = restarts
        self._deaths = deaths
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = asyncio.Event()
        self._cancelling = False
        self._over = asyncio.Event()
        self._failure: BaseException | None = None

    # --- starting --------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        work: Coroutine[Any, Any, T],
        *,
        about: str = "",
        awaited: bool = False,
    ) -> asyncio.Task[T]:
        """It may end, and the caller may cancel it. Where the caller has `awaited` it, an error of
        Headgate's own is the caller's answer; any other error is a death, as without."""
        return self._begun(name, work, about, partial(self._ended, name, about, awaited))

    def keep(
        self, name: str, work: Callable[[], Awaitable[object]], *, about: str = ""
    ) -> asyncio.Task[None]:
        """It must not end before the crew does. For what can begin anew at any time."""
        kept = self._kept(name, work, about)
        return self._begun(name, kept, about, partial(self._lost, name, about))

    def need(
        self, name: str, work: Coroutine[Any, Any, object], *, about: str = ""
    ) -> asyncio.Task[object]:
        """It must not end before the crew does. For what can't be begun again."""
        return self._begun(name, work, about, partial(self._lost, name, about))

    def _begun(
        self,
        name: str,
        work: Coroutine[Any, Any, T],
        about: str,
        ended: Callable[[asyncio.Task[T]], None],
    ) -> asyncio.Task[T]:
        called = f"{self._called(name)} {about}" if about else self._called(name)
        task = asyncio.get_running_loop().create_task(work, name=called)
        self._tasks.add(task)
        task.add_done_callback(ended)
        if self._cancelling:
            task.cancel()  # before its first step: nothing begins after the end
        return task

    def _called(self, name: str) -> str:
        return f"{self._name} {name}"

    # --- ends ------------------------------------------------------------------------------------

    def _ended(self, name: str, about: str, awaited: bool, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is None:
            return
        error = self._error_of(name, task)
        answered = awaited and (task.cancelled() or isinstance(error, HeadgateError))
        if error is not None and not answered:
            self._deaths.note(self._called(name), error, about=about)

    def _lost(self, name: str, about: str, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error, closing = self._error_of(name, task), self._closing.is_set()
        if error is None and not closing:
            error = self._without_error(name, cancelled=task.cancelled())
        if error is not None:
            self._deaths.note(self._called(name), error, about=about, lasting=not closing)
        if not closing:
            self._failure = error if self._failure is None else self._failure
            self._over.set()

    def _error_of(self, name: str, task: asyncio.Task[Any]) -> BaseException | None:
        """What ended it; nothing where it returned, or was told to end."""
        if not task.cancelled():
            return task.exception()
        if task.cancelling() or self._closing.is_set():
            return None
        # Nobody cancelled it: it awaited something that was, which looks the same.
        return self._without_error(name, cancelled=True)

    async def _kept(self, name: str, work: Callable[[], Awaitable[object]], about: str) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while not self._closing.is_set():
            began_s = loop.time()
            error = await self._died_of(name, work)
            if error is None:
                return
            self._deaths.note(self._called(name), error, about=about)
            failures = self._restarts.failures_after(failures=failures, ran_s=loop.time() - began_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._restarts.delay_s(failures=failures)):
                    await self._closing.wait()

    async def _died_of(
        self, name: str, work: Callable[[], Awaitable[object]]
    ) -> BaseException | None:
        """What ended it; nothing where it ended because everything does."""
        task = asyncio.current_task()
        assert task is not None
        try:
            await work()
        except asyncio.CancelledError:
            if task.cancelling():
                raise
            cancelled = True  # not itself, but what it awaited
        except Exception as error:  # noqa: BLE001 - noted, whatever it is
            return error
        else:
            cancelled = False
        return None if self._closing.is_set() else self._without_error(name, cancelled=cancelled)

    def _without_error(self, name: str, *, cancelled: bool) -> TaskDied:
        how = "was cancelled" if cancelled else "returned"
        return TaskDied(f"{self._called(name)} {how} and never should; please report this")

    async def failed(self) -> None:
        """Waits for as long as all that is needed runs, and raises what ended it; returns when the
        crew is closed."""
        await self._over.wait()
        if self._failure is not None:
            raise self._failure

    # --- the end ---------------------------------------------------------------------------------

    def dismiss(self) -> None:
        """From now on any task may end by itself."""
        self._closing.set()
        self._over.set()

    async def close(self, *, grace_s: float = 0.0, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End every task, after `grace_s` for those that end by themselves. Doing it twice is fine,
        as is doing it within one of the tasks, which then goes on."""
        self.dismiss()
        try:
            if grace_s > 0 and (others := self._others()):
                await asyncio.wait(others, timeout=grace_s)
        finally:
            self.cancel()
        await _ended_in_time(self._others, timeout_s)

    def cancel(self) -> None:
        """Tell every task to end, for a caller that can't wait for it."""
        self.dismiss()
        self._cancelling = True
        for task in self._others():
            task.cancel()

    def _others(self) -> set[asyncio.Task[Any]]:
        return self._tasks - {asyncio.current_task()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Helpers:
    """Tasks that end with the block that starts them: what still runs there is cancelled. An error
    that the block didn't come to see is raised at its end; what ended well is forgotten at once, so
    that a block may last, and start any number of them."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Future[Any], None] = {}

    def start(self, work: Awaitable[T]) -> asyncio.Future[T]:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Future[Any]) -> None:
        if task.cancelled() or task.exception() is None:
            self._tasks.pop(task, None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ended = [task for task in self._tasks if task.done() and not task.cancelled()]
        if len(ended) < len(self._tasks) and (running := self._running()):
            for task in running:
                task.cancel()
                task.add_done_callback(_note_helper)
            await _ended_in_time(self._running, CLOSE_TIMEOUT_S)
        for task in ended:
            failure = task.exception()
            if failure is None:
                continue
            if error is None:
                raise failure
            if failure not in (error, error.__cause__, error.__context__):
                _note_helper(task)

    def _running(self) -> list[asyncio.Future[Any]]:
        return [task for task in self._tasks if not task.done()]


def end_if_told() -> None:
    """For a loop that goes by what others' code awaits, once a round. `asyncio.wait_for` of Python
    3.11, in many a driver, loses a cancellation that comes just when it has something to return."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def first_of(work: Awaitable[T], *interruptions: Awaitable[object]) -> T | None:
    """The result of `work`, or None when one of the others came first; the losers are cancelled."""
    async with Helpers() as helpers:
        own = helpers.start(work)
        others = [helpers.start(one) for one in interruptions]
        all_of_them: list[asyncio.Future[Any]] = [own, *others]
        await asyncio.wait(all_of_them, return_when=asyncio.FIRST_COMPLETED)
        return own.result() if own.done() else None


def start_thread(
    name: str, work: Callable[[], object], *, about: str = "", again: bool = False
) -> threading.Thread:
    """A thread that doesn't keep the process from ending. What can do its work `again` does so
    after an error, after a pause."""

    def run() -> None:
        failures, died = 0, True
        while died:
            began_s = time.monotonic()
            try:
                work()
                died = False
            except Exception as error:  # noqa: BLE001 - noted, whatever it is
                deaths.note(name, error, about=about)
                died = again
                failures = RESTARTS.failures_after(
                    failures=failures, ran_s=time.monotonic() - began_s
                )
                if again:
                    threading.Event().wait(RESTARTS.delay_s(failures=failures))

    thread = threading.Thread(target=run, name=f"{name} {about}".rstrip(), daemon=True)
    thread.start()
    return thread


def notice_callbacks(loop: asyncio.AbstractEventLoop) -> None:
    """An error in a timer or another callback counts as a death too: what it should have done is
    not done. Those of connections, which end all the time, don't."""

    def noticed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, OSError):
            deaths.note("callback", error, about=str(context.get("message", "")))
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(noticed)


def _note_helper(task: asyncio.Future[Any]) -> None:
    """The helper failed beside its block, or while it was cancelled: nothing else would tell."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, HeadgateError):
        deaths.note("helper", error, about=_name_of(task))


async def _ended_in_time(
    running: Callable[[], Collection[asyncio.Future[Any]]], timeout_s: float
) -> None:
    """Wait until nothing is `running`, or say what still is."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while tasks := running():
        left_s = deadline_s - loop.time()
        if left_s <= 0:
            log_error("TASK_LINGERS", None, tasks=sorted(map(_name_of, tasks)), timeout_s=timeout_s)
            return
        await asyncio.wait(tasks, timeout=left_s)


def _name_of(task: asyncio.Future[Any]) -> str:
    return task.get_name() if isinstance(task, asyncio.Task) else repr(task)
