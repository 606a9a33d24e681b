"""`bench rebalance`: what it costs to change owners while everything runs.

Three parts: a plan for many partitions on many nodes; one more router that joins while events flow;
and a topology change that thousands of connected clients must adopt. Coordinator, ingest node and
gateway run as processes. The routers do too, with real lanes but without Spark, because eleven
Spark applications don't fit on one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from headgate.bench.conditions import machine
from headgate.bench.rebalance.floor import PARTITIONS as FLOOR_PARTITIONS
from headgate.bench.rebalance.floor import Floor, measure_floor
from headgate.bench.rebalance.join import Joined, JoinSizes, measure_join
from headgate.bench.rebalance.plan import NODES, PARTITIONS, Planned, measure_plan
from headgate.bench.rebalance.stage import allow_files, roles_running
from headgate.bench.result import Benchmark, Result, Say
from headgate.demo.stage import data_folder


@dataclass(frozen=True, slots=True)
class Sizes:
    clients: int
    join: JoinSizes


QUICK = Sizes(1_000, JoinSizes(nodes=4, partitions=100, per_s=100.0, warm_s=2.0, before_s=10.0))
FULL = Sizes(10_000, JoinSizes(nodes=10, partitions=1_000, per_s=200.0, warm_s=10.0, before_s=60.0))


async def run(quick: bool, say: Say) -> Result:
    sizes = QUICK if quick else FULL
    join = sizes.join
    allow_files(join.partitions)
    conditions = {
        **machine(),
        "grpc": grpc.__version__,
        "plan_partitions": PARTITIONS,
        "plan_nodes": NODES,
        "routers": join.nodes,
        "partitions": join.partitions,
        "events_per_s": join.per_s,
        "before_s": join.before_s,
        "clients": sizes.clients,
        "client_partitions": FLOOR_PARTITIONS,
        "spark": "none: the routers run their lanes without it",
    }
    say("planning")
    planned = measure_plan()
    with data_folder() as folder:
        async with roles_running(Path(folder), say) as stage:
            floor = await measure_floor(stage, sizes.clients, say)
            joined = await measure_join(stage, join, say)
            say("done, stopping")
    return result_of(planned, joined, floor, conditions)


def result_of(
    planned: Planned,
    joined: Joined,
    floor: Floor,
    conditions: dict[str, str | int | float],
) -> Result:
    seen = joined.latencies
    return Result(
        name="rebalance",
        conditions=conditions,
        figures={
            "plan_s": round(planned.plan_s, 4),
            "plan_moved": planned.moved,
            "moved": joined.moved,
            "moved_minimum": joined.minimum,
            "join_s": round(joined.join_s, 3),
            "join_planned_s": round(joined.planned_s, 3),
            "join_share": joined.share,
            "moved_pause_p50_ms": percentile(joined.pauses_ms, 50),
            "moved_pause_p99_ms": percentile(joined.pauses_ms, 99),
            "unmoved_delayed": seen.unmoved_delayed,
            "unmoved_deliveries": len(seen.unmoved_ms),
            **_spread("unmoved", seen.unmoved_ms),
            "before_deliveries": len(seen.before_ms),
            **_spread("before", seen.before_ms),
            "clients": floor.clients,
            "clients_connect_s": round(floor.connect_s, 3),
            "floor_s": round(floor.floor_s, 3),
            "floor_heard_s": round(floor.heard_s, 3),
            "bare_floor_s": round(floor.bare_s, 3),
        },
        ratios={
            "moved_over_minimum": _ratio(joined.moved, joined.minimum),
            "plan_moved_over_minimum": _ratio(planned.moved, planned.minimum),
            "unmoved_p99_over_before": _over(seen.unmoved_ms, seen.before_ms, 99),
            "unmoved_max_over_before": _over(seen.unmoved_ms, seen.before_ms, 100),
            "floor_over_bare": _ratio(floor.floor_s, floor.bare_s),
        },
    )


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The value that `percent` of all don't exceed; 0 when there are none."""
    if not ordered:
        return 0.0
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 2)


def _spread(name: str, ordered: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}_p50_ms": percentile(ordered, 50),
        f"{name}_p99_ms": percentile(ordered, 99),
        f"{name}_max_ms": percentile(ordered, 100),
    }


def _over(measured: Sequence[float], baseline: Sequence[float], percent: int) -> float:
    return _ratio(percentile(measured, percent), percentile(baseline, percent))


def _ratio(measured: float, baseline: float) -> float:
    return round(measured / baseline, 3) if baseline > 0 else 0.0


REBALANCE = Benchmark(
    "rebalance", "a router joins, a topology reaches 10,000 clients, a plan is made", run
)
