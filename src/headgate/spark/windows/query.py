"""The Spark session of a router, and its streaming query of open windows.

Everything here waits for the JVM, so it is called in threads of its own (`in_thread`); only
`jvm_is_dead` may be asked at any time. It never decides when a window opens or whether a query that
has ended is started again: the router does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from py4j.protocol import Py4JError

from headgate.model.lanes import LaneTally
from headgate.spark.windows.source import FORMAT, WindowSource
from headgate.tasks import start_thread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")

ERROR_MAX = 500
"""Characters of Spark's errors that are worth repeating."""


class WindowQuery:
    """`build` starts Spark; `on_window` gets the tallies of every window, in Spark's thread, and
    the next window is asked for when it returns."""

    def __init__(
        self,
        build: Callable[[], SparkSession],
        *,
        scratch: Path,
        options: dict[str, str],
        on_window: Callable[[list[LaneTally]], None],
        listener: StreamingQueryListener,
    ) -> None:
        self._build = build
        self._scratch = scratch
        self._options = options
        self._on_window = on_window
        self._listener = listener
        self._spark: SparkSession | None = None
        self._query: StreamingQuery | None = None

    # --- in threads ------------------------------------------------------------------------------

    def start_spark(self) -> None:
        spark = self._build()
        spark.dataSource.register(WindowSource)
        spark.streams.addListener(self._listener)
        self._spark = spark

    def start(self, plan_url: str) -> None:
        """Begin to ask for windows at `plan_url`."""
        assert self._spark is not None
        # Spark's own offsets mean nothing here, so every query starts with a new directory.
        checkpoint = self._scratch / "query" / f"{time.time_ns()}"
        reader = self._spark.readStream.format(FORMAT).option("plan_url", plan_url)
        for name, value in self._options.items():
            reader = reader.option(name, value)
        self._query = (
            reader.load()
            .writeStream.foreachBatch(self._window_batch)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )

    def abandon(self) -> None:
        """Ends the query with its tasks and their workers; its lanes will be overtaken."""
        if self._query is not None:
            with contextlib.suppress(Py4JError, OSError):
                self._query.stop()

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
        if self._spark is not None:
            self._spark.stop()

    def fault(self) -> str | None:
        """Why the query has ended; None while it hasn't."""
        try:
            if self._query is None or self._query.isActive:
                return None
        except (Py4JError, OSError):
            pass  # the JVM doesn't answer
        return self.error()

    def error(self) -> str:
        try:
            return str(self._query.exception() if self._query is not None else "")[:ERROR_MAX]
        except (Py4JError, OSError) as error:
            return str(error)[:ERROR_MAX]

    def _window_batch(self, tallies: DataFrame, _batch_id: int) -> None:
        """Runs the window: collecting the tallies is what makes Spark run the lanes."""
        rows = tallies.collect()
        self._on_window([msgspec.json.decode(row.tally, type=LaneTally) for row in rows])

    # --- at any time -----------------------------------------------------------------------------

    @property
    def has_spark(self) -> bool:
        return self._spark is not None

    def jvm_is_dead(self) -> bool:
        if self._spark is None:
            return False
        process = getattr(self._spark.sparkContext._gateway, "proc", None)
        return process is not None and process.poll() is not None


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread that nobody waits for: a stop while Spark starts must not take as long
    as Spark does."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # from here on it takes its result, wanted or not

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  # handed to the awaiter
            future.set_exception(error)

    start_thread("spark", run)
    return await asyncio.wrap_future(future)
