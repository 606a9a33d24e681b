"""Makes the class archive: a short run of what a router does with Spark, in a process of its own.

`python -m headgate.spark.starting.training` is started by the set-up, and by a router that had to
start without an archive. It works at the lowest priority and ends at once when there is nothing to
do.

Invariant: the archive gets its name only after a Java that insists on it has started from it. What
goes wrong is noted beside it, costs nobody anything but the archive, and is one sentence here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from headgate.config import inherited_environment
from headgate.errors import NoJava
from headgate.metrics.roles import RouterMetrics
from headgate.model.lanes import LaneSettings, LaneSpec, LaneTally, WindowPlan
from headgate.spark.starting.class_archive import ClassArchive, options_to_insist, options_to_make
from headgate.spark.starting.java import Java, find_java
from headgate.spark.starting.noop_read import identity
from headgate.spark.starting.session import archive_for, build_session
from headgate.spark.windows.progress import ProgressListener
from headgate.spark.windows.query import WindowQuery
from headgate.spark.windows.source import window_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2,4]"
LOWEST_PRIORITY = 19
WINDOWS = 2
"""All windows after the first are like the second one."""
WINDOW_TIMEOUT_S = 120.0
WRITE_TIMEOUT_S = 180.0
CHECK_TIMEOUT_S = 60.0
NO_LANE = "headgate.spark.starting.training:no_lane"
MAIN_CLASS = "org.apache.spark.deploy.SparkSubmit"


class NotMade(Exception):
    """Why there is no archive, as a sentence for the log."""


def main() -> int:
    """Makes the archive if it is wanted; 1 when it can't be made, which harms nobody."""
    os.nice(LOWEST_PRIORITY)
    environ = inherited_environment()
    try:
        java = find_java(environ)
    except NoJava as error:
        print(f"headgate: {error.message}", file=sys.stderr)  # noqa: T201  # its only word
        return 1
    archive = archive_for(MASTER, java, environ)
    if archive is None or not archive.is_wanted():
        return 0
    try:
        make(archive, java)
    except (NotMade, OSError) as error:
        archive.note_failure(str(error))
        print(f"headgate: no class archive for Spark: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def make(archive: ClassArchive, java: Java) -> None:
    """Returns when the archive is there, or another process is at it."""
    with archive.making() as path:
        if path is None or not archive.is_wanted():
            return
        command = _train(java, options_to_make(path), path.parent)
        _check(command, options_to_make(path), path)
        archive.keep(path)


def _check(command: list[str], made_with: list[str], path: Path) -> None:
    """Raises unless the same Java starts from what it has written."""
    if not path.exists():
        raise NotMade("this Java wrote none")
    options = command[: command.index(MAIN_CLASS)]
    kept = [one for one in options if one not in made_with]
    try:
        done = subprocess.run(
            [*kept, *options_to_insist(path), "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotMade("Java hung when it was to start from it") from None
    if done.returncode:
        raise NotMade(f"Java doesn't start from it: {(done.stdout + done.stderr)[-500:].strip()}")


# --- the run --------------------------------------------------------------------------------------


def _train(java: Java, options: list[str], folder: Path) -> list[str]:
    """Run Spark with `options` and let it end by itself; returns the command of its Java."""
    with tempfile.TemporaryDirectory(prefix="spark-", dir=folder) as scratch:
        ended = threading.Semaphore(0)
        plan = Path(scratch) / "plan.json"
        sessions: list[SparkSession] = []

        def build() -> SparkSession:
            sessions.append(
                build_session(
                    app_name="headgate-training",
                    master=MASTER,
                    java=java,
                    scratch=Path(scratch),
                    only_plans=True,
                    from_archive=False,
                    java_options=options,
                )
            )
            return sessions[-1]

        query = WindowQuery(
            build,
            scratch=Path(scratch),
            options=window_options(
                run_lane=NO_LANE, warm_lane=NO_LANE, secret="", lane=LaneSettings()
            ),
            on_window=lambda _: ended.release(),
            listener=ProgressListener(RouterMetrics()),
        )
        query.start_spark()
        process = _gateway_process(sessions[0])
        with _ending(process):
            command = _java_below(process.pid).cmdline()
            _run_windows(query, plan, ended)
            sessions[0].range(8, numPartitions=2).mapInArrow(identity, "id long").collect()
            query.stop()
            if process.stdin is not None:
                process.stdin.close()
            process.wait(WRITE_TIMEOUT_S)
        return command


@contextlib.contextmanager
def _ending(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever happens, Spark's Java doesn't outlive the block."""
    try:
        yield
    except subprocess.TimeoutExpired:
        raise NotMade("Java didn't finish writing it in time") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _run_windows(query: WindowQuery, plan: Path, ended: threading.Semaphore) -> None:
    for window in range(1, WINDOWS + 1):
        _write(plan, WindowPlan(window, (_lane(window),), warm=1))
        if window == 1:
            query.start(plan.as_uri())
        if not ended.acquire(timeout=WINDOW_TIMEOUT_S):
            raise NotMade(f"its window {window} didn't end in time: {query.error()}")


def _write(path: Path, plan: WindowPlan) -> None:
    """In one step: Spark reads it when it likes."""
    written = path.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(plan))
    written.replace(path)


def _lane(window: int) -> LaneSpec:
    return LaneSpec(
        router_id="training",
        incarnation="",
        lane=0,
        window=window,
        attempt=0,
        assignment=0,
        owns=(),
        coordinator="",
        data="",
        settings=LaneSettings(),
    )


def no_lane(*specs: LaneSpec) -> LaneTally:
    """What a task calls instead of a lane: it follows nothing."""
    now_s = time.time()
    return LaneTally(
        lane=0,
        window=specs[0].window if specs else 0,
        pid=os.getpid(),
        reason="training",
        fenced=False,
        read=0,
        matched=0,
        delivered=0,
        started_s=now_s,
        ended_s=now_s,
    )


def _gateway_process(spark: SparkSession) -> subprocess.Popen[bytes]:
    """What PySpark has started, and ends when its standard input does."""
    process: subprocess.Popen[bytes] = getattr(spark.sparkContext._gateway, "proc")  # noqa: B009
    return process


def _java_below(pid: int) -> psutil.Process:
    """The process that is Spark's Java: the one that was started, or one it started in turn."""
    started = psutil.Process(pid)
    for process in [started, *started.children(recursive=True)]:
        if MAIN_CLASS in process.cmdline():
            return process
    raise NotMade("Spark's Java wasn't found")


if __name__ == "__main__":
    sys.exit(main())
