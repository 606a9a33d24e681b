"""A Headgate to operate: status, plans and draining over real HTTP, with what happens scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from headgate import errors
from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.decide.console.overview import overview_of
from headgate.model import api
from headgate.model.http import Request, Response, Route, json_response


def partition(number: int, **fields: object) -> api.TopicPartition:
    """A partition of i-1 and r-1 that keeps up, but for what `fields` say."""
    made = api.TopicPartition(number, 10, 10, 0, 0, "i-1", "r-1", 2, log_epoch=1)
    return msgspec.structs.replace(made, **fields)


def topic(name: str, *partitions: api.TopicPartition) -> api.TopicInfo:
    return api.TopicInfo(name, len(partitions), "keyed", 1, list(partitions), adopted=7)


def status(*topics: api.TopicInfo, **fields: object) -> api.Status:
    """One node of each role and a second router, that own what the partitions say."""
    found = [one for each in topics for one in each.details]
    owned = {
        "i-1": sum(one.owner == "i-1" for one in found),
        "r-1": sum(one.router == "r-1" for one in found),
        "r-2": sum(one.router == "r-2" for one in found),
    }
    roles = {"c-1": "coordinator", "g-1": "gateway", "i-1": "ingest", "r-1": "router"}
    nodes = [
        api.NodeStatus(node_id, role, "ready", partitions=owned.get(node_id, 0))
        for node_id, role in {**roles, "r-2": "router"}.items()
    ]
    made = api.Status(
        version="0.1.0",
        generation=7,
        revision=3,
        nodes=nodes,
        topics=list(topics),
        lanes=[],
        gateways=[],
        windows=[],
        subscriptions=0,
        leader="c-1",
    )
    return msgspec.structs.replace(made, **fields)


class OperatedServer:
    """Answers with `now`; each further look at the status takes the next of `then`, if any."""

    def __init__(self) -> None:
        self.url = ""
        self.now = status()
        self.then: list[api.Status | errors.HeadgateError] = []
        self.plans: list[list[api.PlannedMove]] = [[]]
        """What each look at the plan finds; the last one stays."""
        self.on_change: Callable[[], None] = lambda: None
        """What a rebalance, a drain or a repartition does, beyond being counted in `calls`."""
        self.repartition: api.RepartitionPlan | errors.HeadgateError = errors.NotFound("no plan")
        self.calls: list[str] = []

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/status", self._status),
            Route("GET", "/v1/overview", self._overview),
            Route("GET", "/v1/topics", self._topics),
            Route("GET", "/v1/topics/{name}", self._topic),
            Route("POST", "/v1/topics/{name}/repartition", self._repartition),
            Route("POST", "/v1/rebalance", self._rebalance),
            Route("POST", "/v1/nodes/{name}/drain", self._drain),
            Route("DELETE", "/v1/nodes/{name}/drain", self._drain),
            Route("POST", "/v1/nodes/{name}/restart", self._restart),
        ]

    async def _status(self, _request: Request) -> Response:
        answer = json_response(self.now)
        if self.then:
            following = self.then.pop(0)
            if isinstance(following, errors.HeadgateError):
                raise following
            self.now = following
        return answer

    async def _overview(self, _request: Request) -> Response:
        return json_response(overview_of(self.now, []))

    async def _topics(self, _request: Request) -> Response:
        return json_response(api.TopicList(self.now.topics))

    async def _topic(self, request: Request) -> Response:
        found = [one for one in self.now.topics if one.name == request.params["name"]]
        if not found:
            raise errors.UnknownTopic(f"there is no topic {request.params['name']}")
        return json_response(found[0])

    async def _repartition(self, request: Request) -> Response:
        body = await request.decode(api.RepartitionTopic, 1_000)
        if isinstance(self.repartition, errors.HeadgateError):
            raise self.repartition
        if not body.dry_run:
            self.calls.append(f"{request.params['name']} to {body.partitions}")
            self.on_change()
        return json_response(self.repartition, 200 if body.dry_run else 202)

    async def _rebalance(self, request: Request) -> Response:
        body = await request.decode(api.RebalanceRequest, 1_000)
        planned = self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]
        if not body.dry_run:
            self.calls.append("rebalance")
            self.on_change()
        return json_response(api.RebalanceAnswer(planned, body.dry_run))

    async def _drain(self, request: Request) -> Response:
        name = request.params["name"]
        node = next((node for node in self.now.nodes if node.id == name), None)
        if node is None:
            raise errors.NotFound(f"there is no node {name}: see `headgate node list`")
        self.calls.append(f"{request.method} {name}")
        state = "draining" if request.method == "POST" else "ready"
        at = self.now.nodes.index(node)
        self.now.nodes[at] = node = msgspec.structs.replace(node, state=state)
        self.on_change()
        return json_response(node)

    async def _restart(self, request: Request) -> Response:
        name = request.params["name"]
        node = next((node for node in self.now.nodes if node.id == name), None)
        if node is None:
            raise errors.NotFound(f"there is no node {name}: see `headgate node list`")
        self.calls.append(f"restart {name}")
        self.on_change()
        return json_response(node)


@asynccontextmanager
async def operated_server() -> AsyncIterator[OperatedServer]:
    server, http = OperatedServer(), HttpServer()
    port = await http.start(HttpApp(server.routes()), "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{port}"
    try:
        yield server
    finally:
        await http.stop(1.0)
