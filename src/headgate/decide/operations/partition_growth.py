"""What an ingest node knows of a log partition without reading it: how fast it grows, when it last
did, and for how long its oldest unsettled record has waited.

It is told the head and the settled position every now and then. By the first time at which the head
was above the settled position, the oldest unsettled record was there: so that is when its wait
began, late by at most the time between two tellings. Few of them are kept, the further back the
wider apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.decide.coordination.views.rates import Meter

KEPT_MAX = 64


@dataclass(slots=True)
class LogPulse:
    growth: Meter = field(default_factory=Meter)
    last_event_ms: int = 0
    head: int = 0
    settled: int = 0
    _first: int | None = None
    """The head when it was told the first time: what waited then may have waited for long."""
    _heads: list[tuple[int, int]] = field(default_factory=list)
    """Heads with their times, oldest first; all but what is settled."""

    def told(self, head: int, settled: int, now_ms: int) -> None:
        if self._first is None:
            self._first = head
        self.growth.read(head, now_ms)
        if head > self.head and self.head:
            self.last_event_ms = now_ms
        if head > self.head or not self._heads:
            self._heads.append((head, now_ms))
        self.head, self.settled = head, settled
        self._heads = [(seq, at_ms) for seq, at_ms in self._heads if seq > settled]
        if len(self._heads) > KEPT_MAX:
            # The oldest stays: it says for how long all of it has waited.
            self._heads = self._heads[:-1:2] + self._heads[-1:]

    @property
    def lag(self) -> int:
        return max(0, self.head - self.settled)

    @property
    def lag_known(self) -> bool:
        """Whether the oldest unsettled record came between two looks; otherwise it has waited
        for at least `lag_ms`."""
        return self._first is not None and self.settled >= self._first

    def lag_ms(self, now_ms: int) -> int:
        return max(0, now_ms - self._heads[0][1]) if self._heads else 0
