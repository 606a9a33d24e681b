"""GET /health and GET /metrics of a coordinator: the whole cluster, where it leads.

Everything is looked up at each request, so that lag is right also while nothing flows. What lanes
have done is told here for them: they live in Spark's workers, which take no requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import get_args

from headgate.decide.coordination.failures import TermFailures
from headgate.decide.coordination.lanes.lane_totals import LaneTotals, Sums
from headgate.decide.operations.health import http_status, judged, of_cluster
from headgate.errors import NotNow
from headgate.metrics.exposing import Told
from headgate.metrics.roles import CoordinatorMetrics
from headgate.model import api
from headgate.model.connector import ConnectorState
from headgate.model.control.reports import Latencies
from headgate.model.http import Request, Response, Route, json_response
from headgate.ports.machine import Machine
from headgate.release import release
from headgate.services.coordinator.term import Term
from headgate.tasks import deaths

LEADERLESS = "no coordinator leads at the moment"
OUTCOMES = ("acknowledged", "parked", "dead", "released", "unmatched", "skipped", "uncounted")
PRESSURES = ("normal", "soft", "hard")
BREAKERS = ("closed", "open", "half_open")
PARTITION_STATES = ("healthy", "lagging", "stale", "failed")


class Vitals:
    """`term` raises NotNow where another coordinator leads; `described` is the state of all, and
    `failures` are the terms of this one that ended by an error."""

    def __init__(
        self,
        term: Callable[[], Term],
        described: Callable[[Term], Awaitable[api.Status]],
        failures: TermFailures,
        machine: Machine,
    ) -> None:
        self._term = term
        self._described = described
        self._failures = failures
        self._metrics = CoordinatorMetrics()
        self._now_s = machine.monotonic_s
        self._started_s = self._now_s()
        self.stopping = False

    def table(self) -> list[Route]:
        return [Route("GET", "/health", self._health), Route("GET", "/metrics", self._show)]

    async def _health(self, _request: Request) -> Response:
        try:
            term = self._term()
        except NotNow as error:
            health = self._judged([], self._without(error))
        else:
            health = self._judged(*of_cluster(await self._described(term)))
        return json_response(health, http_status(health))

    async def _show(self, _request: Request) -> Response:
        metrics = self._metrics
        for told in metrics.cluster:
            told.forget()
        metrics.failed_terms.tell(self._failures.count)
        try:
            term = self._term()
        except NotNow as error:
            metrics.leads.tell(0)
            metrics.show(self._judged([], self._without(error)), deaths.counts())
        else:
            status = await self._described(term)
            metrics.leads.tell(1)
            metrics.show(self._judged(*of_cluster(status)), deaths.counts())
            tell_cluster(metrics, status)
            tell_partitions(metrics, status)
            for ref, count in term.cluster.lanes.restarts.items():
                metrics.partition_restarts.tell(count, ref.topic, str(ref.partition))
            tell_links(metrics, status)
            tell_totals(metrics, term.cluster.lane_totals)
            tell_connectors(metrics, status)
        return Response(200, metrics.exposed(), metrics.content_type)

    def _without(self, error: NotNow) -> list[str]:
        """One that stands by is well for as long as another one leads."""
        return [] if error.details.get("leader") else [LEADERLESS]

    def _judged(self, partitions: list[api.PartitionVitals], reasons: list[str]) -> api.Health:
        now_s = self._now_s()
        failed = self._failures.sentence(now_s)
        return judged(
            role="coordinator",
            version=release(),
            uptime_s=now_s - self._started_s,
            partitions=partitions,
            reasons=[*([failed] if failed else []), *deaths.reasons(), *reasons],
            stopping=self.stopping,
        )


def tell_cluster(metrics: CoordinatorMetrics, status: api.Status) -> None:
    for (role, state), count in Counter((n.role, n.state) for n in status.nodes).items():
        metrics.nodes.tell(count, role, state)
    metrics.clients.tell(status.clients)
    metrics.subscriptions.tell(status.subscriptions)
    metrics.generation.tell(status.generation)
    metrics.moves.tell(len(status.moves))
    metrics.letters_up.tell(0 if status.letters_error else 1)
    for one in status.letters:
        metrics.letters.tell(one.parked, one.gateway, "parked")
        metrics.letters.tell(one.dead, one.gateway, "dead")
        metrics.letters_age.tell(one.parked_ms / 1_000, one.gateway, "parked")
        metrics.letters_age.tell(one.dead_ms / 1_000, one.gateway, "dead")


def tell_partitions(metrics: CoordinatorMetrics, status: api.Status) -> None:
    for topic in status.topics:
        for outcome in OUTCOMES:
            metrics.outcomes.tell(getattr(topic.totals, outcome), topic.name, outcome)
        for one in topic.details:
            of = topic.name, str(one.partition)
            metrics.head.tell(one.head, *of)
            metrics.settled.tell(one.settled, *of)
            metrics.lag.tell(one.lag, *of)
            metrics.lag_seconds.tell(one.lag_ms / 1_000, *of)
            metrics.lag_known.tell(float(one.lag_known), *of)
            metrics.rate.tell(one.rate, *of)
            for state in PARTITION_STATES:
                metrics.partition_health.tell(float(one.state == state), *of, state)


def tell_connectors(metrics: CoordinatorMetrics, status: api.Status) -> None:
    """What nobody can tell now is left out."""
    for one in status.connectors:
        for state in get_args(ConnectorState):
            metrics.connector_state.tell(float(one.state == state), one.name, state)
        if one.lag_ms is not None:
            metrics.connector_lag.tell(one.lag_ms / 1_000, one.name)
        if one.lag_records is not None:
            metrics.connector_behind.tell(one.lag_records, one.name)
        if one.history_ms is not None:
            metrics.connector_history.tell(one.history_ms / 1_000, one.name)
        if one.held_bytes is not None:
            metrics.connector_held.tell(one.held_bytes, one.name)
        metrics.connector_taken.tell(one.taken, one.name)
        metrics.connector_left_out.tell(one.left_out, one.name)


def tell_links(metrics: CoordinatorMetrics, status: api.Status) -> None:
    """How the lanes that are connected fare, and their ways to the gateways."""
    for router in {lane.router for lane in status.lanes}:
        own = [lane for lane in status.lanes if lane.router == router]
        metrics.lanes.tell(len(own), router)
        metrics.lane_cpu.tell(sum(lane.cpu for lane in own), router)
    links = [link for lane in status.lanes for link in lane.links]
    for gateway in {link.gateway_id for link in links}:
        to = [link for link in links if link.gateway_id == gateway]
        metrics.queue.tell(sum(link.waiting for link in to), gateway)
        for level in PRESSURES:
            metrics.pressure.tell(sum(link.pressure == level for link in to), gateway, level)
        for state in BREAKERS:
            metrics.breaker.tell(sum(link.breaker == state for link in to), gateway, state)


def tell_totals(metrics: CoordinatorMetrics, totals: LaneTotals) -> None:
    by_router: dict[str, Told] = {
        "read": metrics.read,
        "matched": metrics.routed,
        "filter_errors": metrics.filter_errors,
        "checkpoints_saved": metrics.saves,
        "checkpoint_errors": metrics.save_errors,
        "gaps": metrics.gaps,
        "routing": metrics.routing,
        "saving": metrics.saving,
    }
    by_gateway: dict[str, Told] = {
        "sent": metrics.batches,
        "acknowledged": metrics.successes,
        "failures": metrics.errors,
        "retries": metrics.retries,
        "parked": metrics.parked,
        "redriven": metrics.redriven,
        "dead": metrics.dead,
        "released": metrics.released,
        "round_trips": metrics.round_trips,
    }
    for router, sums in totals.routers.items():
        _tell_sums(by_router, sums, router)
    for gateway, sums in totals.gateways.items():
        _tell_sums(by_gateway, sums, gateway)
        for level in ("soft", "hard"):
            metrics.pressure_events.tell(sums.counts.get(level, 0), gateway, level)


def _tell_sums(table: dict[str, Told], sums: Sums, label: str) -> None:
    values: dict[str, int | Latencies] = {**sums.counts, **sums.latencies}
    for name, told in table.items():
        if name in values:
            told.tell(values[name], label)
