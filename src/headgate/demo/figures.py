"""Figures over a run of any length in a fixed amount of memory: percentiles, rates, pace.

Invariant: nothing here grows with the number of events. Time always arrives as an argument.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable

GROWTH = 1.02
"""Each bucket is 2 % wider than the one before: no percentile is off by more than 1 %."""

SMALLEST_MS = 0.01
LARGEST_MS = 86_400_000.0
_LOG_GROWTH = math.log(GROWTH)


class Histogram:
    """Durations in milliseconds, counted in buckets of equal ratio; `max_ms` is exact."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.max_ms = 0.0

    def add(self, duration_ms: float) -> None:
        clipped_ms = min(max(duration_ms, 0.0), LARGEST_MS)
        self._buckets[_bucket(clipped_ms)] += 1
        self.count += 1
        self.max_ms = max(self.max_ms, clipped_ms)

    def percentile_ms(self, percent: float) -> float:
        """The duration that `percent` of all don't exceed; 0 when there are none."""
        rank = max(1, math.ceil(self.count * percent / 100))
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(_middle_ms(bucket), self.max_ms)
        return 0.0

    @classmethod
    def merged(cls, parts: Iterable[Histogram]) -> Histogram:
        whole = cls()
        for part in parts:
            whole._buckets.update(part._buckets)
            whole.count += part.count
            whole.max_ms = max(whole.max_ms, part.max_ms)
        return whole


def _bucket(duration_ms: float) -> int:
    if duration_ms < SMALLEST_MS:
        return -1
    return int(math.log(duration_ms / SMALLEST_MS) / _LOG_GROWTH)


def _middle_ms(bucket: int) -> float:
    return 0.0 if bucket < 0 else SMALLEST_MS * GROWTH ** (bucket + 0.5)


class RecentHistogram:
    """The durations of the last `span_s` seconds, to the second."""

    def __init__(self, span_s: int = 10) -> None:
        self._span_s = span_s
        self._seconds: deque[tuple[int, Histogram]] = deque(maxlen=span_s)

    def add(self, duration_ms: float, *, at_s: float) -> None:
        second = int(at_s)
        if not self._seconds or self._seconds[-1][0] < second:
            self._seconds.append((second, Histogram()))
        self._seconds[-1][1].add(duration_ms)

    def at(self, now_s: float) -> Histogram:
        oldest = int(now_s) - self._span_s
        return Histogram.merged(part for second, part in self._seconds if second > oldest)


class Meter:
    """How fast a total grows, over the last `span_s` seconds."""

    def __init__(self, span_s: float = 5.0, *, samples: int = 64) -> None:
        self._span_s = span_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=samples)

    def sample(self, total: float, *, at_s: float) -> float:
        """Note the total and return its growth per second; a total that fell starts anew."""
        if self._samples and total < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((at_s, total))
        while len(self._samples) > 2 and self._samples[0][0] < at_s - self._span_s:
            self._samples.popleft()
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


class Pace:
    """When each event is due, counted from the start: event n at n / rate, without drift.

    A pause of more than `patience_s` is not made up for, since a burst would measure itself.
    """

    def __init__(self, *, per_s: float, start_s: float, patience_s: float = 0.25) -> None:
        self._interval_s = 1 / per_s
        self._patience_s = patience_s
        self.due_s = start_s
        """When the next event is due."""

    def take(self, now_s: float) -> int:
        """How many events are due by now; they count as sent."""
        if now_s - self.due_s > self._patience_s:
            self.due_s = now_s
        if now_s < self.due_s:
            return 0
        count = int((now_s - self.due_s) / self._interval_s) + 1
        self.due_s += count * self._interval_s
        return count
