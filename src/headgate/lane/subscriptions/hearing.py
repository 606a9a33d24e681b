"""What the coordinator knows of a lane on the present stream, and whether it hears it.

A stream may break and another take its place between any two awaits. So code that relies on what
was said remembers the number of the stream on which it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import math

import structlog

from headgate.lane.life import STANDING, Awaited, Standing, StandingEvent
from headgate.model.control import to_coordinator
from headgate.ports.control import ControlSession
from headgate.telemetry import LogLine

log = structlog.get_logger()

HEARD_S = 1.0
"""For so long it is news that the coordinator hears this lane."""
SAID_AFTER = 5
"""Questions that were not answered in time, until the log says so."""


class Hearing:
    """`stream` is how often there was one to the coordinator."""

    def __init__(self) -> None:
        self.life = Awaited(STANDING)
        self.stream = 0
        self._questions = 0
        self._answered = asyncio.Event()
        self._heard_s = -math.inf
        """When it was asked that the coordinator has said it hears this lane."""

    def greets(self) -> None:
        self.stream += 1
        self.life.meets(StandingEvent.HELLO)

    @property
    def is_told(self) -> bool:
        """Are the subscriptions known that were told, or found, since the last hello?"""
        return self.life.state is not Standing.GREETED

    def is_same(self, session: ControlSession, stream: int) -> bool:
        """Does the stream live that was there then?"""
        return session.connected and self.stream == stream

    def ask_anew(self) -> int:
        """What was heard before doesn't count; returns the present stream."""
        self._heard_s = -math.inf
        return self.stream

    async def is_heard(self, session: ControlSession, stream: int) -> bool:
        """Does the coordinator still hear this lane, on the stream that was there then?"""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            while self.is_same(session, stream) and loop.time() - self._heard_s >= HEARD_S:
                asked_s = loop.time()
                self._answered.clear()
                self._questions += 1
                await session.send(to_coordinator.MayClaim(self._questions))
                async with asyncio.timeout(HEARD_S):
                    await self._answered.wait()
                self._heard_s = max(self._heard_s, asked_s)
            return self.is_same(session, stream)
        if self._questions % SAID_AFTER == 0:
            reason = f"the coordinator gives no answer within {HEARD_S:g} s"
            log.warning(LogLine.LANE_WAITS, reason=reason)
        return False

    def answered(self, number: int) -> None:
        """The coordinator answers a question; an earlier one's answer says nothing."""
        if number == self._questions:
            self._answered.set()
