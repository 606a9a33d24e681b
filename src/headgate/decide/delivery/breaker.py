"""Whether a gateway is worth a try: after some failures in a row it is left alone for a while.

    closed      everything is sent
    open        nothing is sent until the timeout has passed
    half open   one attempt is under way; its success closes the breaker, its failure opens it anew

Invariant: between two attempts at a gateway that keeps failing at least the timeout passes. Time is
an argument; attempts come one after the other, as the pipeline of a gateway makes them.
"""

from __future__ import annotations

from headgate.model.control.reports import BreakerState

NEVER = float("inf")


class Breaker:
    """`wary`: another lane has given up on this gateway, so one failure is enough."""

    __slots__ = ("_failures", "_opened_s", "_probing", "_threshold", "_timeout_s", "wary")

    def __init__(self, threshold: int, timeout_s: float) -> None:
        self._threshold = threshold
        self._timeout_s = timeout_s
        self._failures = 0
        self._opened_s: float | None = None
        self._probing = False
        self.wary = False

    @property
    def state(self) -> BreakerState:
        if self._opened_s is None:
            return "closed"
        return "half_open" if self._probing else "open"

    @property
    def probe_at_s(self) -> float:
        """When the next attempt is allowed; in the past while everything is."""
        return -NEVER if self._opened_s is None else self._opened_s + self._timeout_s

    def allows(self, now_s: float) -> bool:
        """Is an attempt worth it now? An open breaker allows one once its timeout has passed."""
        return now_s >= self.probe_at_s

    def attempted(self) -> None:
        """An attempt begins."""
        self._probing = self._opened_s is not None

    def succeeded(self) -> None:
        self._failures = 0
        self._opened_s = None
        self._probing = False

    def failed(self, now_s: float) -> None:
        self._failures += 1
        if self._probing or self._failures >= (1 if self.wary else self._threshold):
            self._opened_s = now_s
        self._probing = False

    def not_tried(self) -> None:
        """Nothing came of the attempt, not even a failure: another one is allowed at once."""
        self._probing = False

    def rested(self) -> None:
        """Its timeout has passed, and there is nothing to try the gateway with: it counts as
        closed, but the next failure opens it anew."""
        self.succeeded()
        self._failures = self._threshold - 1

    def renewed(self) -> None:
        """The gateway is another one now (it has started anew): what was, doesn't count."""
        self.succeeded()
