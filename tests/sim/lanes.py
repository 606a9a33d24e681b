"""Lanes as processes of their own, as Spark's workers are: killed and frozen apart from the router
that asked for them, and for a while alive without it.

What Spark does is done here, and no more: the router hears that a worker is gone after a while, and
starts the lane again; a worker whose application is gone notices that later than the others do.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from headgate.errors import HeadgateError
from headgate.lane.lives import Living, OpenLane
from headgate.model.lanes import LaneSpec, LaneTally
from tests.sim.scheduler import Process

if TYPE_CHECKING:
    from tests.sim.world import World

NOTICED_S: Final = 1.0
"""Until a router hears that a worker was killed."""
ORPHANED_S: Final = (0.0, 0.5, 3.0, 8.0)
"""How long a lane outlives its router, by chance."""


class WorkerLost(HeadgateError):
    """A lane's process was killed."""


class LaneProcesses:
    """All lanes of one run that live; `build` makes one, in its own process."""

    def __init__(self, world: World, build: OpenLane) -> None:
        self.living: list[RemoteLane] = []
        self._world = world
        self._build = build
        self._chance = random.Random(f"orphans {world.seed}")

    def open(self, spec: LaneSpec) -> tuple[RemoteLane, Callable[[], Awaitable[None]]]:
        """Called by a router, in its process."""
        name = f"{spec.router_id}/lane-{spec.lane}"
        process = self._world.scheduler.process(name)
        lane = RemoteLane(spec, process, self._build)
        self.living.append(lane)

        async def close() -> None:
            self._end(lane)

        return lane, close

    def kill(self, lane: RemoteLane) -> None:
        """Its process alone."""
        self._end(lane)
        watcher = self._world.watcher
        watcher.call_later(NOTICED_S, lane.router.call_soon, lane.lost)

    def orphaned(self, router: Process) -> None:
        """It was killed; its lanes end a little later."""
        for lane in [one for one in self.living if one.router is router]:
            outlives_s = max(self._chance.choice(ORPHANED_S), lane.outlives_s)
            self._world.watcher.call_later(outlives_s, self._end, lane)

    def _end(self, lane: RemoteLane) -> None:
        if lane in self.living:
            self.living.remove(lane)
            self._world.end(lane.process)


class RemoteLane:
    """A lane in its process, as its router sees it; implements lane.lives.Living."""

    def __init__(self, spec: LaneSpec, process: Process, build: OpenLane) -> None:
        self.spec = spec
        self.process = process
        self.router: Process = asyncio.get_running_loop()  # type: ignore[assignment]  # see there
        self.lane: Living | None = None
        """Once it is there."""
        self.outlives_s = 0.0
        """How long it is there without its router, at least."""
        self._build = build
        self._tally: asyncio.Future[LaneTally] = self.router.create_future()
        self._tally.add_done_callback(lambda it: it.cancelled() or it.exception())
        self._ended: asyncio.Future[None] = self.router.create_future()

    async def run(self) -> None:
        self.process.call_soon(self.process.start, self._live())
        await self._ended

    async def tally(self) -> LaneTally:
        return await self._tally

    def lost(self) -> None:
        self._over(WorkerLost("the lane's worker was killed"))

    # --- in its process --------------------------------------------------------------------------

    async def _live(self) -> None:
        lane, close = self._build(self.spec)
        self.lane = lane

        async def gives_tally() -> None:
            try:
                tally = await lane.tally()
            except Exception as error:  # noqa: BLE001 - the router is told
                self.router.call_soon(self._over, error)
            else:
                self.router.call_soon(self._has_tally, tally)

        giving = self.process.create_task(gives_tally())
        try:
            await lane.run()
        except Exception as error:  # noqa: BLE001 - the router is told
            self.router.call_soon(self._over, error)
        else:
            await giving
            self.router.call_soon(self._over, None)
        finally:
            await close()

    # --- at the router ---------------------------------------------------------------------------

    def _has_tally(self, tally: LaneTally) -> None:
        if not self._tally.done():
            self._tally.set_result(tally)

    def _over(self, error: Exception | None) -> None:
        if error is not None and not self._tally.done():
            self._tally.set_exception(error)
        if not self._ended.done():
            self._ended.set_result(None)
