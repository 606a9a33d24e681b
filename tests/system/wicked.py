"""A gateway that misbehaves on request.

The gateway is the real one, in the test's own process. Lanes reach it through a front that hangs,
refuses or answers nonsense while a trouble lasts. For links that are cut see link.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Literal

import msgspec

from headgate.adapters.delivery_outcome import taken
from headgate.adapters.http.delivery import delivery_routes
from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.config import Config
from headgate.errors import InvalidRequest
from headgate.model.delivery import Batch, DeliveryAnswer, DeliveryBatch, Verdict
from headgate.model.http import (
    Handler,
    Request,
    Response,
    Route,
    StreamResponse,
    error_response,
)
from headgate.ports.transport import Accept, DeliveryListener
from tests.system.recorder import RecordingGateway

Trouble = Literal[
    "hangs",
    "answers 500",
    "answers 400",
    "answers garbage",
    "accepts half a batch",
    "is 100 times slower",
]
SLOWLY_S = 0.3
"""A batch takes some 3 ms otherwise."""


class WickedGateway(RecordingGateway):
    """`in_trouble` is how a test makes it misbehave."""

    _front: Front

    def _listener(self, config: Config, accept: Accept) -> DeliveryListener:
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
    """Implements ports.transport.DeliveryListener."""

    def __init__(self, accept: Accept) -> None:
        self._accept_all = accept
        self._trouble: Trouble | None = None
        self._over = asyncio.Event()
        self._server = HttpServer()

    async def start(self) -> str:
        routes = delivery_routes(self._accept, lambda *_: None)
        wicked = [Route(r.method, r.path, self._wicked(r.handler), public=False) for r in routes]
        port = await self._server.start(HttpApp(wicked), "127.0.0.1", 0, setting="front")
        return f"http://127.0.0.1:{port}"

    async def stop(self, timeout_s: float) -> None:
        self._over.set()
        await self._server.stop(timeout_s)

    async def failed(self) -> None:
        await self._server.failed()

    def begin(self, trouble: Trouble) -> None:
        self._trouble = trouble
        self._over.clear()

    def end(self) -> None:
        self._trouble = None
        self._over.set()

    def _wicked(self, handle: Handler) -> Handler:
        async def endpoint(request: Request) -> Response | StreamResponse:
            match self._trouble:
                case "hangs":
                    await self._over.wait()
                case "answers 500":
                    return Response(500, b"{}")
                case "answers 400":
                    return error_response(InvalidRequest("nobody can read this batch"))
                case "answers garbage":
                    return Response(200, b"\xff not what you expect")
                case "is 100 times slower":
                    await asyncio.sleep(SLOWLY_S)
                case _:
                    pass
            return await handle(request)

        return endpoint

    async def _accept(self, batch: Batch) -> DeliveryAnswer:
        accept = self._accept_all
        if self._trouble != "accepts half a batch" or len(batch.deliveries) < 2:
            return await taken(accept, batch)
        half = len(batch.deliveries) // 2
        first = DeliveryBatch(
            batch.gateway_id, batch.window, batch.attempt, batch.deliveries[:half]
        )
        later: list[Verdict] = ["retry"] * (len(batch.deliveries) - half)
        answer = await taken(accept, first)
        return msgspec.structs.replace(answer, verdicts=(*answer.verdicts, *later))
