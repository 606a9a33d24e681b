"""The baselines of `bench deliver`: each transport with bytes that nobody looks at.

The servers, in a process of their own, read what comes and answer the same bytes every time. The
clients are made as those of the transports are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import msgspec
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from pyreqwest.client import ClientBuilder

from headgate.adapters.grpc.delivery import OPTIONS, SERVER_OPTIONS
from headgate.adapters.http.asgi import Send
from headgate.adapters.http.server import HttpServer
from headgate.adapters.nats.connection import connect
from headgate.bench.rebalance.orders import serve_orders
from headgate.bench.result import Failed
from headgate.model.http import JSON, Receive

HOST = "127.0.0.1"
METHOD = ("bench.Bare", "Echo")
SUBJECT = "bench.bare"
ANSWER_TIMEOUT_S = 30.0

Exchange = Callable[[bytes], Awaitable[bytes]]
"""Sends bytes and returns the answer."""


class Listen(msgspec.Struct, tag=True):
    """Serve this protocol with answers of so many bytes."""

    protocol: str
    nats: str
    answer_bytes: int


class Listening(msgspec.Struct):
    url: str


# --- the servers ---------------------------------------------------------------------------------


class _HttpEcho:
    """An ASGI application; HttpServer wants to be able to drain it, and to know whom it answers."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def __call__(self, _scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", JSON.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._answer, "more_body": False})

    async def drain(self, _timeout_s: float) -> None:
        return

    def answered(self) -> set[tuple[str, int]]:
        return set()


class Servers:
    def __init__(self) -> None:
        self._closing: list[Callable[[], Awaitable[object]]] = []

    async def listen(self, order: Listen) -> Listening:
        answer = b"x" * order.answer_bytes
        match order.protocol:
            case "http":
                http = HttpServer()
                self._closing.append(lambda: http.stop(0.0))
                echo: Any = _HttpEcho(answer)
                return Listening(f"http://{HOST}:{http.serve(echo, HOST, 0)}/")
            case "grpc":
                return await self._grpc(answer)
        client = await connect(order.nats, name="bare", closed=asyncio.Event())
        self._closing.append(client.close)

        async def respond(message: Msg) -> None:
            await message.respond(answer)

        await client.subscribe(SUBJECT, cb=respond)
        await client.flush()
        return Listening(order.nats)

    async def close(self) -> None:
        for close in self._closing:
            await close()

    async def _grpc(self, answer: bytes) -> Listening:
        async def echo(_batches: Any, context: Any) -> None:
            while await context.read() is not grpc.aio.EOF:
                await context.write(answer)

        server = grpc.aio.server(options=SERVER_OPTIONS)
        service, method = METHOD
        handler: Any = grpc.stream_stream_rpc_method_handler(echo)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        port = server.add_insecure_port(f"{HOST}:0")
        await server.start()
        self._closing.append(lambda: server.stop(None))
        return Listening(f"{HOST}:{port}")


# --- the clients ---------------------------------------------------------------------------------


class BareClient:
    """One connection; `exchange` makes what one sender uses."""

    def __init__(self, protocol: str, url: str) -> None:
        self._protocol = protocol
        self._url = url
        self._nats: Client | None = None
        self._http = ClientBuilder().http2_prior_knowledge().no_proxy().build()
        self._channel = grpc.aio.insecure_channel(url, options=OPTIONS)

    async def exchange(self) -> Exchange:
        match self._protocol:
            case "http":
                return self._post
            case "grpc":
                return self._stream()
        if self._nats is None:
            self._nats = await connect(self._url, name="bench", closed=asyncio.Event())
        return self._request

    async def close(self) -> None:
        await self._http.close()
        await self._channel.close()
        if self._nats is not None:
            await self._nats.close()

    async def _post(self, data: bytes) -> bytes:
        request = self._http.post(self._url).header("content-type", JSON).body_bytes(data).build()
        response = await request.send()
        if response.status != 200:
            raise Failed(f"the bare HTTP server answered {response.status}")
        return bytes(await response.bytes())

    def _stream(self) -> Exchange:
        stream: Any = self._channel.stream_stream("/{}/{}".format(*METHOD))()

        async def exchange(data: bytes) -> bytes:
            await stream.write(data)
            answer: bytes = await stream.read()
            return answer

        return exchange

    async def _request(self, data: bytes) -> bytes:
        assert self._nats is not None
        return (await self._nats.request(SUBJECT, data, timeout=ANSWER_TIMEOUT_S)).data


async def run() -> None:
    servers = Servers()
    try:
        await serve_orders(Listen, servers.listen)
    finally:
        await servers.close()


if __name__ == "__main__":
    uvloop.run(run())
