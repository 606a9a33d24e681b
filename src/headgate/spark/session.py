"""Starts Spark the way Headgate needs it, on any master.

Invariant: nothing of Spark listens beyond the address it was given, workers run this very
interpreter, and a task that fails is tried again (a plain `local[n]` would end the query instead).
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from headgate.config import inherited_environment
from headgate.errors import InvalidConfig
from headgate.spark.home import light_home
from headgate.spark.java import Java, find_java

CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.speculation": "false",
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.minBatchesToRetain": "2",
    # Renaming a checksum file beside every small file doubles the cost of a window change.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.python.worker.reuse": "true",
}

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For a driver that only plans windows: it needs half the processor time until it is ready, and
has nothing to compute after that."""

JAVA_OPTIONS_FROM = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Variables that Java itself reads."""

_LOCAL_MASTER = re.compile(r"local(\[(?P<threads>\d+|\*)(,(?P<failures>\d+))?\])?$")


def check_master(master: str, slots: int) -> None:
    """Lanes run for minutes: each needs a thread of its own, and a retry when it is killed."""
    local = _LOCAL_MASTER.match(master)
    if local is None:
        return
    threads, failures = local["threads"], local["failures"]
    if failures is None or int(failures) < 2:
        raise InvalidConfig(
            f"router.master: {master} never retries a task, so a killed lane would end the query; "
            f"write local[{max(slots + 2, 4)},4]",
            key="router.master",
        )
    if threads != "*" and int(threads or 1) < slots:
        raise InvalidConfig(
            f"router.master: {master} has fewer threads than router.slots ({slots}); "
            f"write local[{slots + 2},4]",
            key="router.master",
        )


def quick_start(environ: Mapping[str, str]) -> list[str]:
    """QUICK_START without what contradicts the options that the user gives every Java: two
    collectors, and Java refuses to start."""
    given = " ".join(environ.get(name, "") for name in JAVA_OPTIONS_FROM)
    chosen = re.search(r"-XX:\+Use\w+GC", given)
    return [one for one in QUICK_START if not (chosen and one.endswith("GC"))]


def local_session(app_name: str = "headgate", master: str = "local[*,4]") -> SparkSession:
    """A session for a program or a notebook on this machine, with a Java that is found or brought.

    `headgate_log` is known to it. Its temporary files go where the system keeps such files.
    """
    from headgate.spark.log_source import register

    scratch = Path(tempfile.mkdtemp(prefix="headgate-spark-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    spark = build_session(
        app_name=app_name,
        master=master,
        java=find_java(inherited_environment()),
        scratch=scratch,
    )
    register(spark)
    return spark


def build_session(
    *,
    app_name: str,
    master: str,
    java: Java,
    scratch: Path,
    driver_memory: str = "1g",
    host: str = "127.0.0.1",
    only_plans: bool = False,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session whose temporary files all lie below `scratch`. Blocks for seconds.

    A driver that `only_plans` is tuned to start soon, not to compute.
    """
    home = light_home(os.environ) if _LOCAL_MASTER.match(master) else None
    if home is not None:
        os.environ["SPARK_HOME"] = str(home)
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = host
    scratch.mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.appName(app_name).master(master)
    everything = {
        **SETTINGS,
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.driver.memory": driver_memory,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": " ".join(
            [
                f"-Dheadgate.role=router -Djava.io.tmpdir={scratch}",
                *(quick_start(os.environ) if only_plans else ()),
            ]
        ),
        **(settings or {}),
    }
    for key, value in everything.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
