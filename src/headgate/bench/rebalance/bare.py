"""The baseline of the clients' part: a gRPC server that decides nothing.

The same streams from the same clients: it greets each, pushes the same topology to all when told
to, and counts the acknowledgements. No registry, no floor, no store: what ten thousand streams cost
on this machine by themselves.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import msgspec
import uvloop

from headgate.adapters.control_stream import decode_to_coordinator, encode
from headgate.adapters.grpc.control import CHANNEL_OPTIONS
from headgate.bench.rebalance.orders import serve_orders
from headgate.model.control.from_coordinator import CheckedIn, PushTopology, Welcome
from headgate.model.control.to_coordinator import AckTopology, CheckIn
from headgate.model.topology import Topology

HOST = "127.0.0.1"
LEASE_MS = 30_000
CHECK_IN_MS = 5_000


class Listen(msgspec.Struct, tag=True):
    """Serve this topology on any free port; answered with `Listening`."""

    topology: Topology


class Push(msgspec.Struct, tag=True):
    """Push another topology; answered with `Heard` when every stream has acknowledged it."""

    topology: Topology
    timeout_s: float


class Listening(msgspec.Struct):
    address: str


class Heard(msgspec.Struct):
    seconds: float


class _Stream:
    """A stream takes one write at a time."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._writing = asyncio.Lock()

    async def write(self, data: bytes) -> None:
        async with self._writing:
            await self._context.write(data)


class Bare:
    def __init__(self, topology: Topology) -> None:
        self._server = grpc.aio.server(options=CHANNEL_OPTIONS)
        self._pushed = topology
        self._streams: list[_Stream] = []
        self._missing = 0
        self._all_heard = asyncio.Event()

    async def listen(self) -> Listening:
        handler = grpc.method_handlers_generic_handler(
            "headgate.Control", {"Session": grpc.stream_stream_rpc_method_handler(self._session)}
        )
        self._server.add_generic_rpc_handlers((handler,))
        port = self._server.add_insecure_port(f"{HOST}:0")
        await self._server.start()
        return Listening(f"{HOST}:{port}")

    async def push(self, order: Push) -> Heard:
        began_s = time.monotonic()
        self._pushed, self._missing = order.topology, len(self._streams)
        self._all_heard.clear()
        data = encode(PushTopology(order.topology))
        await asyncio.gather(*(stream.write(data) for stream in self._streams))
        async with asyncio.timeout(order.timeout_s):
            await self._all_heard.wait()
        return Heard(time.monotonic() - began_s)

    async def close(self) -> None:
        await self._server.stop(0)

    async def _session(self, _request: Any, context: Any) -> None:
        stream = _Stream(context)
        await context.read()
        await stream.write(encode(Welcome("bare", LEASE_MS, CHECK_IN_MS)))
        self._streams.append(stream)  # before the benchmark can take it for connected
        await stream.write(encode(PushTopology(self._pushed)))
        while (data := await context.read()) is not grpc.aio.EOF:
            message = decode_to_coordinator(data)
            if isinstance(message, CheckIn):
                await stream.write(encode(CheckedIn()))
            elif isinstance(message, AckTopology) and self._missing:
                self._missing -= message.generation == self._pushed.generation
                if not self._missing:
                    self._all_heard.set()


async def run() -> None:
    servers: list[Bare] = []

    async def answer(order: Listen | Push) -> msgspec.Struct:
        match order:
            case Listen(topology):
                servers.append(Bare(topology))
                return await servers[0].listen()
            case Push():
                return await servers[0].push(order)

    await serve_orders(Listen | Push, answer)
    for server in servers:
        await server.close()


if __name__ == "__main__":
    uvloop.run(run())
