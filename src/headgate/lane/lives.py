"""Lanes that live in one event loop: each goes on after its window, until its successor has taken
over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from headgate.model.lanes import LaneSpec, LaneTally
from headgate.tasks import Crew
from headgate.telemetry import LogLine

log = structlog.get_logger()


class Living(Protocol):
    """A lane, as the worker that runs it sees it."""

    async def run(self) -> None:
        """Its whole life."""

    async def tally(self) -> LaneTally:
        """Comes when its window is over; raises what ended the lane before that."""


OpenLane = Callable[[LaneSpec], tuple[Living, Callable[[], Awaitable[None]]]]
"""Makes a lane, with the function that closes all that it uses."""


class Lives:
    def __init__(self, open_lane: OpenLane) -> None:
        self._open_lane = open_lane
        self._crew = Crew("lanes")

    async def window(self, spec: LaneSpec) -> LaneTally:
        """Let a lane live; returns when its window is over, or raises what ended it before."""
        lane, close = self._open_lane(spec)
        self._crew.start("life", self._live(lane, close), about=str(spec.lane))
        return await lane.tally()

    async def end(self) -> None:
        """All of them, at once."""
        await self._crew.close()

    async def _live(self, lane: Living, close: Callable[[], Awaitable[None]]) -> None:
        try:
            await lane.run()
        except Exception:
            # The router hears of it only while the window is open; afterwards this is the only
            # trace.
            log.exception(LogLine.UNEXPECTED)
        finally:
            await close()
