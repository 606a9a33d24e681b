"""Spark runs windows as their port promises, and then its JVM is killed. A process of its own,
because a session ends with it: `python -m tests.spark.windows_process FOLDER`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from headgate.metrics.roles import RouterMetrics
from headgate.spark.starting.java import Java, find_java
from headgate.spark.windows.open_windows import JvmDied, SparkSettings, SparkWindows
from tests.contracts.windows import Planned, keeps_its_contract, plan, until

RUN_LANE = "tests.contracts.windows:run_lane"
WARM_LANE = "tests.contracts.windows:warm_lane"


def windows(folder: Path, java: Java) -> SparkWindows:
    settings = SparkSettings(
        app_name="headgate-tests",
        master="local[4,4]",
        slots=2,
        driver_memory="1g",
        scratch=folder / "scratch",
        run_lane=RUN_LANE,
        warm_lane=WARM_LANE,
    )
    return SparkWindows(settings, java, RouterMetrics())


async def dies_with_its_jvm(running: SparkWindows) -> None:
    await running.launch()
    plans = Planned(plan(1))
    await running.begin(plans)
    await until(lambda: plans.seen == [1, [(1, 0)]])
    spark = running._query._spark
    assert spark is not None
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)  # type: ignore[union-attr]
    await until(lambda: running.is_dead)
    with pytest.raises(JvmDied, match="JVM ended"):
        await running.fault()
    await running.stop()
    await running.close()


async def main(folder: Path, java: Java) -> None:
    await keeps_its_contract(windows(folder, java))
    assert list((folder / "scratch").iterdir()) == []
    await dies_with_its_jvm(windows(folder, java))


if __name__ == "__main__":
    found = find_java(os.environ)
    asyncio.run(main(Path(sys.argv[1]), found))
    sys.stdout.write(f"kept on {found.source}\n")
    sys.stdout.flush()
    os._exit(0)  # py4j would wait for the JVM that is gone
