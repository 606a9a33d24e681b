"""`bench match`: how long one core takes to match an event, from a thousand subscriptions to a
million.

JSON parsing is in the figures, and so are 1,000 subscription changes per second. Cases of the same
size are built side by side, to save time, and measured one after the other.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec

from headgate.bench.conditions import machine
from headgate.bench.match.case import (
    CHANGES_PER_S,
    AskAll,
    Asked,
    Build,
    Built,
    Measure,
    Measured,
)
from headgate.bench.match.workloads import MIXTURE, WORKLOADS
from headgate.bench.result import Benchmark, Failed, Result, Say
from headgate.bench.worker import worker

SIZES = {"1k": 1_000, "10k": 10_000, "100k": 100_000, "1m": 1_000_000}
SIDE_BY_SIDE = 2
NAIVE_SIZE = "1k"


@dataclass(frozen=True, slots=True)
class Extent:
    workloads: tuple[str, ...]
    sizes: tuple[str, ...]
    rounds: int
    round_s: float


QUICK = Extent(("equality", "mixed"), ("1k", "100k", "1m"), rounds=3, round_s=0.5)
FULL = Extent(tuple(WORKLOADS), tuple(SIZES), rounds=5, round_s=2.0)


class CaseResult(msgspec.Struct):
    workload: str
    size: str
    built: Built
    rounds: list[Measured]

    @property
    def us_per_event(self) -> float:
        return statistics.median(each.seconds / each.events * 1e6 for each in self.rounds)


async def run(quick: bool, say: Say) -> Result:
    extent = QUICK if quick else FULL
    conditions = {
        **machine(),
        "changes_per_s": CHANGES_PER_S,
        "rounds": extent.rounds,
        "round_s": extent.round_s,
        "mixture": ", ".join(f"{percent} % {form.__name__[1:]}" for percent, form in MIXTURE),
        "clock": "processor time of one thread",
    }
    cases: list[CaseResult] = []
    for size in extent.sizes:
        for at in range(0, len(extent.workloads), SIDE_BY_SIDE):
            some = extent.workloads[at : at + SIDE_BY_SIDE]
            say(f"{size} subscriptions: {' and '.join(some)}")
            cases += await _measured(some, size, extent)
    async with worker("headgate.bench.match.case") as process:
        asked = await process.ask(AskAll("mixed", SIZES[NAIVE_SIZE]), Asked)
    return result_of(cases, asked, conditions)


async def _measured(workloads: Iterable[str], size: str, extent: Extent) -> list[CaseResult]:
    results = []
    async with AsyncExitStack() as stack:
        processes = [
            (workload, await stack.enter_async_context(worker("headgate.bench.match.case")))
            for workload in workloads
        ]
        built = await asyncio.gather(
            *(process.ask(Build(name, SIZES[size]), Built) for name, process in processes)
        )
        for (workload, process), one in zip(processes, built, strict=True):
            order = Measure(extent.round_s)
            rounds = [await process.ask(order, Measured) for _ in range(extent.rounds)]
            results.append(CaseResult(workload, size, one, rounds))
    return results


def result_of(
    cases: list[CaseResult], asked: Asked, conditions: dict[str, str | int | float]
) -> Result:
    figures: dict[str, float] = {}
    for case in cases:
        figures |= _figures(case)
    by_name = {(case.workload, case.size): case for case in cases}
    ratios: dict[str, float] = {}
    for workload in dict.fromkeys(case.workload for case in cases):
        largest, smallest = by_name[workload, "1m"], by_name[workload, "1k"]
        ratios[f"{workload}_us_1m_over_1k"] = largest.us_per_event / smallest.us_per_event
    # The promise is for every workload, so the worst one counts.
    ratios["us_1m_over_1k"] = max(ratios.values())
    largest = by_name["mixed", "1m"]
    figures["bytes_per_subscription"] = largest.built.bytes / SIZES["1m"]
    figures["change_us"] = _change_us(largest.rounds)
    figures["naive_1k_us_per_event"] = asked.seconds / asked.events * 1e6
    mixed = by_name["mixed", NAIVE_SIZE].us_per_event
    ratios["naive_over_index_1k"] = figures["naive_1k_us_per_event"] / mixed
    event_bytes = statistics.mean(case.rounds[0].event_bytes for case in cases)
    return Result(
        name="match",
        conditions={**conditions, "event_bytes": round(event_bytes)},
        figures={name: _rounded(value) for name, value in figures.items()},
        ratios={name: round(value, 2) for name, value in ratios.items()},
    )


def _figures(case: CaseResult) -> dict[str, float]:
    if any(each.failures for each in case.rounds):
        raise Failed(f"filters of the {case.workload} workload failed")
    name = f"{case.workload}_{case.size}"
    count = sum(each.events for each in case.rounds)
    return {
        f"{name}_events_per_s": 1e6 / case.us_per_event,
        f"{name}_us_per_event": case.us_per_event,
        f"{name}_matches_per_event": sum(each.matches for each in case.rounds) / count,
        f"{name}_match_share": sum(each.matching_events for each in case.rounds) / count,
        f"{name}_build_s": case.built.seconds,
        f"{name}_bytes_per_subscription": case.built.bytes / SIZES[case.size],
    }


def _change_us(rounds: list[Measured]) -> float:
    changes = sum(each.changes for each in rounds)
    return sum(each.changing_s for each in rounds) / max(changes, 1) * 1e6


def _rounded(value: float) -> float:
    """Four digits are more than such a measurement gives."""
    return round(value) if value >= 1_000 else float(f"{value:.4g}")


MATCH = Benchmark("match", "µs per event against up to a million subscriptions, one core", run)
