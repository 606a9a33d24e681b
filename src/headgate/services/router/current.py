"""The window that is open, and how earlier ones ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import structlog

from headgate.decide.delivery.retrying import Backoff
from headgate.decide.lane.window_shares import OpenWindow, Patience, overdue_s
from headgate.metrics.roles import RouterMetrics
from headgate.model.control.from_coordinator import Assign
from headgate.model.lanes import LaneTally, WindowPlan
from headgate.ports.windows import WindowsDied
from headgate.telemetry import LogLine

log = structlog.get_logger()

WARM_EVERY_S = 40.0
"""Spark ends Python workers after 60 s without a task; starting them anew takes seconds."""
QUERY_RESTARTS_MAX = 20
QUERY_RESTARTS_WITHIN_S = 600.0
"""More restarts within so long, without a window of lanes that went well in between, and the
process begins anew: the query isn't what is wrong. A fault now and then over months is no more than
that."""

REFUSED = Backoff(initial_s=0.1, max_s=2.0)
"""Between two windows of an assignment whose lanes are refused: a newer one is on its way."""


class CurrentWindow:
    """Two clocks come in: the loop's, by which a window is overdue, and wall time (`wall_s`), which
    lanes in other processes share."""

    def __init__(self, metrics: RouterMetrics, *, length_s: float, patience: Patience) -> None:
        self._metrics = metrics
        self._length_s = length_s
        self._patience = patience
        self._open = OpenWindow(0.0, 0.0)
        self._last_ended_s = 0.0
        self._faults_s: deque[float] = deque()
        """When, since lanes came back last, and as far as they count."""
        self._refused_under = 0
        """The number of the assignment whose last windows came to nothing (0: none)."""
        self._refusals = 0
        """How many such windows there were in a row."""
        self.plan: WindowPlan | None = None
        """What runs; None between two windows."""
        self.change_ms = 0.0
        """From the end of a window to the first lane of the next, the last time."""
        self.trouble = ""

    # --- what happens to it ----------------------------------------------------------------------

    def opened(self, plan: WindowPlan, *, now_s: float) -> None:
        self.plan = plan
        self._open = OpenWindow(now_s, self._length_s)

    def told_to_end(self, window: int, *, now_s: float) -> None:
        """Lanes of a former window go on after their tallies, and may be told to end as well."""
        if self.plan is not None and self.plan.window == window:
            self._open = replace(self._open, told_s=now_s)

    def returned(self, tallies: Sequence[LaneTally], *, wall_s: float) -> None:
        if tallies:
            self._faults_s.clear()
            started_s = min(tally.started_s for tally in tallies)
            if self._last_ended_s:
                self.change_ms = (started_s - self._last_ended_s) * 1000
                self._metrics.window_latency.observe(max(0.0, started_s - self._last_ended_s))
            self._last_ended_s = max(tally.ended_s for tally in tallies)
        else:
            self._last_ended_s = wall_s
        self._metrics.windows.inc()
        self.trouble = ""
        for tally in tallies:
            log.info(LogLine.LANE_ENDED, **msgspec.structs.asdict(tally))
        self._count_refusals(tallies)
        self.plan = None

    def _count_refusals(self, tallies: Sequence[LaneTally]) -> None:
        planned = {lane.assignment for lane in self.plan.lanes} if self.plan else set[int]()
        if not planned or not all(tally.fenced for tally in tallies):
            self._refused_under = self._refusals = 0
            return
        [number] = planned
        self._refusals = self._refusals + 1 if number == self._refused_under else 1
        self._refused_under = number

    def failed(self, reason: str, *, now_s: float) -> None:
        """Nothing runs the window any more, or it doesn't end; the next one is on its way. Raises
        WindowsDied when that has happened too often of late."""
        while self._faults_s and now_s - self._faults_s[0] > QUERY_RESTARTS_WITHIN_S:
            self._faults_s.popleft()
        self._faults_s.append(now_s)
        faults = len(self._faults_s)
        if faults > QUERY_RESTARTS_MAX:
            raise WindowsDied(
                f"the query failed {faults} times within {QUERY_RESTARTS_WITHIN_S / 60:g} minutes: "
                f"{reason}; giving up"
            )
        log.error(LogLine.QUERY_FAILED, restarts=faults, error=reason)
        self.trouble = f"its query failed and was started again: {reason}"
        self._metrics.restarts.inc()
        self.plan = None

    # --- what is known of it ---------------------------------------------------------------------

    @property
    def is_first(self) -> bool:
        """Whether none has ended yet."""
        return not self._last_ended_s

    def is_cold(self, wall_s: float) -> bool:
        """Whether an empty window would keep workers from being ended."""
        return wall_s - self._last_ended_s >= WARM_EVERY_S

    def pause_s(self, assignment: Assign | None) -> float:
        """How long the next window of `assignment` may wait for a newer one. None of the lanes of
        the last one had anything to read when it ended; yet it may be right after all."""
        if assignment is None or not self._refusals or assignment.number != self._refused_under:
            return 0.0
        return REFUSED.delay_s(self._refusals - 1, jitter=1.0)

    def is_overdue(self, *, now_s: float, connected_s: float | None) -> bool:
        """True when a window should have returned its tallies long ago. Spark would wait for them
        for ever."""
        at_s = overdue_s(self._open, connected_s=connected_s, patience=self._patience)
        return self.plan is not None and at_s is not None and now_s > at_s
