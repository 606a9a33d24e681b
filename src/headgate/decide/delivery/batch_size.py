"""How many are sent at once: fewer after a batch that was too many, more again when batches arrive.

A gateway, or the way to it, may take only so much at a time, and nobody says how much. A batch that
fails halves the limit, full ones that arrive double it; but not back to as many as failed, which is
tried again only after a pause, a longer one each time that it fails again. So at least about half
of what fits is sent at once, trials cost little, and more that fits after all is found in time.
That one alone fails is no matter of how many: nothing is too many then.

Each kind of batch has a size of its own, which only batches of that kind change. Invariant: the
limit is between one and the most that is allowed, and grows past a size that failed at most once
per pause until as many have arrived. Time is an argument.
"""

from __future__ import annotations

from headgate.decide.delivery.breaker import NEVER
from headgate.decide.delivery.retrying import Backoff

FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 300.0
_PAUSES = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)


class BatchSize:
    """`limit` is the size of the next batch, at most."""

    __slots__ = ("_fitted", "_most", "_too_many", "_trials", "_try_at_s", "limit")

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = most
        self._too_many: int | None = None
        """The smallest batch that failed, as far as that is remembered."""
        self._try_at_s = -NEVER
        self._trials = 0
        """How often as many failed again."""
        self._fitted = 0
        """What arrived last, since something failed."""

    def failed(self, count: int, *, now_s: float) -> bool:
        """A batch of so many didn't arrive, or was refused. True when fewer went through just
        before: then it is probably too many, and nothing else is wrong."""
        fitted, self._fitted = self._fitted, 0
        if count > 1:
            again = self._too_many is not None and count >= self._too_many
            self._trials = self._trials + 1 if again else 0
            self._too_many = count if self._too_many is None else min(count, self._too_many)
            self.limit = min(self.limit, count // 2)
            self._pause(now_s)
        elif self.limit == 1:
            self.renewed()
        return 0 < fitted < count

    def fitted(self, count: int, *, full: bool, now_s: float) -> None:
        """A batch of so many was answered; it is `full` where the limit kept it from being more."""
        self._fitted = count
        if self._too_many is not None and count >= self._too_many:
            self.renewed()
        if not full:
            return
        grown = min(self.limit * 2, self._most)
        if self._too_many is not None and grown >= self._too_many:
            if now_s < self._try_at_s:
                return
            self._pause(now_s)
        self.limit = grown

    def renewed(self) -> None:
        """What was too many may not be any more."""
        self._too_many = None
        self._trials = 0

    def _pause(self, now_s: float) -> None:
        self._try_at_s = now_s + _PAUSES.delay_s(self._trials, jitter=1.0)
