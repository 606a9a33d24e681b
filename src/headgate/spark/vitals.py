"""GET /health and GET /metrics of a router, served by its driver.

The driver sees Spark and the assignment; how far its partitions are only the lanes know, which
report to the coordinator. So the driver asks the coordinator when somebody asks the driver, and
while that is away it repeats what it heard last and says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from importlib.metadata import version

import msgspec
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from headgate.adapters.http.app import Request, Response, Route, json_response
from headgate.decide.health import RouterView, http_status, of_router
from headgate.metrics.roles import RouterMetrics
from headgate.model.api import Health, PartitionVitals
from headgate.tasks import deaths

ASK_TIMEOUT_S = 1.5
ASK_EVERY_S = 1.0

_decode = msgspec.json.Decoder(Health).decode


class RouterVitals:
    """`view` is what the driver knows, `coordinator_url` where the coordinator serves HTTP (empty:
    not known yet)."""

    def __init__(
        self,
        metrics: RouterMetrics,
        view: Callable[[], RouterView],
        coordinator_url: Callable[[], str],
    ) -> None:
        self._metrics = metrics
        self._view = view
        self._coordinator_url = coordinator_url
        self._client: Client | None = None
        self._asking = asyncio.Lock()
        self._started_s = time.monotonic()
        self._asked_s = -ASK_EVERY_S
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

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

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
        now_s = time.monotonic()
        return of_router(
            self._view(),
            self._partitions,
            deaths=deaths.reasons(),
            heard_ago_s=None if self._heard_s is None else now_s - self._heard_s,
            version=version("headgate"),
            uptime_s=now_s - self._started_s,
        )

    async def _ask(self) -> None:
        """Have the coordinator's word on all partitions, not older than a moment if it answers."""
        url = self._coordinator_url()
        if not url or time.monotonic() - self._asked_s < ASK_EVERY_S:
            return
        if self._client is None:
            self._client = ClientBuilder().no_proxy().build()
        try:
            request = self._client.get(f"{url}/health").timeout(timedelta(seconds=ASK_TIMEOUT_S))
            answer = await request.build().send()
            health = _decode(await answer.bytes())
        except (PyreqwestError, msgspec.MsgspecError):
            return
        finally:
            self._asked_s = time.monotonic()
        if health.role == "coordinator":
            self._partitions, self._heard_s = health.partitions, time.monotonic()
