"""Where the demo's page looks and asks: beside the system, so that it is there when that isn't.

The page itself comes from the gateway, at /ui/demo, and follows the aircraft through /client.js
like anybody; here it gets what only the demo knows, and here it asks for what hurts. Invariants:
only that page may call, besides programs of this machine; a page that is slow gets the newest state
and none in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from headgate import errors
from headgate.adapters.http.http1_server import Http1Server
from headgate.answering import HttpApp
from headgate.decide.http.web_pages import WebPages
from headgate.demo.page.dares import Dare, Dares, Told
from headgate.demo.view import View
from headgate.model.http import (
    JSON,
    Answer,
    Request,
    Response,
    Route,
    StreamResponse,
    encode_json,
    error_response,
    json_response,
)

HOST = "127.0.0.1"
PAGE_PATH = "/ui/demo"
SHOWN_EVERY_S = 0.5
KEEP_ALIVE_S = 10.0
WATCHERS_MOST = 50
STOP_TIMEOUT_S = 1.0
STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}


@dataclass(frozen=True, slots=True)
class BoothState:
    """What the page shows of the demo at a moment."""

    view: View
    dares: list[Dare] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)


class Booth:
    """Start it before the system, whose gateway has to know its `url`; `begin` when that is up."""

    def __init__(self) -> None:
        self._server = Http1Server()
        self._app: HttpApp | None = None
        self._dares: Dares | None = None
        self._state = b""
        self._changed = asyncio.Event()
        self._watchers = 0
        self.url = ""

    async def start(self) -> None:
        port = await self._server.start(self, HOST, 0)
        self.url = f"http://{HOST}:{port}"

    async def stop(self) -> None:
        await self._server.stop(STOP_TIMEOUT_S)

    def begin(self, address: str, dares: Dares) -> None:
        """The page comes from `address`, under whatever name this machine goes by there."""
        port = int(address.rpartition(":")[2])
        self._dares = dares
        self._app = HttpApp(
            [
                Route("GET", "/state", self._follow),
                Route("POST", "/dares/{name}", self._take, accepts=(JSON,)),
            ],
            WebPages.of(HOST, origins=[f"http://{name}:{port}" for name in (HOST, "localhost")]),
        )

    def show(self, view: View) -> None:
        dares = self._dares
        if dares is not None:
            view = replace(
                view,
                skipped=view.skipped + dares.left_out,
                duplicates=view.duplicates + dares.again,
            )
            self._state = encode_json(BoothState(view, dares.list(), dares.told))
            self._changed.set()
            self._changed = asyncio.Event()  # followers wait for the next state at this

    # --- answers ---------------------------------------------------------------------------------

    async def answer(self, request: Request) -> Answer:
        """Implements ports.http.App."""
        if self._app is None:
            return error_response(errors.NotNow("the demo is starting; try again"))
        return await self._app.answer(request)

    async def _follow(self, _request: Request) -> StreamResponse:
        if self._watchers >= WATCHERS_MOST:
            raise errors.Overloaded(f"{WATCHERS_MOST} pages watch this demo already; close one")
        return StreamResponse(200, dict(STREAM_HEADERS), self._states())

    async def _states(self) -> AsyncIterator[bytes]:
        self._watchers += 1
        try:
            while True:
                changed = self._changed
                if self._state:
                    yield b"data: " + self._state + b"\n\n"
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await changed.wait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._watchers -= 1

    async def _take(self, request: Request) -> Response:
        assert self._dares is not None, "there is a route"
        self._dares.take(request.params["name"])
        return json_response({"taken": request.params["name"]}, 202)
