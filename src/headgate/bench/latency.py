"""`bench latency`: from the acknowledged produce to the event at its subscriber.

The demo's own run without its screen: the whole system, four subscribers, 200 events per second and
window changes in it; before that, the same events over a bare WebSocket as the baseline.
"""

from __future__ import annotations

import asyncio

from headgate.bench.conditions import machine, spark
from headgate.bench.echo import bare_latency
from headgate.bench.result import Benchmark, Failed, Result, Say
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
    return result_of(summary, bare, conditions)


def result_of(
    summary: Summary, bare: Histogram, conditions: dict[str, str | int | float]
) -> Result:
    bare_p50_ms, bare_p99_ms = bare.percentile_ms(50), bare.percentile_ms(99)
    return Result(
        name="latency",
        conditions=conditions,
        figures={
            "p50_ms": summary.p50_ms,
            "p99_ms": summary.p99_ms,
            "max_ms": summary.max_ms,
            "produced": summary.produced,
            "delivered": summary.delivered,
            "lost": summary.lost,
            "windows": summary.windows,
            "longest_gap_ms": summary.longest_gap_ms,
            "bare_p50_ms": round(bare_p50_ms, 3),
            "bare_p99_ms": round(bare_p99_ms, 3),
        },
        ratios={
            "p50_over_bare": _ratio(summary.p50_ms, bare_p50_ms),
            "p99_over_bare": _ratio(summary.p99_ms, bare_p99_ms),
        },
    )


def _ratio(measured: float, baseline: float) -> float:
    return round(measured / baseline, 2) if baseline > 0 else 0.0


def _ignore(_view: View) -> None:
    """A screen would cost time of the very process that measures."""


LATENCY = Benchmark(
    "latency", "from an acknowledged produce to its subscriber, at 200 events/s", run
)
