"""Latencies as counts per bucket: recorded, added up, and what is new since an earlier count.

Invariant: every latency is in exactly one bucket, the first whose upper bound isn't below it.
"""

from __future__ import annotations

from bisect import bisect_left

from headgate.model.control.reports import LATENCY_BUCKETS_S, Latencies

SIZE = len(LATENCY_BUCKETS_S) + 1


class Stopwatch:
    """Counts latencies, at the cost of one search among a few bounds."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * SIZE
        self._sum_s = 0.0

    def took(self, seconds: float) -> None:
        self._counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self._sum_s += seconds

    def so_far(self) -> Latencies:
        return Latencies(tuple(self._counts), round(self._sum_s, 6))


def plus(one: Latencies, other: Latencies) -> Latencies:
    counts = tuple(a + b for a, b in zip(_counts(one), _counts(other), strict=True))
    return Latencies(counts, one.sum_s + other.sum_s)


def since(now: Latencies, before: Latencies) -> Latencies:
    """What came between two counts of the same latencies."""
    counts = tuple(a - b for a, b in zip(_counts(now), _counts(before), strict=True))
    return Latencies(counts, now.sum_s - before.sum_s)


def quantile_s(latencies: Latencies, part: float) -> float | None:
    """Within which so large a part of them stayed; None where there are none. Inside a bucket they
    are taken to lie evenly, and above the last bound it is that bound."""
    counts = _counts(latencies)
    wanted, below, lower = sum(counts) * part, 0, 0.0
    for bound, inside in zip(LATENCY_BUCKETS_S, counts, strict=False):
        if inside and below + inside >= wanted:
            return lower + (bound - lower) * (wanted - below) / inside
        below, lower = below + inside, bound
    return LATENCY_BUCKETS_S[-1] if any(counts) else None


def cumulative(latencies: Latencies) -> list[tuple[str, float]]:
    """Per bound, and for infinity, how many were at or below it."""
    bounds = [*(str(bound) for bound in LATENCY_BUCKETS_S), "+Inf"]
    found: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip(bounds, _counts(latencies), strict=True):
        total += count
        found.append((bound, total))
    return found


def _counts(latencies: Latencies) -> tuple[int, ...]:
    # Another version may have other buckets; its counts can't be told apart here.
    return latencies.counts if len(latencies.counts) == SIZE else (0,) * SIZE
