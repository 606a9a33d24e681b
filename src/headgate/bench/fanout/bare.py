"""The baseline of the fanout benchmark: a picows server that sends one frame to everybody.

Same event loop (uvloop), same kind of sockets, same bytes; one loop over the connections, the same
message for all. No HTTP, no queue, no subscription: what the library and the kernel can do.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
import uvloop
from picows import (
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    ws_create_server,
)

from headgate.bench.rebalance.orders import serve_orders

HOST = "127.0.0.1"
BACKLOG = 1_024
SUBSCRIBED = b'{"type":"subscribed","subscription":"bare"}'


class Listen(msgspec.Struct, tag=True):
    pass


class Listening(msgspec.Struct):
    url: str


class BareFanout(msgspec.Struct, tag=True):
    frame: str


class Sent(msgspec.Struct):
    """`at_s` is when the first frame was about to leave, on the machine's monotonic clock;
    `cpu_s` what the process has used since its start."""

    at_s: float
    clients: int
    cpu_s: float


class _Connection(WSListener):
    def __init__(self, everybody: dict[WSTransport, None]) -> None:
        super().__init__()
        self._everybody = everybody

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._everybody[transport] = None
        transport.send(WSMsgType.TEXT, SUBSCRIBED)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._everybody.pop(transport, None)


class Bare:
    """Broadcasts to all who are connected."""

    def __init__(self) -> None:
        self._everybody: dict[WSTransport, None] = {}
        self._server: asyncio.Server | None = None

    async def listen(self) -> Listening:
        def accept(_request: WSUpgradeRequest) -> WSListener:
            return _Connection(self._everybody)

        self._server = await ws_create_server(accept, HOST, 0, backlog=BACKLOG)
        port = self._server.sockets[0].getsockname()[1]
        return Listening(f"ws://{HOST}:{port}/")

    def broadcast(self, frame: bytes) -> Sent:
        began_s = time.monotonic()
        for transport in self._everybody:
            transport.send(WSMsgType.TEXT, frame)
        return Sent(began_s, len(self._everybody), time.process_time())


async def run() -> None:
    bare = Bare()

    async def answer(order: Listen | BareFanout) -> msgspec.Struct:
        match order:
            case Listen():
                return await bare.listen()
            case BareFanout(frame=frame):
                return bare.broadcast(frame.encode())

    await serve_orders(Listen | BareFanout, answer)


if __name__ == "__main__":
    uvloop.run(run())
