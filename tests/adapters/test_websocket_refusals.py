"""Requests for a WebSocket that can't be read are refused as everything else is."""

from __future__ import annotations

import asyncio

import pytest

from headgate import errors
from headgate.adapters.picows.server import PicowsListener
from headgate.ports.connection import Peer, Reception, Visit

LOOPBACK = "127.0.0.1"
UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def admit(visit: Visit) -> Peer:
    """As a gateway does, which compares and logs what was said as text."""
    " ".join((visit.host, visit.origin, *visit.subprotocols)).encode()
    raise errors.NotFound(f"there is no {visit.path}")


@pytest.mark.parametrize(
    ("request_line", "header"),
    [
        (b"GET //[ HTTP/1.1", b"Host: a"),
        (b"GET /v1/subscribe HTTP/1.1", b"Host: \xff"),
        (b"GET /v1/subscribe HTTP/1.1", b"Host: a\r\nOrigin: \xff"),
        (b"GET /v1/subscribe HTTP/1.1", b"Host: a\r\nSec-WebSocket-Protocol: \xff"),
    ],
)
async def test_what_is_no_text_or_no_address_is_an_invalid_request(
    request_line: bytes, header: bytes
) -> None:
    listener = PicowsListener(handshake_timeout_s=5.0)
    port = await listener.start(Reception(admit, "v1", 1_000), LOOPBACK, 0)
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(b"\r\n".join((request_line, header, UPGRADE, b"")))
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    listener.stop()
    assert answer.split(b" ")[1] == b"400"
    assert b"can't be read" in answer
    assert b"codec" not in answer
