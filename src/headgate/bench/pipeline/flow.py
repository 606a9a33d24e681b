"""What samples of a flow say: how fast it was, and whether it kept up. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.bench.result import Failed

ALMOST = 0.99
"""Positions are saved every thousand events, and the rest by time, seconds later."""


@dataclass(frozen=True, slots=True)
class Sample:
    """At `at_s`, the log had `head` records in all, of which `settled` were settled; `cpu_s` of
    processor time had been used by then."""

    at_s: float
    settled: int
    head: int = 0
    cpu_s: float = 0.0

    @property
    def lag(self) -> int:
        return max(0, self.head - self.settled)


def ends_of(samples: Sequence[Sample]) -> tuple[Sample, Sample]:
    """Where a backlog began to flow, and where almost all of it was settled."""
    if len(samples) < 2:
        raise Failed("the backlog was settled at once: it is too small to be measured")
    return samples[0], samples[-1]


@dataclass(frozen=True, slots=True)
class Lag:
    """In records, on average: in the first third of a run, in the last, and the most there was."""

    first: float
    last: float
    most: int


def lag_of(samples: Sequence[Sample]) -> Lag:
    third = max(1, len(samples) // 3)
    lags = [one.lag for one in samples] or [0]
    return Lag(_mean(lags[:third]), _mean(lags[-third:]), max(lags))


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
