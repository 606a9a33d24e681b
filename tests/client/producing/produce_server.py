"""A small Headgate over real HTTP: status, topics and produce, with answers to be scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from headgate import errors
from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.decide.produce.placement import partition_of
from headgate.model.api import (
    CreateTopic,
    ErrorBody,
    GatewayStatus,
    LaneStatus,
    NodeStatus,
    ProduceAnswer,
    ProduceEvent,
    ProduceRequest,
    ProduceResult,
    Status,
    TopicInfo,
    TopicList,
    TopologyAnswer,
    WindowStatus,
)
from headgate.model.http import Request, Response, Route, json_response

Script = Callable[[list[ProduceEvent]], ProduceAnswer | None]
"""May raise, may answer; None means: write them."""


class ProduceServer:
    """Keeps what was produced, in order; `script` is asked before each request is written."""

    def __init__(self) -> None:
        self.url = ""
        self.topics: dict[str, TopicInfo] = {}
        self.log: dict[tuple[str, int], list[ProduceEvent]] = {}
        self.requests: list[list[ProduceEvent]] = []
        self.status_requests = 0
        self.topology: TopologyAnswer | None = None
        self.topology_requests = 0
        self.versions: list[int | None] = []
        """The version that each request carried."""
        self.again: list[bool] = []
        """Whether each request said that it has events that were sent before."""
        self.credentials: set[str] = set()
        """What producers said of who they are."""
        self.nodes: list[NodeStatus] = []
        self.lanes: list[LaneStatus] = []
        self.gateways: list[GatewayStatus] = []
        self.windows: list[WindowStatus] = []
        self.ws_url = ""
        self.script: Script = lambda _events: None
        self.instead: Response | None = None
        """What something in between answers, whatever was written."""
        self._seqs: dict[str, tuple[int, int]] = {}

    def add_topic(self, name: str, partitions: int = 4) -> None:
        self.topics[name] = TopicInfo(name, partitions, "keyed", 1)

    def written(self, topic: str) -> list[ProduceEvent]:
        return [
            event for (name, _), log in sorted(self.log.items()) if name == topic for event in log
        ]

    def documents(self, topic: str) -> list[Any]:
        return [msgspec.json.decode(event.document) for event in self.written(topic)]

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/status", self._status),
            Route("GET", "/v1/topology", self._topology),
            Route("GET", "/v1/topics", self._list),
            Route("POST", "/v1/topics", self._create),
            Route("GET", "/v1/topics/{name}", self._describe),
            Route("DELETE", "/v1/topics/{name}", self._delete),
            Route("POST", "/v1/topics/{name}/produce", self._produce),
        ]

    def _topic(self, request: Request) -> TopicInfo:
        name = request.params["name"]
        if name not in self.topics:
            raise errors.UnknownTopic(f"there is no topic {name}", topic=name)
        return self.topics[name]

    async def _status(self, _request: Request) -> Response:
        self.status_requests += 1
        topics = list(self.topics.values())
        status = Status(
            version="0.1.0",
            generation=7,
            revision=3,
            nodes=self.nodes,
            topics=topics,
            lanes=self.lanes,
            gateways=self.gateways,
            windows=self.windows,
            subscriptions=0,
            ws_url=self.ws_url,
        )
        return json_response(status)

    async def _topology(self, _request: Request) -> Response:
        self.topology_requests += 1
        if self.topology is None:
            raise errors.NotFound("there is nothing at /v1/topology")
        return json_response(self.topology)

    async def _list(self, _request: Request) -> Response:
        return json_response(TopicList(list(self.topics.values())))

    async def _create(self, request: Request) -> Response:
        wanted = await request.decode(CreateTopic, 10_000)
        if wanted.name in self.topics:
            raise errors.TopicExists(f"the topic {wanted.name} exists already")
        self.topics[wanted.name] = TopicInfo(
            wanted.name, wanted.partitions or 1, wanted.placement, 1
        )
        return json_response(self.topics[wanted.name], 201)

    async def _describe(self, request: Request) -> Response:
        return json_response(self._topic(request))

    async def _delete(self, request: Request) -> Response:
        del self.topics[self._topic(request).name]
        return Response(204)

    async def _produce(self, request: Request) -> Response:
        topic = self._topic(request)
        body = await request.decode(ProduceRequest, 16 * 1024 * 1024)
        self.requests.append(body.events)
        self.versions.append(body.version)
        self.again.append(body.again)
        self.credentials.add(request.headers.get("authorization"))
        answer = self.script(body.events)
        answer = answer or ProduceAnswer([self._write(topic, e) for e in body.events])
        return self.instead or json_response(answer)

    def _write(self, topic: TopicInfo, event: ProduceEvent) -> ProduceResult:
        assert event.event_id is not None
        if event.event_id not in self._seqs:
            key = event.event_id if event.key is None else event.key
            place = partition_of(key, collection=event.collection, count=topic.partitions)
            log = self.log.setdefault((topic.name, place), [])
            log.append(event)
            self._seqs[event.event_id] = (place, len(log))
        return ProduceResult(event.event_id, *self._seqs[event.event_id])

    def failing(self, topic: str, events: list[ProduceEvent], fails: set[str]) -> ProduceAnswer:
        """Writes `events` but for those with a key in `fails`, which get an error each."""
        info = self.topics[topic]
        error = ErrorBody("unavailable", "not now")
        return ProduceAnswer(
            [
                ProduceResult(event.event_id or "", error=error)
                if event.key in fails
                else self._write(info, event)
                for event in events
            ]
        )


@asynccontextmanager
async def produce_server() -> AsyncIterator[ProduceServer]:
    server, http = ProduceServer(), HttpServer()
    port = await http.start(HttpApp(server.routes()), "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{port}"
    try:
        yield server
    finally:
        await http.stop(1.0)
