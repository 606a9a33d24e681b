"""Open windows: a streaming source whose micro-batches are lanes that run for minutes.

Spark asks `latestOffset` when it is free; the answer, fetched from the router's main process,
names the next window and carries its plan. `partitions` turns the plan into lanes, and each task's
`read` runs one lane until the window ends. The only rows are receipts: no event passes through
the driver. Offsets carry no positions, because those live in the checkpoint store.

Three processes play here and share nothing but values: the main process (plans), the source
runner (`latestOffset`, `partitions`) and the workers (`read`).
"""

from __future__ import annotations

import importlib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from headgate.model.lanes import LaneReceipt, LaneSpec, WindowPlan

FORMAT = "headgate_window"
PLAN_PATH = "/internal/v1/next-window"
POLL_TIMEOUT_S = 10.0
"""Above the time for which the router holds a request open."""


class LanePartition(InputPartition):
    """One task of a window: a lane, or (None) a worker to warm up."""

    def __init__(self, spec: bytes | None) -> None:
        super().__init__(None)
        self.spec = spec


class WindowReader(DataSourceStreamReader):
    """`run_lane` and `warm_lane` name, as package.module:function, what a task calls."""

    def __init__(self, plan_url: str, run_lane: str, warm_lane: str) -> None:
        self._plan_url = plan_url
        self._run_lane = run_lane
        self._warm_lane = warm_lane

    def initialOffset(self) -> dict[str, Any]:
        return {"window": 0, "plan": ""}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The next window, or `start` again when there is none for now."""
        try:
            with urllib.request.urlopen(self._plan_url, timeout=POLL_TIMEOUT_S) as response:
                body = response.read()
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            # The main process is busy or ending; Spark asks again.
            return start
        if not body:
            return start
        plan = msgspec.json.decode(body, type=WindowPlan)
        return {"window": plan.window, "plan": body.decode()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:
            return []
        plan = msgspec.json.decode(end["plan"], type=WindowPlan)
        lanes = [LanePartition(msgspec.json.encode(lane)) for lane in plan.lanes]
        return [*lanes, *(LanePartition(None) for _ in range(plan.warm))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        if not isinstance(partition, LanePartition) or partition.spec is None:
            _resolve(self._warm_lane)()
            return
        run_lane = _resolve(self._run_lane)
        spec = msgspec.json.decode(partition.spec, type=LaneSpec)
        context = TaskContext.get()
        attempt = context.attemptNumber() if context is not None else 0
        receipt: LaneReceipt = run_lane(msgspec.structs.replace(spec, attempt=attempt))
        yield (msgspec.json.encode(receipt).decode(),)


class WindowSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "receipt string"

    def streamReader(self, schema: object) -> WindowReader:
        options = self.options
        return WindowReader(options["plan_url"], options["run_lane"], options["warm_lane"])


def _resolve(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
