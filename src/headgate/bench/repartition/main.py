"""`bench repartition`: what producers and subscribers notice of a topic's cutover.

Events flow steadily for a while, then for as long again with a repartition to more partitions in
it, then for as long again with one to fewer; each is compared with the while before. And the fence
is timed with and without a backlog. Coordinator, ingest node, gateway and router run as processes,
the router's lanes without Spark.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.bench.conditions import machine
from headgate.bench.rebalance.main import percentile
from headgate.bench.rebalance.stage import Stage, roles_running
from headgate.bench.repartition.backlog import Fences, measure_fences
from headgate.bench.repartition.phases import PHASES, Cutover, create, repartition, until_read
from headgate.bench.repartition.router import Done, Route
from headgate.bench.repartition.traffic import (
    KEYS,
    Seen,
    Sent,
    longest_hold_ms,
    seen_between,
    traffic,
)
from headgate.bench.result import Benchmark, Failed, Result, Say
from headgate.bench.worker import worker
from headgate.client.http import HttpClient
from headgate.config import environment_of
from headgate.demo.stage import data_folder

TOPIC = "load"
BEGINS_WITH = 4
CUTOVERS = {"grow": 8, "shrink": 6}
"""The counts it gets, one after the other."""
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Sizes:
    per_s: float
    warm_s: float
    window_s: float
    backlog: int


QUICK = Sizes(per_s=200.0, warm_s=1.0, window_s=7.0, backlog=20_000)
FULL = Sizes(per_s=500.0, warm_s=5.0, window_s=60.0, backlog=1_000_000)


@dataclass(frozen=True, slots=True)
class Watched:
    """A stretch of time with a cutover in it."""

    seen: Seen
    cutover: Cutover
    hold_ms: float


@dataclass(frozen=True, slots=True)
class Measured:
    before: Seen
    with_cutover: dict[str, Watched]


async def run(quick: bool, say: Say) -> Result:
    sizes = QUICK if quick else FULL
    conditions = {
        **machine(),
        "events_per_s": sizes.per_s,
        "keys": KEYS,
        "window_s": sizes.window_s,
        "backlog": sizes.backlog,
        "partitions": " -> ".join(map(str, (BEGINS_WITH, *CUTOVERS.values()))),
        "spark": "none: the router runs its lanes without it",
    }
    with data_folder() as folder:
        async with roles_running(Path(folder), say) as stage:
            fences = await measure_fences(stage, sizes.backlog, say)
            async with _router(stage, say):
                measured = await measure_cutovers(stage, sizes, say)
                say("done, stopping")
    return result_of(measured, fences, conditions)


@asynccontextmanager
async def _router(stage: Stage, say: Say) -> AsyncIterator[None]:
    say("starting a router without Spark")
    own = stage.config.model_copy(update={"client_id": "router-1", "data": stage.data})
    async with worker("headgate.bench.repartition.router") as router:
        done = await router.ask(Route(environment_of(own)), Done)
        if done.fault:
            raise Failed(done.fault)
        yield


async def measure_cutovers(stage: Stage, sizes: Sizes, say: Say) -> Measured:
    async with HttpClient(stage.coordinator_url, timeout_s=TIMEOUT_S) as http:
        await create(http, TOPIC, BEGINS_WITH)
        await until_read(http, TOPIC, BEGINS_WITH)
        async with traffic(stage.url, TOPIC, sizes.per_s) as flow:
            await asyncio.sleep(sizes.warm_s)
            say(f"watching {sizes.per_s:g} events/s for {sizes.window_s:g} s")
            begins_s = [time.monotonic()]
            await asyncio.sleep(sizes.window_s)
            cutovers: dict[str, Cutover] = {}
            for name, to in CUTOVERS.items():
                say(f"repartitioning to {to}, and watching for {sizes.window_s:g} s")
                begins_s.append(time.monotonic())
                cutovers[name] = await repartition(http, TOPIC, to, whole=True)
                # One that takes longer than that is watched to its end.
                await asyncio.sleep(begins_s[-1] + sizes.window_s - time.monotonic())
            begins_s.append(time.monotonic())
            await flow.finish()
    return measured_of(flow.events, begins_s, cutovers)


def measured_of(
    events: list[Sent], begins_s: list[float], cutovers: dict[str, Cutover]
) -> Measured:
    """`begins_s` has where each stretch begins, that without a cutover first, and the end."""
    before, *rest = (
        seen_between(events, begun_s, ended_s) for begun_s, ended_s in itertools.pairwise(begins_s)
    )
    return Measured(
        before,
        {
            name: Watched(seen, one, longest_hold_ms(events, one.asked_s, one.fenced_s))
            for (name, one), seen in zip(cutovers.items(), rest, strict=True)
        },
    )


def result_of(
    measured: Measured, fences: Fences, conditions: dict[str, str | int | float]
) -> Result:
    before, watched = measured.before, measured.with_cutover
    figures: dict[str, float] = {
        "longest_hold_ms": round(max(one.hold_ms for one in watched.values()), 2),
        "failed": before.failed + sum(one.seen.failed for one in watched.values()),
        "fence_with_backlog_ms": round(fences.with_ms, 2),
        "backlog_unsettled": fences.backlog,
        "fence_without_backlog_ms": round(fences.without_ms, 2),
        **_spread("before", before),
    }
    ratios: dict[str, float] = {}
    for name, one in watched.items():
        figures |= _spread(name, one.seen)
        figures[f"{name}_hold_ms"] = round(one.hold_ms, 2)
        figures[f"{name}_fence_ms"] = round(one.cutover.fence_ms, 2)
        for phase in PHASES:
            figures[f"{name}_{phase}_ms"] = round(one.cutover.phases_ms.get(phase, 0.0), 2)
        ratios[f"{name}_produce_p99"] = _over(one.seen.produce_ms, before.produce_ms)
        ratios[f"{name}_deliver_p99"] = _over(one.seen.deliver_ms, before.deliver_ms)
    return Result(
        name="repartition",
        conditions=conditions,
        figures=figures,
        ratios={
            "produce_p99": max(ratios[f"{name}_produce_p99"] for name in watched),
            "deliver_p99": max(ratios[f"{name}_deliver_p99"] for name in watched),
            "fence_with_backlog": _ratio(fences.with_ms, fences.without_ms),
            **ratios,
        },
    )


def _spread(name: str, seen: Seen) -> dict[str, float]:
    return {
        f"{name}_events": len(seen.produce_ms),
        **{
            f"{name}_{what}_p{percent}_ms": percentile(ordered, percent)
            for what, ordered in (("produce", seen.produce_ms), ("deliver", seen.deliver_ms))
            for percent in (50, 99, 100)
        },
    }


def _over(measured: list[float], baseline: list[float]) -> float:
    return _ratio(percentile(measured, 99), percentile(baseline, 99))


def _ratio(measured: float, baseline: float) -> float:
    return round(measured / baseline, 3) if baseline > 0 else 0.0


REPARTITION = Benchmark(
    "repartition", "a topic gets more partitions, then fewer, while events flow", run
)
