"""Who connects to a coordinator's control port and never becomes a node."""

from __future__ import annotations

import asyncio

import pytest

from headgate.adapters.grpc import control
from headgate.adapters.grpc.control import GrpcControlServer
from headgate.model.control.to_coordinator import Hello
from headgate.ports.control import ControlStream

LOOPBACK = "127.0.0.1"
WAIT_S = 30.0
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS


async def serve(_stream: ControlStream, _hello: Hello) -> None:
    raise AssertionError("nobody has said hello")


@pytest.mark.parametrize(
    "said", [b"", PREFACE[:5], PREFACE], ids=["nothing", "half a word", "HTTP/2, and nothing else"]
)
async def test_who_opens_no_stream_is_gone(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "HANDSHAKE_S", 0.3)
    monkeypatch.setattr(control, "UNUSED_S", 0.3)
    server = GrpcControlServer()
    [port] = await server.start(serve, LOOPBACK, [0])
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(said)
        await asyncio.wait_for(reader.read(), WAIT_S)
    finally:
        writer.transport.abort()
        await server.stop(0.0)
