"""`bench latency`: from the acknowledged produce to the event at its subscriber.

The demo's own run without its screen: the whole system, four subscribers, 200 events per second.
Once with window changes in it, once within a single window, and before that the same events over a
bare WebSocket as the baseline.
"""

from __future__ import annotations

import asyncio

from headgate.bench.conditions import machine, spark
from headgate.bench.echo import bare_latency
from headgate.bench.result import Benchmark, Failed, Result, Say
from headgate.config import LoadedConfig
from headgate.demo.figures import Histogram
from headgate.demo.flight import FlightPath
from headgate.demo.stage import data_folder, demo_config, performance
from headgate.demo.summary import Summary
from headgate.demo.view import View
from headgate.demo.watches import WATCHES

PER_S = 200.0
SECONDS = 60.0
QUICK_SECONDS = 20.0
BARE_SECONDS = 10.0
QUICK_BARE_SECONDS = 4.0
NO_CHANGE_S = 1_800.0
"""A window that is longer than any run, its start included."""
SEED = 1


async def run(quick: bool, say: Say) -> Result:
    with data_folder() as data:
        loaded = demo_config(data)
        demo = loaded.config.demo
        plan = FlightPath(
            per_s=PER_S,
            partitions=demo.partitions,
            aircraft=demo.aircraft,
            seed=SEED,
            seconds=QUICK_SECONDS if quick else SECONDS,
        )
        conditions = {
            **machine(),
            **spark(),
            "events_per_s": PER_S,
            "seconds": plan.seconds or 0.0,
            "partitions": plan.partitions,
            "subscribers": len(WATCHES),
            "aircraft": plan.aircraft,
            "window_s": loaded.config.router.window,
        }
        say("measuring the bare WebSocket")
        bare = await bare_latency(
            per_s=PER_S,
            seconds=QUICK_BARE_SECONDS if quick else BARE_SECONDS,
            seed=SEED,
            aircraft=plan.aircraft,
        )
        say(f"a window every {loaded.config.router.window:g} s")
        changing = await _flown(loaded, plan, say)
    with data_folder() as data:
        say("a single window")
        steady = await _flown(demo_config(data, window_s=NO_CHANGE_S), plan, say)
    return result_of(changing, steady, bare, conditions)


async def _flown(loaded: LoadedConfig, plan: FlightPath, say: Say) -> Summary:
    async with performance(
        loaded,
        plan,
        asyncio.Event(),
        say=say,
        progress=lambda role: say(f"{role} is ready"),
        show=_ignore,
        show_every_s=1.0,
    ) as summary:
        say("done, stopping")
    assert summary is not None  # only a stop ends it early, and nobody holds that event
    if not summary.ok:
        raise Failed(f"the run was not clean: {summary.line()}")
    return summary


def result_of(
    changing: Summary,
    steady: Summary,
    bare: Histogram,
    conditions: dict[str, str | int | float],
) -> Result:
    """`changing` is the run in which windows changed, `steady` the one in which none did."""
    bare_p50_ms, bare_p99_ms = bare.percentile_ms(50), bare.percentile_ms(99)
    return Result(
        name="latency",
        conditions=conditions,
        figures={
            "p50_ms": changing.p50_ms,
            "p99_ms": changing.p99_ms,
            "max_ms": changing.max_ms,
            "produced": changing.produced,
            "delivered": changing.delivered,
            "lost": changing.lost,
            "windows": changing.windows,
            "longest_gap_ms": changing.longest_gap_ms,
            "steady_p50_ms": steady.p50_ms,
            "steady_p99_ms": steady.p99_ms,
            "steady_max_ms": steady.max_ms,
            "bare_p50_ms": round(bare_p50_ms, 3),
            "bare_p99_ms": round(bare_p99_ms, 3),
        },
        ratios={
            "p50_over_bare": _ratio(changing.p50_ms, bare_p50_ms),
            "p99_over_bare": _ratio(changing.p99_ms, bare_p99_ms),
            "window_p99": _ratio(changing.p99_ms, steady.p99_ms),
        },
    )


def _ratio(measured: float, baseline: float) -> float:
    return round(measured / baseline, 2) if baseline > 0 else 0.0


def _ignore(_view: View) -> None:
    """A screen would cost time of the very process that measures."""


LATENCY = Benchmark(
    "latency", "from an acknowledged produce to its subscriber, at 200 events/s", run
)
