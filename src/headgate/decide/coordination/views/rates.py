"""How fast something that only grows is growing, from reports of how far it is.

A meter keeps two earlier reports and the last one, however often they come: it measures over at
least `HALF_MS` and at most about twice that, once it has heard of so much. What falls has begun
anew, and what isn't heard of any more doesn't grow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

HALF_MS = 5_000
SILENT_MS = 10_000
"""Reports come every second; a meter that got none for so long shows nothing."""


class Reading(NamedTuple):
    at_ms: int
    total: float


@dataclass(slots=True)
class Meter:
    _base: Reading | None = None
    """What growth is measured from."""
    _next: Reading | None = None
    """What it will be measured from when that is old enough."""
    _last: Reading | None = None
    moved_ms: int | None = None
    """When it was last seen to have grown."""

    def read(self, total: float, now_ms: int) -> None:
        """It stands at `total` now."""
        now = Reading(now_ms, total)
        if self._last is not None and total > self._last.total:
            self.moved_ms = now_ms
        if self._last is None or self._next is None or self._begins_anew(now):
            self._base = self._next = now
        elif now_ms - self._next.at_ms >= HALF_MS:
            self._base, self._next = self._next, now
        self._last = now

    def _begins_anew(self, now: Reading) -> bool:
        assert self._last is not None
        return now.total < self._last.total or now.at_ms - self._last.at_ms > SILENT_MS

    def per_s(self, now_ms: int) -> float:
        """Growth per second over the last seconds."""
        base, last = self._base, self._last
        if base is None or last is None or now_ms - last.at_ms > SILENT_MS:
            return 0.0
        elapsed_ms = last.at_ms - base.at_ms
        return (last.total - base.total) * 1_000 / elapsed_ms if elapsed_ms else 0.0
