"""GET /health and GET /metrics of a router, served by its driver.

The driver sees Spark and the assignment; how far its partitions are only the lanes know, which
report to the coordinator. So the driver asks the coordinator when it is asked itself, and
while that is away it repeats what it heard last and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from headgate.decide.operations.health import RouterView, http_status, of_router
from headgate.errors import HeadgateError
from headgate.metrics.roles import RouterMetrics
from headgate.model.api import Health, PartitionVitals
from headgate.model.http import Request, Response, Route, json_response
from headgate.ports.http import HttpCalls
from headgate.release import release
from headgate.tasks import deaths

ASK_TIMEOUT_S = 1.5
ASK_EVERY_S = 1.0


_decode = msgspec.json.Decoder(Health).decode


class RouterVitals:
    """`view` is what the driver knows, `coordinator_url` where the coordinator serves HTTP (empty:
    not known yet), `calls` the way to ask there, with what is shown in `headers`."""

    def __init__(
        self,
        metrics: RouterMetrics,
        view: Callable[[], RouterView],
        coordinator_url: Callable[[], str],
        calls: HttpCalls,
        *,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._headers = headers
        self._metrics = metrics
        self._view = view
        self._coordinator_url = coordinator_url
        self._calls = calls
        self._asking = asyncio.Lock()
        self._now_s = asyncio.get_running_loop().time
        self._started_s = self._now_s()
        self._asked_s: float | None = None
        self._heard_s: float | None = None
        self._partitions: list[PartitionVitals] = []

    def table(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/health",
                self._show_health,
                "How this node is.",
                response=Health,
                also_status=503,
            ),
            Route(
                "GET",
                "/metrics",
                self._show_metrics,
                "Counters and timings, in Prometheus' text format.",
                response_content_type="text/plain",
            ),
        ]

    async def _show_health(self, _request: Request) -> Response:
        health = await self._health()
        return json_response(health, http_status(health))

    async def _show_metrics(self, _request: Request) -> Response:
        metrics, view = self._metrics, self._view()
        metrics.show(await self._health(), deaths.counts())
        metrics.connected.tell(float(view.connected))
        metrics.sources.tell(len(view.sources))
        metrics.lanes.tell(view.lanes)
        metrics.window.tell(view.window)
        return Response(200, metrics.exposed(), metrics.content_type)

    async def _health(self) -> Health:
        async with self._asking:
            await self._ask()
        now_s = self._now_s()
        return of_router(
            self._view(),
            self._partitions,
            deaths=deaths.reasons(),
            heard_ago_s=None if self._heard_s is None else now_s - self._heard_s,
            version=release(),
            uptime_s=now_s - self._started_s,
        )

    async def _ask(self) -> None:
        """Have the coordinator's word on all partitions, not older than a moment if it answers."""
        url = self._coordinator_url()
        if not url or not self._may_ask():
            return
        try:
            answer = await self._calls.send(
                "GET", f"{url}/health", timeout_s=ASK_TIMEOUT_S, headers=self._headers
            )
            health = _decode(answer.body)
        except (HeadgateError, msgspec.MsgspecError):
            return  # nobody answers so in time
        finally:
            self._asked_s = self._now_s()
        if health.role == "coordinator":
            self._partitions, self._heard_s = health.partitions, self._now_s()

    def _may_ask(self) -> bool:
        return self._asked_s is None or self._now_s() - self._asked_s >= ASK_EVERY_S
