"""`bench latency`: from the acknowledged produce to the event at its subscriber.

The demo's own run without its screen: the whole system, four subscribers, 200 events per second.
Once with window changes in it, once within a single window, and before that the same events over a
bare WebSocket as the baseline. Twice more within a single window: with nothing kept for those who
ask and nobody looking, and with evidence kept and ten browsers open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from headgate.bench.conditions import machine, spark
from headgate.bench.echo import bare_latency
from headgate.bench.onlookers import BROWSERS, check, look_on
from headgate.bench.result import Benchmark, Failed, Result, Say
from headgate.bench.worker import worker
from headgate.config import LoadedConfig
from headgate.demo.figures import Histogram
from headgate.demo.flight import FlightPath
from headgate.demo.stage import data_folder, demo_config, performance
from headgate.demo.summary import Summary
from headgate.demo.view import View
from headgate.demo.watches import WATCHES
from headgate.tasks import Helpers

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
    with data_folder() as data:
        say("nothing kept, nobody looking")
        alone = await _flown(_keeping_nothing(demo_config(data, window_s=NO_CHANGE_S)), plan, say)
    with data_folder() as data:
        say(f"evidence kept, {BROWSERS} browsers open")
        watched = await _watched(demo_config(data, window_s=NO_CHANGE_S), plan, say)
    return result_of(Runs(changing, steady, alone, watched), bare, conditions)


def _keeping_nothing(loaded: LoadedConfig) -> LoadedConfig:
    config = loaded.config
    evidence = config.evidence.model_copy(update={"size": 0})
    return replace(loaded, config=config.model_copy(update={"evidence": evidence}))


async def _watched(loaded: LoadedConfig, plan: FlightPath, say: Say) -> Summary:
    async with worker("headgate.bench.onlookers") as eyes, Helpers() as helpers:
        opened: list[asyncio.Future[None]] = []

        def open_browsers(url: str) -> None:
            opened.append(helpers.start(look_on(eyes, url)))

        summary = await _flown(loaded, plan, say, began=open_browsers, ended=partial(check, eyes))
        assert all(one.done() for one in opened)
        return summary


async def _flown(
    loaded: LoadedConfig,
    plan: FlightPath,
    say: Say,
    *,
    began: Say = lambda _: None,
    ended: Callable[[], Awaitable[None]] | None = None,
) -> Summary:
    """`ended` is called when all has arrived, before the system stops."""
    async with performance(
        loaded,
        plan,
        asyncio.Event(),
        say=say,
        progress=lambda role: say(f"{role} is ready"),
        show=_ignore,
        show_every_s=1.0,
        began=began,
    ) as summary:
        if ended is not None:
            await ended()
        say("done, stopping")
    assert summary is not None  # only a stop ends it early, and nobody holds that event
    if not summary.ok:
        raise Failed(f"the run was not clean: {summary.line()}")
    return summary


@dataclass(frozen=True, slots=True)
class Runs:
    """`changing` is the run in which windows changed, `steady` the one in which none did; `alone`
    and `watched` are two more like that, without and with evidence and browsers."""

    changing: Summary
    steady: Summary
    alone: Summary
    watched: Summary


def result_of(runs: Runs, bare: Histogram, conditions: dict[str, str | int | float]) -> Result:
    changing, steady, alone, watched = runs.changing, runs.steady, runs.alone, runs.watched
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
            "alone_sent_p50_ms": alone.sent_p50_ms,
            "alone_sent_p99_ms": alone.sent_p99_ms,
            "watched_sent_p50_ms": watched.sent_p50_ms,
            "watched_sent_p99_ms": watched.sent_p99_ms,
            "bare_p50_ms": round(bare_p50_ms, 3),
            "bare_p99_ms": round(bare_p99_ms, 3),
        },
        ratios={
            "p50_over_bare": _ratio(changing.p50_ms, bare_p50_ms),
            "p99_over_bare": _ratio(changing.p99_ms, bare_p99_ms),
            "window_p99": _ratio(changing.p99_ms, steady.p99_ms),
            # As of rates: 1 is as fast as alone, less is slower. From before an event is sent, as
            # on a busy machine half of them come before their own acknowledgement.
            "watched": _ratio(alone.sent_p50_ms, watched.sent_p50_ms),
            "watched_p99": _ratio(alone.sent_p99_ms, watched.sent_p99_ms),
        },
    )


def _ratio(measured: float, baseline: float) -> float:
    return round(measured / baseline, 2) if baseline > 0 else 0.0


def _ignore(_view: View) -> None:
    """A screen would cost time of the very process that measures."""


LATENCY = Benchmark(
    "latency", "from an acknowledged produce to its subscriber, at 200 events/s", run
)
