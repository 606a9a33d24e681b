"""A gateway that misbehaves on request, and a link to it that can be cut.

The gateway is the real one, in the test's own process. Lanes reach it through a front that hangs,
refuses or answers nonsense while a trouble lasts, and through a relay that swallows what it should
pass on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Literal

import msgspec

from headgate.adapters.delivery_wire import Accept
from headgate.adapters.http.app import HttpApp
from headgate.adapters.http.delivery import delivery_routes
from headgate.adapters.http.messages import Handler, Request, Response, Route, StreamResponse
from headgate.adapters.http.server import HttpServer
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch, Verdict
from headgate.services.gateway.listeners import Listener
from headgate.services.gateway.service import GatewayOptions
from tests.system.recorder import RecordingGateway

Trouble = Literal[
    "hangs",
    "answers 500",
    "answers 400",
    "answers garbage",
    "accepts half a batch",
    "is 100 times slower",
    "loses its answers",
    "is cut off",
]
SLOWLY_S = 0.3
"""A batch takes some 3 ms otherwise."""


class WickedGateway(RecordingGateway):
    """`in_trouble` is how a test makes it misbehave."""

    _front: Front

    def _listener(self, options: GatewayOptions, accept: Accept) -> Listener:
        self._front = Front(accept)
        return self._front

    @contextlib.contextmanager
    def in_trouble(self, trouble: Trouble) -> Iterator[None]:
        self._loop.call_soon_threadsafe(self._front.begin, trouble)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._front.end)


class Front:
    """Implements services.gateway.listeners.Listener."""

    def __init__(self, accept: Accept) -> None:
        self._accept_all = accept
        self._trouble: Trouble | None = None
        self._over = asyncio.Event()
        self._server = HttpServer()
        self._relay = Relay()

    async def start(self) -> str:
        routes = delivery_routes(self._accept, lambda *_: None)
        wicked = [Route(r.method, r.path, self._wicked(r.handler), public=False) for r in routes]
        port = await self._server.start(HttpApp(wicked), "127.0.0.1", 0, setting="front")
        return f"http://127.0.0.1:{await self._relay.start(port)}"

    async def stop(self, timeout_s: float) -> None:
        self._over.set()
        await self._relay.stop()
        await self._server.stop(timeout_s)

    def begin(self, trouble: Trouble) -> None:
        self._trouble = trouble
        self._over.clear()
        self._relay.swallows = trouble == "is cut off"

    def end(self) -> None:
        self._trouble = None
        self._over.set()
        self._relay.heal()

    def _wicked(self, handle: Handler) -> Handler:
        async def endpoint(request: Request) -> Response | StreamResponse:
            match self._trouble:
                case "hangs":
                    await self._over.wait()
                case "answers 500":
                    return Response(500, b"{}")
                case "answers 400":
                    return Response(400, b"{}")
                case "answers garbage":
                    return Response(200, b"\xff not what you expect")
                case "is 100 times slower":
                    await asyncio.sleep(SLOWLY_S)
                case "loses its answers":
                    await handle(request)
                    await self._over.wait()
                    return Response(500, b"{}")
                case _:
                    pass
            return await handle(request)

        return endpoint

    def _accept(self, batch: DeliveryBatch) -> DeliveryAnswer:
        accept = self._accept_all
        if self._trouble != "accepts half a batch" or len(batch.deliveries) < 2:
            return accept(batch)
        half = len(batch.deliveries) // 2
        first = msgspec.structs.replace(batch, deliveries=batch.deliveries[:half])
        later: list[Verdict] = ["retry"] * (len(batch.deliveries) - half)
        answer = accept(first)
        return msgspec.structs.replace(answer, verdicts=(*answer.verdicts, *later))


class Relay:
    """Passes bytes on in both directions, or swallows them while connections stay open."""

    def __init__(self) -> None:
        self.swallows = False
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, target_port: int) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", target_port)
            for source, sink in ((reader, back), (there, writer)):
                self._open.add(sink)
                task = asyncio.create_task(self._pass_on(source, sink))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        self._server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                if not self.swallows:
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass
        finally:
            self._open.discard(sink)
            sink.close()

    def heal(self) -> None:
        """What was swallowed is gone, so no connection can go on where it was."""
        if self.swallows:
            self.swallows = False
            for sink in list(self._open):
                sink.close()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
