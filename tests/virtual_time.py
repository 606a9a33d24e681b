"""An event loop whose clock jumps: a test with timeouts takes no time and depends on no machine.

When nothing is ready to run, time moves on to the next timer instead of passing, and by very little
where something always is. Only for code that does no real I/O; a real socket would never get its
turn.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
LEAST_S = 1e-9
"""Time moves, however close the next timer is: a smaller step may be none, late in a long test."""
BUSY_TURNS = 1_000
"""Turns in a row in which something ran, after which time moves all the same. asyncio fires a timer
a little early: what looks at the clock then waits again, and where several do that in turns, one of
them is always ready."""


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting for a timeout, lets the loop's clock jump over it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._busy_turns = 0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("everything waits and no timer is set: this would hang for ever")
        self._busy_turns = 0 if timeout > 0.0 else self._busy_turns + 1
        if timeout > 0.0:
            self.now_s += max(timeout, LEAST_S)
        elif self._busy_turns % BUSY_TURNS == 0:
            self.now_s += LEAST_S
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
