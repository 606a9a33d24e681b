"""The model gateway behind real sockets: status over HTTP, the rest over WebSocket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.model.api import Status, WhereToSubscribe
from headgate.model.http import Request, Response, Route, json_response
from tests.client.model_gateway import Message, ModelGateway, Session, compact


class _Connection(WSListener):
    def __init__(self, gateway: ModelGateway) -> None:
        super().__init__()
        self._gateway = gateway
        self._session: Session | None = None
        self._transport: WSTransport | None = None

    def send(self, message: Message) -> None:
        if self._transport is not None:
            self._transport.send(WSMsgType.TEXT, compact(message))

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._session = self._gateway.connect(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT and self._session is not None:
            self._session.heard(json.loads(frame.get_payload_as_bytes()))
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._session is not None:
            self._session.gone()


class ServedGateway(ModelGateway):
    url = ""
    ws_url = ""

    async def status(self, _request: Request) -> Response:
        return json_response(Status("0", 1, 1, [], [], [], [], [], 0, self.ws_url))

    async def where(self, _request: Request) -> Response:
        return json_response(WhereToSubscribe(self.ws_url))


@asynccontextmanager
async def served_gateway(more: Iterable[Route] = ()) -> AsyncIterator[ServedGateway]:
    """With `more` routes besides what says where it is."""
    gateway, http = ServedGateway(), HttpServer()
    server = await ws_create_server(lambda _: _Connection(gateway), "127.0.0.1", 0)
    gateway.ws_url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/subscribe"
    routes = [
        Route("GET", "/v1/status", gateway.status),
        Route("GET", "/v1/gateway", gateway.where),
        *more,
    ]
    port = await http.start(HttpApp(routes), "127.0.0.1", 0)
    gateway.url = f"http://127.0.0.1:{port}"
    try:
        yield gateway
    finally:
        gateway.drop_all()
        server.close()
        await http.stop(1.0)
