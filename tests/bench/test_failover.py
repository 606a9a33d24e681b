"""The parts of `bench failover` that need no running system."""

from __future__ import annotations

import time

from headgate.bench.failover.main import Traffic
from headgate.bench.registry import BENCHMARKS


async def test_the_partition_that_waits_longest_is_the_figure() -> None:
    now_s = time.monotonic()
    flow = Traffic(["a", "b"], sent_s=[now_s - 2, now_s - 2, now_s, now_s, now_s, now_s])
    flow.acknowledged_s = {0: now_s, 2: now_s + 1, 3: now_s + 4, 4: now_s + 2, 5: now_s + 5}
    flow.received_s = {2: now_s + 1.5, 3: now_s + 3, 4: now_s + 2}
    assert round(await flow.back(now_s - 1), 3) == 5.0


async def test_what_was_acknowledged_and_received_is_not_lost() -> None:
    flow = Traffic(["a"], sent_s=[0.0, 1.0], acknowledged_s={0: 0.1, 1: 1.1})
    flow.received_s = {0: 0.2, 1: 1.2}
    assert await flow.finish() == 0


def test_it_is_among_the_benchmarks() -> None:
    assert BENCHMARKS["failover"].name == "failover"
