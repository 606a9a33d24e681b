"""Every benchmark there is, by name."""

from __future__ import annotations

from headgate.bench.append import APPEND
from headgate.bench.connector import CONNECTOR
from headgate.bench.deliver import DELIVER
from headgate.bench.failover import FAILOVER
from headgate.bench.fanout import FANOUT
from headgate.bench.latency import LATENCY
from headgate.bench.match import MATCH
from headgate.bench.pipeline import PIPELINE
from headgate.bench.rebalance import REBALANCE
from headgate.bench.repartition import REPARTITION
from headgate.bench.result import Benchmark
from headgate.bench.subscriptions import SUBSCRIPTIONS

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        LATENCY,
        APPEND,
        MATCH,
        SUBSCRIPTIONS,
        FANOUT,
        DELIVER,
        REBALANCE,
        REPARTITION,
        PIPELINE,
        CONNECTOR,
        FAILOVER,
    )
}
