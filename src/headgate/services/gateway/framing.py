"""One WebSocket connection as text messages in both directions, whatever they say.

Invariants: what isn't text, or is too large, ends the connection with an error that says so; a
message that comes in several frames is one message. A peer hears something every `ping_every_s`,
whatever it says itself. However a connection ends, `ended` is called once, and `gone` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from headgate import errors
from headgate.services.gateway.outlet import Outlet
from headgate.services.gateway.protocol import MAX_FRAME_BYTES
from headgate.services.gateway.wire import error_message

MAX_REASON_BYTES = 120
CLOSE_TIMEOUT_S = 5.0


class TextConnection(WSListener):
    """`connections` has every connection of the listener for as long as it lasts."""

    def __init__(self, connections: set[TextConnection], ping_every_s: float) -> None:
        super().__init__()
        self._connections = connections
        self._ping_every_s = ping_every_s
        self._pinging: asyncio.TimerHandle | None = None
        self._transport: WSTransport | None = None
        self._outlet: Outlet | None = None
        self._partial = bytearray()
        self._closing = False
        self.is_ended_here = False
        """Whether the gateway closed it, for whatever reason."""
        self.gone = asyncio.Event()

    # --- what the two kinds of connections fill in -----------------------------------------------

    def begun(self) -> None:
        """The peer is connected."""

    def said(self, payload: bytes) -> None:
        """The peer has sent a whole message."""

    def writable(self) -> None:
        """The transport takes more again."""

    def ended(self) -> None:
        """The connection is over."""

    # --- from picows -----------------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._outlet = Outlet(transport)
        self._connections.add(self)
        self._ping_later()
        self.begun()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind == WSMsgType.CLOSE:
            self._closing = True
            self.outlet.close()
            with contextlib.suppress(Exception):
                transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif self._closing:
            return
        elif kind == WSMsgType.BINARY:
            self.fail(errors.InvalidRequest("send JSON in text frames, not binary ones"))
        elif kind in (WSMsgType.TEXT, WSMsgType.CONTINUATION):
            self._receive(frame.get_payload_as_bytes(), last=frame.fin)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._closing = True
        self._connections.discard(self)
        if self._pinging is not None:
            self._pinging.cancel()
        if self._outlet is not None:
            self._outlet.close()
        self.ended()
        self.gone.set()

    def pause_writing(self) -> None:
        if self._outlet is not None:
            self._outlet.pause()

    def resume_writing(self) -> None:
        if self._outlet is not None and not self._closing:
            self.writable()

    # --- signs of life ---------------------------------------------------------------------------

    def _ping_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._pinging = loop.call_later(self._ping_every_s, self._ping)

    def _ping(self) -> None:
        """Silence is all that a peer has to go by, and picows pings nobody who isn't silent. The
        answer isn't waited for: one that doesn't read for a while says otherwise that it lives."""
        if not self._closing and self._transport is not None:
            self._transport.send_ping()
            self._ping_later()

    # --- messages --------------------------------------------------------------------------------

    @property
    def outlet(self) -> Outlet:
        assert self._outlet is not None, "there is one as soon as there is a transport"
        return self._outlet

    def answer(self, message: bytes) -> None:
        if self._outlet is not None and not self._closing:
            self._outlet.answer(message)

    def _receive(self, payload: bytes, *, last: bool) -> None:
        if self._partial or not last:
            self._partial += payload
            if len(self._partial) > MAX_FRAME_BYTES:
                self.fail(
                    errors.TooLarge(
                        f"a message is over {MAX_FRAME_BYTES} bytes", limit=MAX_FRAME_BYTES
                    )
                )
                return
            if not last:
                return
            payload = bytes(self._partial)
            self._partial.clear()
        self.said(payload)

    # --- the end ---------------------------------------------------------------------------------

    def fail(self, error: errors.HeadgateError) -> None:
        """Say why, and close."""
        self.close(_close_code(error), error_message(error), _reason(error))

    def close(self, code: Any, last_message: bytes, reason: bytes = b"") -> None:
        """Close after one more message; a peer that doesn't read isn't waited for."""
        if self._closing or self._transport is None:
            return
        self._closing = self.is_ended_here = True
        self.outlet.shut()
        self.outlet.send(last_message)
        self._transport.send_close(code, reason)
        self._transport.disconnect()
        asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.disconnect(graceful=False)


def _close_code(error: errors.HeadgateError) -> Any:
    if error.details.get("reason") == "going_away":
        return WSCloseCode.GOING_AWAY
    if isinstance(error, errors.TooLarge):
        return WSCloseCode.MESSAGE_TOO_BIG
    if isinstance(error, errors.CallerError):
        return WSCloseCode.POLICY_VIOLATION
    if isinstance(error, errors.NotNow):
        return WSCloseCode.TRY_AGAIN_LATER
    return WSCloseCode.INTERNAL_ERROR


def _reason(error: errors.HeadgateError) -> bytes:
    return error.message.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
