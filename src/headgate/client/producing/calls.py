"""The calls that a producer has under way, and the last word on each of them.

Invariant: a call ends at its deadline and one margin after that at the latest, whatever became of
its events: they may stand in a queue, travel in a request, or be forgotten by mistake. Its events
are told what is true of them then: not written, or unknown while a request that nobody has answered
may have them.

One timer serves all calls. A deadline only ever moves on, and a new call's is later than those of
the calls before it when they came in: so what the timer was set for is never too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate import errors
from headgate.client.producing.exchange import ANSWER_MARGIN_S
from headgate.client.producing.pending import Call, Pending, settle_all

LOOK_AGAIN_S = 0.05
"""The least time between two looks: calls that came one by one needn't end one by one."""


class Calls:
    def __init__(self, call_s: float, *, release: Callable[[Pending], None]) -> None:
        """`call_s` is what a call is given."""
        self._call_s = call_s
        self._release = release
        self._open: dict[Call, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, events: int) -> Call:
        began_s = _now_s()
        deadline_s = began_s + self._call_s
        call = Call(events, began_s, deadline_s, release=self._release, over=self._forget)
        if events:
            self._open[call] = None
            if self._timer is None:
                self._look_at(deadline_s + ANSWER_MARGIN_S)
        return call

    def end_all(self, error: errors.HeadgateError) -> None:
        for call in list(self._open):
            settle_all(call.entered, error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _forget(self, call: Call) -> None:
        self._open.pop(call, None)

    def _look_at(self, when_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(when_s, self._look)

    def _look(self) -> None:
        """End what is overdue, and come back for the next one."""
        self._timer = None
        now_s = _now_s()
        if self._open:
            first_s = min(call.deadline_s for call in self._open) + ANSWER_MARGIN_S
            self._look_at(max(first_s, now_s + LOOK_AGAIN_S))
        for call in list(self._open):
            if call.deadline_s + ANSWER_MARGIN_S <= now_s:
                settle_all(call.entered, overdue(self._call_s))


def overdue(call_s: float) -> errors.HeadgateError:
    return errors.Timeout(f"the event found no way to the log within {call_s:g} s; try again")


def _now_s() -> float:
    return asyncio.get_running_loop().time()
