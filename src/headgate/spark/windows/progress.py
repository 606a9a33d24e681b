"""What Spark says about the router's query, as metrics.

Spark calls from a thread of its own; the metrics take that. A query of open windows makes few
micro-batches, one per window, so what the last one took is told as it is.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import structlog
from pyspark.sql.streaming.listener import StreamingQueryListener

from headgate.metrics.roles import RouterMetrics
from headgate.telemetry import LogLine

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = structlog.get_logger()


class ProgressListener(StreamingQueryListener):
    def __init__(self, metrics: RouterMetrics) -> None:
        self._metrics = metrics

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing follows from it: the router starts its query itself."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Spark asked for a window and there was none."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The router sees that its query has ended."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        try:
            progress = event.progress
            self.made(
                rows=progress.numInputRows,
                began=progress.timestamp,
                duration_ms=progress.batchDuration,
                phases_ms=dict(progress.durationMs),
            )
        except Exception:
            # An exception here would only be lost in Spark's own thread.
            log.exception(LogLine.UNEXPECTED)

    def made(self, *, rows: int, began: str, duration_ms: float, phases_ms: dict[str, int]) -> None:
        """A micro-batch has ended; `began` is a time such as 2026-01-31T12:00:00.000Z."""
        metrics = self._metrics
        metrics.spark_batches.inc()
        metrics.spark_rows.inc(rows)
        metrics.spark_batch.tell(duration_ms / 1_000)
        for phase, took_ms in phases_ms.items():
            metrics.spark_phase.tell(took_ms / 1_000, phase)
        metrics.spark_trigger.tell(datetime.fromisoformat(began).timestamp())
