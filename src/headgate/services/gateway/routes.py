"""What users call at the public address: subscribe is answered here, the rest is passed on.

Invariant: every public route of the system is in this table, with its types, so that /openapi.json
describes the whole contract from one place.
"""

from __future__ import annotations

from collections.abc import Callable

from headgate import errors
from headgate.adapters.http.forward import Forwarder
from headgate.adapters.http.messages import (
    Handler,
    Request,
    Response,
    Route,
    StreamResponse,
    json_response,
)
from headgate.adapters.http.openapi import openapi
from headgate.model.api import (
    CreateTopic,
    Health,
    NodeStatus,
    ProduceAnswer,
    ProduceRequest,
    RebalanceAnswer,
    RebalanceRequest,
    Status,
    TopicInfo,
    TopicList,
    TopologyAnswer,
)
from headgate.services.gateway.questions import SUBSCRIBE_PARAMETERS, question_of
from headgate.services.gateway.sse import sse_response
from headgate.services.gateway.subscriptions import Subscriptions
from headgate.telemetry import Metrics

COORDINATOR_TIMEOUT_S = 60.0
PRODUCE_TIMEOUT_S = 16 * 60.0
"""Above the longest request_timeout of a produce, which answers by itself before."""


class PublicRoutes:
    """`ingest_url` names a node to produce to, or None while there is none."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        forwarder: Forwarder,
        *,
        coordinator_url: Callable[[], str],
        ingest_url: Callable[[], str | None],
        health: Callable[[], Health],
        metrics: Metrics,
        collect: Callable[[], None],
        version: str,
        keep_alive_s: float,
    ) -> None:
        self._subscriptions = subscriptions
        self._forwarder = forwarder
        self._coordinator_url = coordinator_url
        self._ingest_url = ingest_url
        self._health = health
        self._metrics = metrics
        self._collect = collect
        self._version = version
        self._keep_alive_s = keep_alive_s
        self.ws_url = ""

    def table(self) -> list[Route]:
        ask = self._ask_coordinator
        own = self._own
        return [
            Route("GET", "/v1/topics", ask, "List the topics.", response=TopicList),
            Route("POST", "/v1/topics", ask, "Create a topic.", CreateTopic, TopicInfo, status=201),
            Route("GET", "/v1/topics/{name}", ask, "Describe a topic.", response=TopicInfo),
            Route("DELETE", "/v1/topics/{name}", ask, "Delete a topic.", status=204),
            Route(
                "POST",
                "/v1/topics/{name}/produce",
                self._produce,
                "Append events to a topic; the answer has their order.",
                ProduceRequest,
                ProduceAnswer,
            ),
            Route("GET", "/v1/status", ask, "The state of the whole system.", response=Status),
            Route(
                "POST",
                "/v1/rebalance",
                ask,
                "Make a plan and carry it out.",
                RebalanceRequest,
                RebalanceAnswer,
            ),
            Route("POST", "/v1/nodes/{name}/drain", ask, "Drain a node.", response=NodeStatus),
            Route(
                "DELETE", "/v1/nodes/{name}/drain", ask, "End the draining.", response=NodeStatus
            ),
            Route(
                "GET", "/v1/topology", ask, "Who owns what, for clients.", response=TopologyAnswer
            ),
            Route(
                "GET",
                "/v1/subscribe",
                self._subscribe_sse,
                "Follow a topic, as server-sent events; WebSocket at the ws_url of /v1/status.",
                parameters=SUBSCRIBE_PARAMETERS,
                response_content_type="text/event-stream",
            ),
            Route("GET", "/health", own(self._show_health), "How this node is.", response=Health),
            Route(
                "GET",
                "/metrics",
                own(self._show_metrics),
                "Counters and timings, in Prometheus' text format.",
                response_content_type="text/plain",
            ),
            Route(
                "GET", "/openapi.json", own(self._show_openapi), "This description.", response=dict
            ),
        ]

    # --- subscribe -------------------------------------------------------------------------------

    async def _subscribe_sse(self, request: Request) -> StreamResponse:
        if request.headers.get("upgrade").lower() == "websocket":
            raise errors.InvalidRequest(
                f"WebSocket subscribers connect to {self.ws_url}", ws_url=self.ws_url
            )
        question = question_of(request.query, request.headers.get("last-event-id"))
        subscriber = await self._subscriptions.subscribe(question)
        return sse_response(self._subscriptions, subscriber, keep_alive_s=self._keep_alive_s)

    # --- passed on -------------------------------------------------------------------------------

    async def _ask_coordinator(self, request: Request) -> Response:
        return await self._forwarder.forward(
            request, self._coordinator_url(), timeout_s=COORDINATOR_TIMEOUT_S
        )

    async def _produce(self, request: Request) -> Response:
        url = self._ingest_url()
        if url is None:
            raise errors.PeerUnreachable("no ingest node is known at the moment; try again")
        return await self._forwarder.forward(request, url, timeout_s=PRODUCE_TIMEOUT_S)

    # --- about this node -------------------------------------------------------------------------

    def _own(self, answer: Callable[[], Response]) -> Handler:
        async def handler(_request: Request) -> Response:
            return answer()

        return handler

    def _show_health(self) -> Response:
        return json_response(self._health())

    def _show_metrics(self) -> Response:
        self._collect()
        return Response(200, self._metrics.exposed(), self._metrics.content_type)

    def _show_openapi(self) -> Response:
        return json_response(openapi(self.table(), title="Headgate", version=self._version))
