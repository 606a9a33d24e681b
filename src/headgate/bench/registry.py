"""Every benchmark there is, by name."""

from __future__ import annotations

from headgate.bench.append.main import APPEND
from headgate.bench.connector.main import CONNECTOR
from headgate.bench.deliver.main import DELIVER
from headgate.bench.failover.main import FAILOVER
from headgate.bench.fanout.main import FANOUT
from headgate.bench.flood.main import FLOOD
from headgate.bench.latency import LATENCY
from headgate.bench.match.main import MATCH
from headgate.bench.pipeline.main import PIPELINE
from headgate.bench.rebalance.main import REBALANCE
from headgate.bench.repartition.main import REPARTITION
from headgate.bench.result import Benchmark
from headgate.bench.subscriptions.main import SUBSCRIPTIONS

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        LATENCY,
        APPEND,
        MATCH,
        SUBSCRIPTIONS,
        FANOUT,
        FLOOD,
        DELIVER,
        REBALANCE,
        REPARTITION,
        PIPELINE,
        CONNECTOR,
        FAILOVER,
    )
}
