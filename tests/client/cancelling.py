"""Cancels a call at any of its awaits: in the moment it begins to wait, or in the very moment at
which what it waits for is there.

A scenario makes its calls through `Cancelling`. The first run cancels nothing and counts the
places; then there is one run for each of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Literal, TypeVar

from headgate.tasks import deaths
from tests.virtual_time import run_virtual

T = TypeVar("T")
Moment = Literal["at once", "as it ends"]
MOMENTS: tuple[Moment, ...] = ("at once", "as it ends")

RUN_S = 60.0
"""Of virtual time: whatever takes longer hangs."""


class Cancelled(Exception):
    """The call was, by `Cancelling`."""


class Cancelling:
    """Cancels at the `place`-th await of all calls named `name` together."""

    def __init__(self, name: str = "", place: int = 0, moment: Moment = "at once") -> None:
        self._name, self._place, self._moment = name, place, moment
        self.awaits: Counter[str] = Counter()
        self.has_struck = False

    async def call(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        """The call's result; raises Cancelled where this cancelled it."""
        task = asyncio.create_task(self._watched(name, work))
        try:
            return await task
        except asyncio.CancelledError:
            if not self.has_struck:
                raise
            raise Cancelled from None

    async def _watched(self, name: str, work: Coroutine[Any, Any, T]) -> T:
        return await _Steps(work, lambda waits_for: self._suspended(name, waits_for))

    def _suspended(self, name: str, waits_for: Any) -> None:
        self.awaits[name] += 1
        if name != self._name or self.awaits[name] != self._place:
            return
        task = asyncio.current_task()
        assert task is not None
        self.has_struck = True
        if self._moment == "as it ends" and isinstance(waits_for, asyncio.Future):
            # Before the task itself is told, so that it is cancelled with the result at hand.
            waits_for.add_done_callback(lambda _: task.cancel())
        else:
            asyncio.get_running_loop().call_soon(task.cancel)


class _Steps(Awaitable[T]):
    """Tells of every suspension of `work`."""

    def __init__(self, work: Coroutine[Any, Any, T], suspended: Callable[[Any], None]) -> None:
        self._work = work
        self._suspended = suspended

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits_for = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            self._suspended(waits_for)
            answer, error = None, None
            try:
                answer = yield waits_for
            except BaseException as thrown:  # noqa: BLE001 - passed on as it is
                error = thrown


Scenario = Callable[[Cancelling], Coroutine[Any, Any, None]]


Runner = Callable[[Coroutine[Any, Any, None]], None]


def run(scenario: Scenario, cancelling: Cancelling, runner: Runner = run_virtual) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(RUN_S):
            await scenario(cancelling)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"still running: {left}"

    died_before = deaths.counts()
    runner(bounded())
    assert deaths.counts() == died_before


def cancel_everywhere(scenario: Scenario, runner: Runner = run_virtual) -> int:
    """Runs `scenario` once for each call, await and moment; returns how often it struck. In real
    time a call may wait less often than it did when the awaits were counted."""
    counting = Cancelling()
    run(scenario, counting, runner)
    struck = 0
    for name, awaits in counting.awaits.items():
        for place, moment in itertools.product(range(1, awaits + 1), MOMENTS):
            cancelling = Cancelling(name, place, moment)
            try:
                run(scenario, cancelling, runner)
            except BaseException as error:
                error.add_note(f"cancelled {moment} at await {place} of {name}")
                raise
            assert cancelling.has_struck or runner is not run_virtual
            struck += cancelling.has_struck
    return struck
