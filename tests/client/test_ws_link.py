"""A connection on which nothing happens is not one on which nobody is there."""

from __future__ import annotations

import asyncio

import pytest
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

from headgate import errors
from headgate.adapters.picows.link import WsLink
from headgate.ports.connection import Link

WAIT_S = 30.0


class PingingServer(WSListener):
    """Pings whoever connects, once, and notes the answer."""

    def __init__(self, answered: asyncio.Future[bytes]) -> None:
        super().__init__()
        self._answered = answered

    def on_ws_connected(self, transport: WSTransport) -> None:
        transport.send_ping(b"are you there?")

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.PONG:
            self._answered.set_result(frame.get_payload_as_bytes())


class Nobody:
    def opened(self, link: Link) -> None:
        pass

    def heard(self, message: bytes) -> None:
        pass

    def lost(self) -> None:
        pass


async def test_a_ping_is_answered_and_counts_as_a_sign_of_life() -> None:
    """Else whoever hears nothing of a quiet topic would connect again and again, and while the
    coordinator is away nobody can tell it that it has subscribed."""
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def serve(_request: WSUpgradeRequest) -> WSListener:
        return PingingServer(answered)

    server = await ws_create_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        link = WsLink(Nobody(), silence_s=WAIT_S)
        await link.connect(f"ws://127.0.0.1:{port}/")
        async with asyncio.timeout(WAIT_S):
            assert await answered == b"are you there?"
        assert link.heard_frames == 1
        link.close()


async def test_a_connection_whose_handshake_is_cancelled_is_not_left_open() -> None:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    dialled = asyncio.Event()

    async def never_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        dialled.set()
        assert await reader.read() == b""
        writer.close()
        ended.set_result(None)

    async with await asyncio.start_server(never_answers, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        link = WsLink(Nobody(), silence_s=WAIT_S)
        connecting = asyncio.ensure_future(link.connect(f"ws://127.0.0.1:{port}/"))
        await asyncio.wait_for(dialled.wait(), WAIT_S)
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        # Sooner than the library gives the handshake up.
        await asyncio.wait_for(ended, 2.0)


async def test_a_server_that_hangs_up_instead_of_answering_is_a_refusal_at_once() -> None:
    async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hangs_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        link = WsLink(Nobody(), silence_s=WAIT_S)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(errors.PeerUnreachable, match="no gateway takes subscribers at"):
                await link.connect(f"ws://127.0.0.1:{port}/?topic=t")
