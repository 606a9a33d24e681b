"""Every benchmark there is, by name."""

from __future__ import annotations

from headgate.bench.append import APPEND
from headgate.bench.latency import LATENCY
from headgate.bench.result import Benchmark

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in (LATENCY, APPEND)}
