"""`bench pipeline`: events through the lanes on Spark, as fast as they go and at a steady rate.

First a prepared backlog: log -> match -> acknowledged by the gateway, against the same log read by
the same Spark session through an identity into the noop sink. Then everything at once: events are
produced at a steady rate, and those that match must all reach their subscribers.

A run in which one delivery is missing, or one too many, gives no figures: it fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.bench.conditions import machine, spark
from headgate.bench.pipeline.events import EVERY, SUBSCRIPTIONS, matching
from headgate.bench.pipeline.flow import ALMOST, Lag, Sample, ends_of, lag_of
from headgate.bench.pipeline.load import Produce, Produced
from headgate.bench.pipeline.stage import PARTITIONS, Stage, everything_running
from headgate.bench.result import Benchmark, Failed, Result, Say
from headgate.demo.stage import data_folder
from headgate.tasks import Helpers

LOOK_EVERY_S = 0.025
SAMPLE_EVERY_S = 1.0
SAY_EVERY_S = 10.0
PATIENCE_S = 60.0
SLOWEST_PER_S = 5_000
"""A backlog that goes slower than this has got stuck."""


@dataclass(frozen=True, slots=True)
class Sizes:
    backlog: int
    baselines: int
    per_s: float
    seconds: float


PER_S = 10_200.0
"""The last event's way counts too: a little more than 10,000 must be produced per second."""
QUICK = Sizes(backlog=300_000, baselines=2, per_s=PER_S, seconds=20.0)
FULL = Sizes(backlog=2_000_000, baselines=3, per_s=PER_S, seconds=300.0)
EVENTS_PER_REQUEST = 100
BACKLOG_EVENTS_PER_REQUEST = 500
PRODUCERS = 8


@dataclass(frozen=True, slots=True)
class Pass:
    """Once through the backlog; the processor time is that of all processes that had a part."""

    per_s: float
    cpu_us_per_event: float


@dataclass(frozen=True, slots=True)
class Drained:
    """A backlog through the lanes, and each time that Spark alone read it."""

    lanes: Pass
    noops: Sequence[Pass]

    @property
    def noop(self) -> Pass:
        """The fastest: nothing flatters the lanes."""
        return max(self.noops, key=lambda one: one.per_s)


@dataclass(frozen=True, slots=True)
class Sustained:
    """`seconds` until the last delivery had arrived."""

    events: int
    seconds: float
    delivered: int
    late_ms: float
    lag: Lag


async def run(quick: bool, say: Say) -> Result:
    sizes = QUICK if quick else FULL
    conditions = {
        **machine(),
        **spark(),
        "partitions": PARTITIONS,
        "subscriptions": SUBSCRIPTIONS,
        "matching_percent": 100 // EVERY,
        "backlog_events": sizes.backlog,
        "baseline_runs": sizes.baselines,
        "produced_per_s": sizes.per_s,
        "sustained_s": sizes.seconds,
    }
    with data_folder() as folder:
        async with everything_running(Path(folder), say) as stage:
            await _prepare(stage, sizes, say)
            drained = await _drain(stage, sizes, say)
            sustained = await _sustain(stage, sizes, say)
            say("done, stopping")
            await stage.stop_routing()
            await _check_positions(stage)
    return result_of(drained, sustained, conditions)


def result_of(
    drained: Drained, sustained: Sustained, conditions: dict[str, str | int | float]
) -> Result:
    lag = sustained.lag
    return Result(
        name="pipeline",
        conditions=conditions,
        figures={
            "events_per_s": round(drained.lanes.per_s),
            "cpu_us_per_event": round(drained.lanes.cpu_us_per_event, 2),
            "noop_events_per_s": round(drained.noop.per_s),
            "noop_cpu_us_per_event": round(drained.noop.cpu_us_per_event, 2),
            "sustained_events_per_s": round(sustained.events / sustained.seconds, 1),
            "sustained_delivered": sustained.delivered,
            "sustained_lag_first": round(lag.first),
            "sustained_lag_last": round(lag.last),
            "sustained_lag_max": lag.most,
            "producer_late_ms": sustained.late_ms,
        },
        ratios={
            "over_noop": _ratio(drained.lanes.per_s, drained.noop.per_s),
            "over_noop_cpu": _ratio(drained.noop.cpu_us_per_event, drained.lanes.cpu_us_per_event),
        },
    )


def _ratio(measured: float, baseline: float) -> float:
    return round(measured / baseline, 3) if baseline > 0 else 0.0


# --- the parts -----------------------------------------------------------------------------------


async def _prepare(stage: Stage, sizes: Sizes, say: Say) -> None:
    """Spark starts while the backlog is produced, and reads what there is of it to get warm."""
    say(f"starting Spark, and producing a backlog of {sizes.backlog:,} events meanwhile")
    await stage.create_topic()
    # Before there is a backlog, so that all of it is for them; and before there are lanes.
    await stage.subscribe()
    order = Produce(
        await stage.ingest_url(), 0, sizes.backlog, BACKLOG_EVENTS_PER_REQUEST, PRODUCERS
    )
    async with asyncio.TaskGroup() as both:
        both.create_task(stage.produce(order))
        both.create_task(_warm_up(stage))


async def _warm_up(stage: Stage) -> None:
    await stage.spark_opened()
    await stage.baseline()


async def _drain(stage: Stage, sizes: Sizes, say: Say) -> Drained:
    noops = []
    for _ in range(sizes.baselines):
        say("Spark alone reads the log")
        cpu_s = stage.cpu_s()
        seconds = await stage.baseline()
        cpu_s = stage.cpu_s() - cpu_s
        noops.append(Pass(sizes.backlog / seconds, cpu_s / sizes.backlog * 1e6))
    say("the lanes read the log, match and deliver")
    async with Helpers() as helpers:
        routing = helpers.start(stage.route())
        lanes = await _watched(stage, sizes.backlog)
        await routing
    wanted = matching(0, sizes.backlog)
    _check(await stage.delivered(wanted, PATIENCE_S), wanted)
    return Drained(lanes, noops)


async def _watched(stage: Stage, total: int) -> Pass:
    """From the first position that is seen until almost all of it is settled: the last positions
    are saved by time, seconds later."""
    samples: list[Sample] = []
    settled = 0
    try:
        async with asyncio.timeout(PATIENCE_S + total / SLOWEST_PER_S):
            while settled < total * ALMOST:
                await asyncio.sleep(LOOK_EVERY_S)
                settled = await stage.positions.settled()
                ends = not samples or settled >= total * ALMOST
                if settled and ends:  # looking at every process takes milliseconds
                    samples.append(Sample(time.perf_counter(), settled, cpu_s=stage.cpu_s()))
    except TimeoutError:
        raise Failed(f"only {settled:,} of {total:,} events were settled") from None
    first, last = ends_of(samples)
    events = last.settled - first.settled
    return Pass(events / (last.at_s - first.at_s), (last.cpu_s - first.cpu_s) / events * 1e6)


async def _sustain(stage: Stage, sizes: Sizes, say: Say) -> Sustained:
    say(f"{sizes.per_s:,.0f} events/s for {sizes.seconds:g} s, from producers to subscribers")
    events = int(sizes.per_s * sizes.seconds)
    order = Produce(
        await stage.ingest_url(),
        sizes.backlog,
        events,
        EVENTS_PER_REQUEST,
        PRODUCERS,
        per_s=sizes.per_s,
    )
    before = matching(0, sizes.backlog)
    wanted = before + matching(sizes.backlog, events)
    began_s = time.perf_counter()
    async with Helpers() as helpers:
        producing = helpers.start(stage.produce(order))
        samples = await _sampled(stage, producing, began_s, sizes, say)
        produced = await producing
        _check(await stage.delivered(wanted, PATIENCE_S), wanted)
    return Sustained(
        events=events,
        seconds=time.perf_counter() - began_s,
        delivered=wanted - before,
        late_ms=produced.late_ms,
        lag=lag_of(samples),
    )


async def _sampled(
    stage: Stage, producing: asyncio.Future[Produced], began_s: float, sizes: Sizes, say: Say
) -> list[Sample]:
    """Until everything is produced."""
    samples: list[Sample] = []
    said_s = began_s
    while not producing.done():
        await asyncio.wait({producing}, timeout=SAMPLE_EVERY_S)
        settled, head = await stage.positions.settled(), await stage.positions.head()
        now_s = time.perf_counter()
        samples.append(Sample(now_s, settled, head))
        if now_s - said_s >= SAY_EVERY_S:
            said_s = now_s
            say(
                f"{now_s - began_s:.0f} of {sizes.seconds:.0f} s: {head - sizes.backlog:,} events, "
                f"{samples[-1].lag:,} of them not settled yet"
            )
    return samples


async def _check_positions(stage: Stage) -> None:
    settled, head = await stage.positions.settled(), await stage.positions.head()
    if settled != head:
        raise Failed(f"{settled:,} of {head:,} events were settled when the router had stopped")


def _check(delivered: int, wanted: int) -> None:
    if delivered != wanted:
        raise Failed(f"{delivered:,} events were delivered instead of {wanted:,}")


PIPELINE = Benchmark(
    "pipeline", "events through the lanes on Spark, and 10,000 events/s through everything", run
)
