"""Asks lanes and gateways what they know of a record, on the streams they hold.

No decision: nothing of the cluster's state depends on an answer, or on who gave one. Invariant: a
question waits for as long as it said and no longer, and forgets who was asked with its end; answers
that come later, or from others, are dropped.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Mapping

from headgate.errors import Overloaded
from headgate.model.control.from_coordinator import AskEvidence
from headgate.model.control.to_coordinator import Evidence
from headgate.ports.control import ControlStream

AT_ONCE = 8
"""Questions that are open at a time."""

Ask = Callable[[int, int], AskEvidence]
"""What a session is asked, under that number."""


class Inquiries:
    def __init__(self, streams: Mapping[int, ControlStream]) -> None:
        self._streams = streams
        self._numbers = itertools.count(1)
        self._open: dict[int, _Inquiry] = {}

    async def ask(
        self, sessions: Collection[int], ask: Ask, *, timeout_s: float
    ) -> dict[int, Evidence]:
        """The answers by session, without those that don't come in time. Raises Overloaded."""
        if len(self._open) >= AT_ONCE:
            raise Overloaded("too many ask what became of records at the moment; try again")
        number = next(self._numbers)
        inquiry = self._open[number] = _Inquiry(set(sessions))
        try:
            for session in sessions:
                stream = self._streams.get(session)
                if stream is None:
                    inquiry.missing.discard(session)
                else:
                    stream.send(ask(session, number))
            await inquiry.answered(timeout_s)
        finally:
            del self._open[number]
        return inquiry.answers

    def heard(self, session: int, said: Evidence) -> None:
        inquiry = self._open.get(said.number)
        if inquiry is not None and session in inquiry.missing:
            inquiry.take(session, said)


class _Inquiry:
    def __init__(self, missing: set[int]) -> None:
        self.missing = missing
        self.answers: dict[int, Evidence] = {}
        self._all = asyncio.Event()

    def take(self, session: int, said: Evidence) -> None:
        self.missing.discard(session)
        self.answers[session] = said
        if not self.missing:
            self._all.set()

    async def answered(self, timeout_s: float) -> None:
        if not self.missing:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._all.wait()
        except TimeoutError:
            return
