"""A gateway on free ports, with a log in memory, a coordinator and lanes that the test drives."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode

from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect
from pyreqwest.client import Client, ClientBuilder

from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.server import HttpServer
from headgate.adapters.listeners import ListenerOptions, listener_for
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.adapters.picows.server import PicowsListener, PingTimes
from headgate.adapters.transports import Transports
from headgate.model.web_files import WebFiles
from headgate.ports.audit import AuditTrail
from headgate.ports.letters import LetterStore
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.service import DedupOptions, Gateway, GatewayOptions
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from headgate.services.principals import KnownPrincipals
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.services.gateway.doubles import FakeCoordinator, FakeLanes, topology
from tests.written_log import WrittenLog

MakePrincipals = Callable[[ScriptedMachine], KnownPrincipals | None]
WAIT_S = 30.0
NODE = "gateway-1"


@dataclass
class World:
    gateway: Gateway
    log: WrittenLog
    coordinator: FakeCoordinator
    lanes: FakeLanes
    client: Client
    clock: Clock
    checkpoints: FaultyCheckpoints
    sockets: list[WsSubscriber] = field(default_factory=list)

    async def websocket(self, **query: str) -> WsSubscriber:
        parameters = {
            "topic": "flights",
            **{key.rstrip("_"): value for key, value in query.items()},
        }
        made = await WsSubscriber.connect(f"{self.gateway.ws_url}?{urlencode(parameters)}")
        self.sockets.append(made)
        return made

    async def connection(self, query: str = "?v=1") -> WsSubscriber:
        """Without a subscription: those are asked for in messages."""
        made = await WsSubscriber.connect(f"{self.gateway.ws_url}{query}")
        self.sockets.append(made)
        return made

    async def consumer_connection(self, query: str = "?v=1") -> WsSubscriber:
        """For a consumer of a group."""
        url = self.gateway.ws_url.replace("/v1/subscribe", "/v1/consume")
        made = await WsSubscriber.connect(f"{url}{query}")
        self.sockets.append(made)
        return made

    async def metric(self, name: str) -> float:
        answer = await self.client.get(f"{self.gateway.url}/metrics").build().send()
        lines = (await answer.text()).splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))

    @contextlib.asynccontextmanager
    async def sse(
        self, headers: dict[str, str] | None = None, /, **query: str
    ) -> AsyncIterator[SseSubscriber]:
        parameters = {
            "topic": "flights",
            **{key.rstrip("_"): value for key, value in query.items()},
        }
        request = (
            self.client.get(f"{self.gateway.url}/v1/subscribe?{urlencode(parameters)}")
            .headers(headers or {})
            .streamed_read_buffer_limit(0)
            .build_streamed()
        )
        async with request as answer:
            yield SseSubscriber(answer)

    async def produce(self, *documents: object, partition: int = 0) -> list[str]:
        """Append, then let the lanes deliver; returns their verdicts."""
        for document in documents:
            self.log.append(document, partition=partition)
        return await self.lanes.run()


@dataclass
class Clock:
    """Monotonic time as the test sets it."""

    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class WsSubscriber(WSListener):
    """A plain WebSocket client that keeps what it gets; can stop reading."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.close_code: int | None = None
        self.gone = asyncio.Event()
        self.transport: WSTransport

    @classmethod
    async def connect(cls, url: str) -> WsSubscriber:
        listener = cls()
        await ws_connect(lambda: listener, url)
        return listener

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            self.messages.put_nowait(json.loads(frame.get_payload_as_bytes()))
        elif frame.msg_type == WSMsgType.CLOSE:
            self.close_code = int(frame.get_close_code())  # type: ignore[call-overload]  # a C enum
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.gone.set()

    async def next(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.messages.get(), WAIT_S)

    def say(self, **message: Any) -> None:
        named = {key.rstrip("_"): value for key, value in message.items()}
        self.transport.send(WSMsgType.TEXT, json.dumps(named).encode())

    async def ask(self, **message: Any) -> dict[str, Any]:
        """Say something, and return what is heard next."""
        self.say(**message)
        return await self.next()

    async def subscribe(self, id_: str, **question: Any) -> dict[str, Any]:
        return await self.ask(type="subscribe", id=id_, **{"topic": "flights", **question})

    async def events(self, count: int) -> list[tuple[int, int]]:
        got = [await self.next() for _ in range(count)]
        assert all(message["type"] == "event" for message in got), got
        return [(message["partition"], message["seq"]) for message in got]

    async def closed(self) -> int | None:
        await asyncio.wait_for(self.gone.wait(), WAIT_S)
        return self.close_code

    def stop_reading(self) -> None:
        self.transport.underlying_transport.pause_reading()

    def read_on(self) -> None:
        self.transport.underlying_transport.resume_reading()

    def leave(self) -> None:
        self.transport.disconnect(graceful=False)


@dataclass
class SseSubscriber:
    answer: Any
    _rest: bytes = field(default=b"", init=False)

    async def next(self) -> dict[str, Any]:
        """The next event as {"id", "event", "data"}; a comment as {"comment"}."""
        while b"\n\n" not in self._rest:
            chunk = await asyncio.wait_for(self.answer.body_reader.read_chunk(), WAIT_S)
            assert chunk is not None, "the stream has ended"
            self._rest += bytes(chunk)
        block, _, self._rest = self._rest.partition(b"\n\n")
        out: dict[str, Any] = {}
        for line in block.decode().split("\n"):
            name, _, value = line.partition(": ")
            out[name or "comment"] = json.loads(value) if name == "data" else value
        return out

    async def events(self, count: int) -> list[tuple[int, int]]:
        got = [await self.next() for _ in range(count)]
        assert all(one["event"] == "event" for one in got), got
        return [(one["data"]["partition"], one["data"]["seq"]) for one in got]

    async def ended(self) -> bool:
        chunk = await asyncio.wait_for(self.answer.body_reader.read_chunk(), WAIT_S)
        return chunk is None and not self._rest


@contextlib.asynccontextmanager
async def running(
    *,
    bounds: Bounds | None = None,
    coordinator: FakeCoordinator | None = None,
    coordinator_url: str = "http://127.0.0.1:9",
    keep_alive_s: float = 15.0,
    stop_timeout_s: float = 2.0,
    dedup: DedupOptions | None = None,
    pings: PingTimes | None = None,
    consumers: ConsumerBounds | None = None,
    checkpoints: FaultyCheckpoints | None = None,
    deliveries: ListenerOptions | None = None,
    letters: LetterStore | None = None,
    origins: tuple[str, ...] = (),
    masked: tuple[str, ...] = (),
    web_files: WebFiles | None = None,
    make_principals: MakePrincipals = lambda _: None,
    demo: str = "",
    audit: AuditTrail | None = None,
) -> AsyncIterator[World]:
    log, clock = WrittenLog(), Clock()
    machine = ScriptedMachine(clock=clock)
    coordinator = coordinator or FakeCoordinator()
    if not coordinator.topology.generation:
        coordinator.topology = topology()
    options = GatewayOptions(
        NODE,
        "incarnation-1",
        coordinator_url,
        bounds=bounds or Bounds(subscribe_timeout_s=WAIT_S, topic_grace_s=0.05),
        keep_alive_s=keep_alive_s,
        report_every_s=0.02,
        stop_timeout_s=stop_timeout_s,
        dedup=dedup or DedupOptions(),
        consumers=consumers or ConsumerBounds(save_s=0.02),
        origins=origins,
        masked=masked,
        demo=demo,
    )
    checkpoints = checkpoints or FaultyCheckpoints()
    listener = deliveries or ListenerOptions()
    gateway = Gateway(
        options,
        reader=log,
        checkpoints=checkpoints,
        open_session=coordinator.open_session,
        letters=letters,
        http=HttpServer(),
        calls=PooledCalls(),
        open_listener=partial(listener_for, listener, NODE, incarnation="1"),
        connections=PicowsListener(pings),
        machine=machine,
        web_files=web_files,
        principals=make_principals(machine),
        audit=audit,
    )
    await gateway.start()
    lanes = FakeLanes(log, coordinator, NODE, gateway.delivery_url)
    lanes.transport = Transports("lane", nats=listener.nats)
    client = ClientBuilder().timeout(timedelta(seconds=30)).build()
    world = World(gateway, log, coordinator, lanes, client, clock, checkpoints)
    try:
        yield world
    finally:
        for socket in world.sockets:
            socket.leave()
            await socket.closed()
        await gateway.stop()
        await lanes.transport.close()
        await client.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for `condition`, with a bound; for effects that nobody announces."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - nothing signals these effects
            await asyncio.sleep(0.005)
