"""How metrics leave a process, and those that every role has.

What a process counts by itself is a counter or a histogram of the library; what it is told, or
looks up at each request, is `Told`. Importing this has no effect: each of the classes is a
registry of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headgate.decide.operations.latencies import cumulative
from headgate.model.api import Health
from headgate.model.control.reports import LATENCY_BUCKETS_S, Latencies

Kind = Literal["counter", "gauge", "histogram"]


class Described(NamedTuple):
    """A metric as docs/metrics.md has it."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    text: str


class Told(Collector):
    """A metric whose values come from elsewhere; what isn't told anew stays as it was, until
    `forget`."""

    def __init__(self, described: Described) -> None:
        self._described = described
        self._values: dict[tuple[str, ...], float | Latencies] = {}

    def tell(self, value: float | Latencies, *labels: str) -> None:
        assert len(labels) == len(self._described.labels)
        self._values[labels] = value

    def forget(self) -> None:
        """Before it is told all there is: what isn't there any more shows no more."""
        self._values.clear()

    def collect(self) -> Iterable[Metric]:
        name, kind, labels, text = self._described
        if kind == "histogram":
            histogram = HistogramMetricFamily(name, text, labels=labels)
            for own, value in self._values.items():
                assert isinstance(value, Latencies)
                histogram.add_metric(own, buckets=cumulative(value), sum_value=value.sum_s)
            yield histogram
            return
        family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(
            name, text, labels=labels
        )
        for own, value in self._values.items():
            assert not isinstance(value, Latencies)
            family.add_metric(own, value)
        yield family


class Metrics:
    """What every role has; `described` lists all that a registry holds."""

    content_type: Final = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.described: list[Described] = []
        self.info = self._told(
            "gauge", "headgate_info", "Always 1; its labels name this process.", "role", "version"
        )
        self.uptime = self._told("gauge", "headgate_uptime_seconds", "Time since the start.")
        self.health = self._told(
            "gauge", "headgate_health", "1 for the status of /health, 0 for the others.", "status"
        )
        self.deaths = self._told(
            "counter",
            "headgate_task_deaths_total",
            "Tasks and threads that ended and should not have, by their names.",
            "task",
        )

    def show(self, health: Health, deaths: Mapping[str, int]) -> None:
        """Bring what every role has up to date; `deaths` are those of its tasks, by name."""
        self.info.tell(1, health.role, health.version)
        self.uptime.tell(health.uptime_s)
        for status in ("healthy", "degraded", "unhealthy"):
            self.health.tell(float(health.status == status), status)
        for task, count in deaths.items():
            self.deaths.tell(count, task)

    def exposed(self) -> bytes:
        """The body of GET /metrics, to be sent as `content_type`."""
        return generate_latest(self.registry)

    def _told(self, kind: Kind, name: str, text: str, *labels: str) -> Told:
        told = Told(self._described(kind, name, text, labels))
        self.registry.register(told)
        return told

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        self._described("counter", name, text, labels)
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        self._described("histogram", name, text, labels)
        return Histogram(name, text, labels, buckets=LATENCY_BUCKETS_S, registry=self.registry)

    def _described(self, kind: Kind, name: str, text: str, labels: tuple[str, ...]) -> Described:
        self.described.append(described := Described(name, kind, labels, text))
        return described


class NodeMetrics(Metrics):
    """What every role but the coordinator has."""

    def __init__(self) -> None:
        super().__init__()
        self.connected = self._told(
            "gauge", "headgate_coordinator_connected", "1 while the coordinator is there, else 0."
        )
