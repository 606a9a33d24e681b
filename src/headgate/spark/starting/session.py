"""Starts Spark the way Headgate needs it, on any master.

Invariant: nothing of Spark listens beyond the address it was given; workers run this very
interpreter, and are told none of our settings by their environment; a task that fails is tried
again (a plain `local[n]` would end the query instead).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from headgate.config import inherited_environment
from headgate.errors import InvalidConfig
from headgate.spark.starting.class_archive import JAVA_OPTIONS_FROM, ClassArchive, options_to_use
from headgate.spark.starting.home import light_home
from headgate.spark.starting.java import Java, find_java

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


def local_session(
    app_name: str = "headgate", master: str = "local[*,4]", *, from_archive: bool = True
) -> SparkSession:
    """A session for a program or a notebook on this machine, with a Java that is found or brought.

    `headgate_log` is known to it. Its temporary files go where the system keeps such files. It
    starts `from_archive` where a router or the set-up has made one, and never makes one itself.
    """
    from headgate.spark.table.source import register

    scratch = Path(tempfile.mkdtemp(prefix="headgate-spark-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    spark = build_session(
        app_name=app_name,
        master=master,
        java=find_java(inherited_environment()),
        scratch=scratch,
        from_archive=from_archive,
    )
    register(spark)
    return spark


def home_for(master: str, environ: Mapping[str, str]) -> Path:
    """The SPARK_HOME of a driver. On a cluster it is what it would be without Headgate, because
    executors elsewhere may be told of it."""
    light = light_home(environ) if _LOCAL_MASTER.match(master) else None
    return light or Path(environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def archive_for(master: str, java: Java, environ: Mapping[str, str]) -> ClassArchive | None:
    """The class archive of a driver with this master, whether or not it is there yet; only drivers
    that run everything on this machine have one."""
    if not _LOCAL_MASTER.match(master):
        return None
    return ClassArchive.of(java, home_for(master, environ), environ)


def build_session(
    *,
    app_name: str,
    master: str,
    java: Java,
    scratch: Path,
    driver_memory: str = "1g",
    host: str = "127.0.0.1",
    only_plans: bool = False,
    from_archive: bool = True,
    java_options: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session whose temporary files all lie below `scratch`. Blocks for seconds.

    A driver that `only_plans` is tuned to start soon, not to compute. It starts `from_archive` if
    that is there, and without it where Java can't.
    """
    archive = archive_for(master, java, os.environ) if from_archive else None
    found = archive.find() if archive else None
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = host
    scratch.mkdir(parents=True, exist_ok=True)
    options = [
        "-Dheadgate.role=router",
        f"-Djava.io.tmpdir={scratch}",
        *(quick_start(os.environ) if only_plans else ()),
        *java_options,
    ]
    everything = {
        **SETTINGS,
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.driver.memory": driver_memory,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if archive and found:
        try:
            return _started(
                app_name, master, everything, [*options, *options_to_use(found)], settings
            )
        except PySparkRuntimeError:  # its Java ended before it said anything
            archive.distrust()
    return _started(app_name, master, everything, options, settings)


def _started(
    app_name: str,
    master: str,
    everything: Mapping[str, str],
    java_options: Sequence[str],
    settings: Mapping[str, str] | None,
) -> SparkSession:
    builder = SparkSession.builder.appName(app_name).master(master)
    options = {"spark.driver.extraJavaOptions": " ".join(map(_quoted, java_options))}
    for key, value in {**everything, **options, **(settings or {})}.items():
        builder = builder.config(key, value)
    with _environment(home_for(master, os.environ)):
        return builder.getOrCreate()


@contextlib.contextmanager
def _environment(home: Path) -> Iterator[None]:
    """For the Java that is started now, and the workers that it starts: they need none of our
    settings, and the secrets among those are none of their business. What this process starts later
    has everything again."""
    before = dict(os.environ)
    os.environ["SPARK_HOME"] = str(home)
    for name in before.keys() - inherited_environment().keys():
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.pop("SPARK_HOME", None)
        os.environ.update(before)


def _quoted(option: str) -> str:
    """As Spark takes options apart again."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if re.search(r"[\s\"'\\]", option) else option
