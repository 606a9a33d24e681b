"""Whoever opens a control stream says who it is, or loses it."""

from __future__ import annotations

import asyncio
import contextlib
from unittest.mock import patch

from headgate.adapters import control_stream
from headgate.adapters.grpc.control import GrpcControlServer
from headgate.adapters.grpc.control import dial as dial_grpc
from headgate.adapters.memory.control_network import MemoryControlNetwork, MemoryControlServer
from headgate.model.control.to_coordinator import Hello
from headgate.ports.control import ControlStream
from tests.virtual_time import run_virtual

LOOPBACK = "127.0.0.1"


async def nobody(_stream: ControlStream, _hello: Hello) -> None:
    raise AssertionError("nobody said hello")


def test_a_stream_on_which_nobody_says_hello_ends() -> None:
    async def scenario() -> None:
        network = MemoryControlNetwork()
        server = MemoryControlServer(network)
        [port] = await server.start(nobody, LOOPBACK, [0])
        async with network.dial(f"{LOOPBACK}:{port}") as pipe:
            ended = asyncio.ensure_future(pipe.read())
            await asyncio.sleep(control_stream.HELLO_TIMEOUT_S - 1.0)
            assert not ended.done(), "it may take a while"
            await asyncio.sleep(2.0)
            assert ended.done()
            with contextlib.suppress(ConnectionError):
                assert await ended is None
        await server.stop(0.0)

    run_virtual(scenario())


async def test_a_stream_of_grpc_on_which_nobody_says_hello_ends() -> None:
    server = GrpcControlServer()
    [port] = await server.start(nobody, LOOPBACK, [0])
    with patch.object(control_stream, "HELLO_TIMEOUT_S", 0.05):
        async with asyncio.timeout(30), dial_grpc(f"{LOOPBACK}:{port}") as pipe:
            with contextlib.suppress(ConnectionError):
                assert await pipe.read() is None
    await server.stop(0.0)
