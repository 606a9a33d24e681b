"""The coordinator's shell: streams, topic administration and the clock around the pure decisions.

Everything that changes the cluster runs through `_apply`, one at a time: the decision is made
without I/O, then its effects are carried out in order, so what is announced is already durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Protocol

import msgspec
import structlog

from headgate.adapters.grpc.control import GrpcControlServer, ServerStream
from headgate.adapters.http.app import HttpApp, Request, Response, Route, json_response
from headgate.adapters.http.server import HttpServer
from headgate.decide.coordination.cluster import Cluster
from headgate.decide.coordination.effects import Effect, FenceCheckpoints, Hang, Persist, Send
from headgate.decide.coordination.members import Timing
from headgate.decide.coordination.status import Stored, describe, describe_topic, unreported
from headgate.errors import Fenced, NotNow, PortInUse, StorageFailed, UnknownTopic
from headgate.model import api
from headgate.model.control import Goodbye, Hello
from headgate.model.event import Fence, PartitionRef
from headgate.model.stored import StoredState
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.coordination import CoordinationStore
from headgate.ports.log import LogReader
from headgate.telemetry import LogEvent

log = structlog.get_logger()

TICK_S = 0.5
TOPIC_READY_TIMEOUT_S = 10.0
MAX_BODY_BYTES = 64 * 1024
ANY_HOST = ("", "0.0.0.0", "::")  # noqa: S104  # compared with, not listened on


class Clock(Protocol):
    def __call__(self) -> int: ...


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """`ports` are the gRPC ports: routers and ingest nodes on the first, gateways on the second."""

    node_id: str
    host: str
    ports: tuple[int, int]
    http_port: int
    timing: Timing
    default_partitions: int


class Coordinator:
    """Owns the cluster state; `start`, then serve until `stop`."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        store: CoordinationStore,
        checkpoints: CheckpointStore,
        reader: LogReader,
        now_ms: Clock = monotonic_ms,
    ) -> None:
        self._settings = settings
        self._store = store
        self._checkpoints = checkpoints
        self._reader = reader
        self._now_ms = now_ms
        self._streams: dict[int, ServerStream] = {}
        self._next_session = 1
        self._lock = asyncio.Lock()
        self._changed = asyncio.Condition(self._lock)
        self._control = GrpcControlServer(self._serve)
        self._http = HttpServer()
        self._ticker: asyncio.Task[None] | None = None
        self._applying: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started_s = time.monotonic()
        self._url = ""
        self._client_address = ""
        self._cluster: Cluster

    async def start(self) -> str:
        """Returns the address of its HTTP interface."""
        settings = self._settings
        stored = await self._store.load()
        stored = msgspec.structs.replace(stored, boot=stored.boot + 1)
        await self._store.save(stored)
        self._cluster = self._new_cluster(stored)
        port = await self._http.start(
            self._app(), settings.host, settings.http_port, setting="coordinator.http_port"
        )
        try:
            _, client_port = await self._control.start(settings.host, list(settings.ports))
        except OSError as error:
            raise PortInUse(
                f"one of the ports {settings.ports} on {settings.host} is in use; stop what "
                "listens there or set coordinator.router_port and coordinator.consumer_port"
            ) from error
        self._ticker = asyncio.create_task(self._tick(), name="coordinator-tick")
        self._url = f"http://{settings.host}:{port}"
        # Nobody can connect to the address that stands for all of a machine's.
        if settings.host not in ANY_HOST:
            self._client_address = f"{settings.host}:{client_port}"
        return self._url

    async def failed(self) -> None:
        """Waits for as long as the coordinator works; raises what keeps it from doing so."""
        await asyncio.shield(self._broken)

    async def stop(self, grace_s: float = 2.0) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        for stream in self._streams.values():
            stream.hang()
        await self._control.stop(grace_s)
        await self._http.stop(grace_s)
        await self._store.close()
        await self._checkpoints.close()
        await self._reader.close()

    def _new_cluster(self, stored: StoredState) -> Cluster:
        settings = self._settings
        return Cluster(stored, settings.timing, settings.node_id, self._now_ms())

    # --- streams -------------------------------------------------------------------------------

    async def _serve(self, stream: ServerStream, hello: Hello) -> None:
        session, self._next_session = self._next_session, self._next_session + 1
        self._streams[session] = stream
        bound = log.bind(node=hello.node_id, node_role=hello.role, session=session)
        bound.info(LogEvent.CONNECTED, window=hello.window, attempt=hello.attempt)
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._apply(partial(self._cluster.opened, session, hello))
            tasks.append(asyncio.create_task(stream.write_until_hung()))
            tasks.append(asyncio.create_task(self._read(session, stream)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._streams[session]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            bound.info(LogEvent.DISCONNECTED)
            await self._apply(partial(self._cluster.closed, session))

    async def _read(self, session: int, stream: ServerStream) -> None:
        while (message := await stream.receive()) is not None:
            await self._apply(
                lambda now: self._cluster.received(session, message, now)
            )  # applied before the next one is read
            if isinstance(message, Goodbye):
                return

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._apply(self._cluster.tick)
            except Exception:
                log.exception(LogEvent.UNEXPECTED)

    async def _apply(self, decide: Callable[[int], list[Effect]]) -> None:
        """Decide, then carry out every effect, also when whoever asked goes away meanwhile."""
        applying = asyncio.create_task(self._apply_whole(decide))
        self._applying.add(applying)
        applying.add_done_callback(self._applying.discard)
        await asyncio.shield(applying)

    async def _apply_whole(self, decide: Callable[[int], list[Effect]]) -> None:
        async with self._lock:
            effects = decide(self._now_ms())
            try:
                for effect in effects:
                    await self._carry_out(effect)
            except Exception as error:
                # What was decided can't be taken back, and half of it is told: only a new start
                # from the store brings everybody together again.
                if not self._broken.done():
                    self._broken.set_exception(error)
                raise
            self._changed.notify_all()

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(session, message):
                if (stream := self._streams.get(session)) is not None:
                    stream.send(message)
            case Hang(session):
                if (stream := self._streams.get(session)) is not None:
                    stream.hang()
            case Persist(state):
                await self._store.save(state)
            case FenceCheckpoints(owners):
                for owner in owners:
                    # A higher fence there means that this epoch is history already.
                    with contextlib.suppress(Fenced):
                        await self._checkpoints.claim(owner.ref, Fence(owner.epoch))

    # --- HTTP ----------------------------------------------------------------------------------

    def _app(self) -> HttpApp:
        return HttpApp(
            [
                Route("POST", "/v1/topics", self._create_topic),
                Route("GET", "/v1/topics", self._list_topics),
                Route("GET", "/v1/topics/{name}", self._describe_topic),
                Route("DELETE", "/v1/topics/{name}", self._delete_topic),
                Route("GET", "/v1/status", self._status),
                Route("GET", "/v1/topology", self._topology),
                Route("GET", "/health", self._health),
            ]
        )

    async def _create_topic(self, request: Request) -> Response:
        body = msgspec.json.decode(await request.body(MAX_BODY_BYTES), type=api.CreateTopic)
        partitions = (
            self._settings.default_partitions if body.partitions is None else body.partitions
        )
        with contextlib.suppress(TimeoutError):
            await self._until(lambda: self._cluster.is_dropped(body.name))
        await self._apply(
            lambda _: self._cluster.create_topic(body.name, partitions, body.placement)
        )
        log.info(LogEvent.TOPIC_CREATED, topic=body.name, partitions=partitions)
        await self._served(body.name)
        return json_response(await self._topic_info(body.name), 201)

    async def _served(self, name: str) -> None:
        """Wait until ingest nodes serve the topic, so that a produce right after this works."""
        topic = self._cluster.topics[name]
        try:
            await self._until(lambda: self._cluster.logs_adopted(topic))
        except TimeoutError:
            raise NotNow(
                f"topic {name} is created, but no ingest node serves it yet; start one with "
                "`headgate ingest`"
            ) from None

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TOPIC_READY_TIMEOUT_S), self._lock:
            await self._changed.wait_for(condition)

    async def _delete_topic(self, request: Request) -> Response:
        name = request.params["name"]
        await self._apply(lambda _: self._cluster.delete_topic(name))
        log.info(LogEvent.TOPIC_DELETED, topic=name)
        return Response(204)

    async def _list_topics(self, _request: Request) -> Response:
        return json_response(
            api.TopicList([await self._topic_info(name) for name in sorted(self._cluster.topics)])
        )

    async def _describe_topic(self, request: Request) -> Response:
        return json_response(await self._topic_info(request.params["name"]))

    async def _topic_info(self, name: str) -> api.TopicInfo:
        stored = await self._stored()
        topic = self._cluster.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name}", name=name)
        return describe_topic(self._cluster, topic, stored=stored, wall_ms=_wall_ms())

    async def _status(self, _request: Request) -> Response:
        stored = await self._stored()
        status = describe(
            self._cluster,
            version=version("headgate"),
            stored=stored,
            now_ms=self._now_ms(),
            wall_ms=_wall_ms(),
        )
        me = api.NodeStatus(
            self._settings.node_id,
            "coordinator",
            "ready",
            self._url,
            pid=os.getpid(),
        )
        status.nodes.insert(0, me)
        return json_response(status)

    async def _topology(self, _request: Request) -> Response:
        return json_response(api.TopologyAnswer(self._cluster.topology(), self._client_address))

    async def _stored(self) -> Stored:
        """What the stores know, so that lag is right also while nothing follows the log."""
        settled = await self._checkpoints.list()
        oldest_ms: dict[PartitionRef, int] = {}
        for ref in unreported(self._cluster, settled):
            with contextlib.suppress(StorageFailed):
                for record in await self._reader.read(ref, after_seq=settled.get(ref, 0), limit=1):
                    oldest_ms[ref] = record.time_ms
        return Stored(settled, oldest_ms)

    async def _health(self, _request: Request) -> Response:
        uptime_s = time.monotonic() - self._started_s
        return json_response(
            api.Health("healthy", "coordinator", version("headgate"), round(uptime_s, 3))
        )


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
