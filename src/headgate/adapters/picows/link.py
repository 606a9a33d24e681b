"""A client's end of a WebSocket connection, on picows.

Invariants: what arrives is told where it arrives, whether a task waits for it or not; while it is
paused the socket isn't read, so the sender feels it. A connection that is left in good manners is
gone after `CLOSE_TIMEOUT_S` at the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from picows import (
    WSCloseCode,
    WSError,
    WSFrame,
    WSListener,
    WSMsgType,
    WSParsedURL,
    WSTransport,
    ws_connect,
)

from headgate import errors
from headgate.adapters.names import addresses_of
from headgate.adapters.silence import Watched
from headgate.ports.connection import LinkListener

MAX_FRAME_BYTES = 64 * 1024 * 1024
TEXT = WSMsgType.TEXT
CLOSE_TIMEOUT_S = 2.0
"""For what was sent last to leave this machine."""


class WsLink(Watched, WSListener):
    """Implements ports.connection.Link."""

    def __init__(self, listener: LinkListener, silence_s: float) -> None:
        super().__init__(listener, silence_s)
        self._partial = bytearray()
        self._socket: socket.socket | None = None
        self._transport: WSTransport | None = None
        self._gone = asyncio.Event()

    async def connect(self, url: str) -> None:
        try:
            await ws_connect(
                lambda: self,
                url,
                max_frame_size=MAX_FRAME_BYTES,
                logger_name="subscriber",
                enable_auto_pong=False,  # picows would answer pings, and never show one
                socket_factory=self._dial,
            )
            self._check_answered()
        except (OSError, WSError, TimeoutError) as error:
            self.abort()
            where = url.partition("?")[0]
            raise errors.PeerUnreachable(
                f"no gateway takes subscribers at {where}: {error}", url=where
            ) from error
        except BaseException:
            self.abort()
            raise

    def _check_answered(self) -> None:
        """picows returns as if connected when the server hangs up before it has answered."""
        if self._transport is None:
            raise ConnectionResetError("it hung up instead of answering")

    async def _dial(self, url: WSParsedURL) -> socket.socket:
        """A socket of our own: picows keeps one open whose handshake was cancelled."""
        loop = asyncio.get_running_loop()
        found = await addresses_of(url.host, url.port)
        failure: OSError = OSError(f"{url.host} has no address")
        for family, kind, protocol, _, address in found:
            dialled = socket.socket(family, kind, protocol)
            try:
                dialled.setblocking(False)
                await loop.sock_connect(dialled, address)
            except OSError as error:
                dialled.close()
                failure = error
            except BaseException:
                dialled.close()
                raise
            else:
                self._socket = dialled
                return dialled
        raise failure

    # --- for its owner ---------------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        if self._transport is not None and not self._over:
            with contextlib.suppress(WSError, OSError):
                self._transport.send(WSMsgType.TEXT, message)

    def pause(self) -> None:
        if not self.is_paused and self._transport is not None:
            self.is_paused = True
            self._transport.underlying_transport.pause_reading()

    def resume(self) -> None:
        if self.is_paused and self._transport is not None:
            self.is_paused = False
            self.heard_frames += 1  # silence is counted from now on
            self._transport.underlying_transport.resume_reading()

    def close(self) -> None:
        if self._end() and self._transport is not None and not self._gone.is_set():
            with contextlib.suppress(WSError, OSError):
                self._transport.send_close(WSCloseCode.OK)
            self._transport.disconnect()
            self._timer = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        self._end()
        if self._transport is not None:
            self._transport.disconnect(graceful=False)
        elif self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    async def wait_closed(self) -> None:
        if self._transport is not None:
            await self._gone.wait()

    # --- from picows -----------------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        if self._over:
            transport.disconnect(graceful=False)
            return
        self._watch()
        self._listener.opened(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        self.heard_frames += 1
        kind = frame.msg_type
        if kind == TEXT and frame.fin:
            if not self._over:
                self._listener.heard(frame.get_payload_as_bytes())
        elif kind == WSMsgType.CLOSE:
            transport.disconnect()
        elif kind == WSMsgType.PING:
            transport.send_pong(frame.get_payload_as_bytes())
        elif kind != WSMsgType.PONG and not self._over:
            self._receive_part(frame)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._gone.set()
        if self._end():
            self._listener.lost()
        elif self._timer is not None:
            self._timer.cancel()

    def _receive_part(self, frame: WSFrame) -> None:
        self._partial += frame.get_payload_as_bytes()
        if len(self._partial) > MAX_FRAME_BYTES:
            self._lose()
        elif frame.fin:
            message = bytes(self._partial)
            self._partial.clear()
            self._listener.heard(message)
