"""One WebSocket connection of a subscriber, with a bounded buffer of messages.

Invariant: when the buffer is full the socket isn't read, so the sender feels it; messages that
arrived before the connection was lost are still received.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from picows import (
    WSCloseCode,
    WSError,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    ws_connect,
)

from headgate import errors

MAX_FRAME_BYTES = 64 * 1024 * 1024


class WsLink(WSListener):
    def __init__(self, bound: int) -> None:
        super().__init__()
        self._bound = max(1, bound)
        self._messages: deque[bytes] = deque()
        self._partial = bytearray()
        self._transport: WSTransport | None = None
        self._arrived = asyncio.Event()
        self._lost = False
        self._paused = False
        self._frames = 0
        self.waiting = False
        """Whether somebody waits for a message right now."""

    @classmethod
    async def open(cls, url: str, bound: int) -> WsLink:
        # Kept here, because picows forgets the listener of a connection that has ended already.
        link = cls(bound)
        try:
            await ws_connect(
                lambda: link,
                url,
                max_frame_size=MAX_FRAME_BYTES,
                logger_name="subscriber",
                enable_auto_pong=False,  # picows would answer pings, and never show one
            )
        except (OSError, WSError, TimeoutError) as error:
            where = url.partition("?")[0]
            raise errors.PeerUnreachable(
                f"no gateway takes subscribers at {where}: {error}", url=where
            ) from error
        return link

    async def receive(self, silence_s: float) -> bytes | None:
        """The next message; None when the connection is lost or silent for `silence_s`.

        A gateway pings far more often than that, so silence means that nobody is there.
        """
        while not self._messages:
            if self._lost:
                return None
            self._arrived.clear()
            heard = self._frames
            self.waiting = True
            try:
                async with asyncio.timeout(silence_s):
                    await self._arrived.wait()
            except TimeoutError:
                if self._frames == heard:
                    self.abort()
                    return None
            finally:
                self.waiting = False
        message = self._messages.popleft()
        if self._paused and 2 * len(self._messages) <= self._bound and self._transport is not None:
            self._paused = False
            self._transport.underlying_transport.resume_reading()
        return message

    @property
    def ready(self) -> bool:
        """Would `receive` return at once?"""
        return bool(self._messages) or self._lost

    def send(self, message: bytes) -> None:
        """Hand over one text message; on a connection that is lost nothing happens."""
        if self._transport is not None and not self._lost:
            with contextlib.suppress(WSError, OSError):
                self._transport.send(WSMsgType.TEXT, message)

    def close(self) -> None:
        """Leave in good manners."""
        self._end()
        if self._transport is not None:
            with contextlib.suppress(WSError):
                self._transport.send_close(WSCloseCode.OK)
            self._transport.disconnect()

    def abort(self) -> None:
        self._end()
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    # --- from picows -----------------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        self._frames += 1
        kind = frame.msg_type
        if kind == WSMsgType.CLOSE:
            transport.disconnect()
        elif kind == WSMsgType.PING:
            transport.send_pong(frame.get_payload_as_bytes())
        elif kind in (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION):
            self._receive(frame)
        if not self._paused and len(self._messages) >= self._bound:
            self._paused = True
            transport.underlying_transport.pause_reading()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._end()

    def _receive(self, frame: WSFrame) -> None:
        if frame.fin and not self._partial:
            self._messages.append(frame.get_payload_as_bytes())
        else:
            self._partial += frame.get_payload_as_bytes()
            if len(self._partial) > MAX_FRAME_BYTES:
                self.abort()
            if not frame.fin:
                return
            self._messages.append(bytes(self._partial))
            self._partial.clear()
        self._arrived.set()

    def _end(self) -> None:
        self._lost = True
        self._arrived.set()
