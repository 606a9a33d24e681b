"""Open windows: a streaming source whose micro-batches are lanes that run for minutes.

Spark asks `latestOffset` when it is free; the answer, fetched from the router's main process,
names the next window and carries its plan. `partitions` turns the plan into lanes, and each task's
`read` runs one lane until the window ends. The only rows are tallies: no event passes through
the driver. Offsets carry no positions, because those live in the checkpoint store, and no settings
of lanes, because Spark writes offsets to its disk and passwords are among those.

Three processes play here and share nothing but values: the main process (plans), the source
runner (`latestOffset`, `partitions`) and the workers (`read`).
"""

from __future__ import annotations

import importlib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from headgate.adapters.delivery_wire import AUTHORIZATION
from headgate.decide.links.passes import bearer
from headgate.model.lanes import LaneSettings, LaneSpec, LaneTally, WindowPlan

FORMAT = "headgate_window"
PLAN_PATH = "/internal/v1/next-window"
POLL_TIMEOUT_S = 10.0
"""Above the time for which the router holds a request open."""


class LanePartition(InputPartition):
    """One task of a window: a lane, or (None) a worker to warm up."""

    def __init__(self, spec: bytes | None) -> None:
        super().__init__(None)
        self.spec = spec


def window_options(
    *, run_lane: str, warm_lane: str, secret: str, lane: LaneSettings
) -> dict[str, str]:
    """The options of a query but for where it asks: `run_lane` and `warm_lane` name, as
    package.module:function, what a task calls; `secret` is what the plans' server wants, `lane` the
    settings of every lane. Spark shows no option whose name speaks of a secret."""
    return {
        "run_lane": run_lane,
        "warm_lane": warm_lane,
        "plan_secret": secret,
        "lane_secrets": msgspec.json.encode(lane).decode(),
    }


class WindowReader(DataSourceStreamReader):
    """Made of `window_options` and `plan_url`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._plan_url = options["plan_url"]
        self._plan_secret = options["plan_secret"]
        self._lane_settings = options["lane_secrets"]
        self._run_lane = options["run_lane"]
        self._warm_lane = options["warm_lane"]

    def initialOffset(self) -> dict[str, Any]:
        return {"window": 0, "plan": ""}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The next window, or `start` again when there is none for now."""
        headers = {AUTHORIZATION: bearer(self._plan_secret)}
        asked = urllib.request.Request(self._plan_url, headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=POLL_TIMEOUT_S) as response:
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
        settings = msgspec.json.decode(self._lane_settings, type=LaneSettings)
        spec = msgspec.structs.replace(spec, attempt=attempt, settings=settings)
        tally: LaneTally = run_lane(spec)
        yield (msgspec.json.encode(tally).decode(),)


class WindowSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "tally string"

    def streamReader(self, schema: object) -> WindowReader:
        return WindowReader(self.options)


def _resolve(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
