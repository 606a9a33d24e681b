"""Windows without Spark: the lanes of a window are tasks in the router's own event loop.

For tests and simulations of everything around lanes: no thread, no socket, and no clock but the
loop's. What Spark does for a router is done here too, and no more: lanes run side by side, one that
fails is started again under the next attempt, and the next window is asked for once all tallies
are there, while the former lanes go on.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from headgate.lane.lives import Lives, OpenLane
from headgate.model.lanes import LaneSpec, LaneTally, WindowPlan
from headgate.ports.windows import Plans, WindowsDied
from headgate.tasks import Crew, Helpers

ATTEMPTS: Final = 4
"""Of one lane in one window, as with Spark's local[n,4]."""
PAUSE_S: Final = 0.005
"""Between two questions for a window, as with Spark's pollingDelay."""


class PlainWindows:
    """Implements ports.windows.Windows; `open_lane` makes each lane."""

    def __init__(self, open_lane: OpenLane, *, attempts: int = ATTEMPTS) -> None:
        self._open_lane = open_lane
        self._attempts = attempts
        self._lives = Lives(open_lane)
        self._crew = Crew("windows")
        self._asking: asyncio.Task[None] | None = None
        self._fault: str | None = None
        self._is_dead = False

    async def launch(self) -> str:
        return "plain lanes"

    async def begin(self, plans: Plans) -> None:
        await self._abandon()
        self._fault = None
        self._asking = self._crew.start("asking", self._ask(plans))

    async def fault(self) -> str | None:
        if self._is_dead:
            raise WindowsDied("what ran the windows was killed; the router must be started again")
        return self._fault

    @property
    def is_dead(self) -> bool:
        return self._is_dead

    async def failed(self) -> None:
        await self._crew.failed()

    def settled_in(self) -> None:
        return

    async def stop(self) -> None:
        await self._abandon()

    async def close(self) -> None:
        await self._crew.close()

    async def die(self) -> None:
        """As if what runs them were killed, lanes and all."""
        self._is_dead = True
        await self._abandon()

    async def _abandon(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        await self._lives.end()
        self._lives = Lives(self._open_lane)

    # --- one window after the other --------------------------------------------------------------

    async def _ask(self, plans: Plans) -> None:
        try:
            while True:
                plan = await plans.next_plan()
                if plan is None:
                    await asyncio.sleep(PAUSE_S)
                else:
                    await plans.returned(await self._window(plan))
        except Exception as error:  # noqa: BLE001 - the router asks for it
            self._fault = str(error)
            await self._lives.end()

    async def _window(self, plan: WindowPlan) -> list[LaneTally]:
        """The tallies of all its lanes; raises when one of them has failed too often."""
        async with Helpers() as helpers:
            return await asyncio.gather(*(helpers.start(self._lane(one)) for one in plan.lanes))

    async def _lane(self, spec: LaneSpec) -> LaneTally:
        attempt = 0
        while True:
            try:
                return await self._lives.window(msgspec.structs.replace(spec, attempt=attempt))
            except Exception:
                attempt += 1
                if attempt == self._attempts:
                    raise
