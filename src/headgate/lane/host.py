"""Where lanes live in a worker process: one event loop in a thread of its own.

Spark calls with one task after another, and a lane outlives its task until its successor has taken
over; so the loop, and what is worth keeping open between windows, belongs to the process. Spark may
end the process at any time: nothing here is needed to recover.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from headgate.lane.lives import Lives, Living
from headgate.model.lanes import LaneSpec, LaneTally
from headgate.ports.machine import Machine
from headgate.tasks import start_thread

Shared = TypeVar("Shared")

SWITCH_S = 0.0001
"""The threads that carry a delivery's bytes need the interpreter for a moment, while a lane that
reads a backlog keeps it busy. At Python's own 5 ms a delivery took 5 to 100 ms, at this it takes
2."""


class LaneHost(Generic[Shared]):
    """`share` makes what the process keeps open; `open_lane` a lane, with what closes it."""

    def __init__(
        self,
        share: Callable[[], Shared],
        open_lane: Callable[[LaneSpec, Shared], tuple[Living, Callable[[], Awaitable[None]]]],
        *,
        machine: Machine,
    ) -> None:
        self._share = share
        self._open_lane = open_lane
        self._loop = _new_loop()
        self._shared: Shared | None = None
        self._lives = Lives(self._open)
        self.pid = machine.pid()
        sys.setswitchinterval(SWITCH_S)
        start_thread("lanes", self._loop.run_forever)

    def run(self, spec: LaneSpec) -> LaneTally:
        """Run a lane until its window is over; called in the task's own thread."""
        tally = self._lives.window(spec)
        return asyncio.run_coroutine_threadsafe(tally, self._loop).result()

    def _open(self, spec: LaneSpec) -> tuple[Living, Callable[[], Awaitable[None]]]:
        if self._shared is None:
            self._shared = self._share()
        return self._open_lane(spec, self._shared)


def _new_loop() -> asyncio.AbstractEventLoop:
    """The loop that the other roles run on: it takes a tenth less of a lane's time at 10,000
    events per second."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()
