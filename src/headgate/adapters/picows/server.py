"""A gateway's end of WebSocket connections, on picows.

Invariants: what isn't text, or is too large, is refused with a sentence that says so; a message
that comes in several frames is one message. A client hears something every `after_idle_s`, whatever
it says itself; one that is silent and doesn't answer is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from picows import (
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)

from headgate import errors
from headgate.adapters.http.listening import listen
from headgate.model.http import encode_json, error_body
from headgate.ports.connection import Peer, Reception, Visit

WRITE_BUFFER_BYTES = 256 * 1024
HANDSHAKE_TIMEOUT_S = 5.0
"""A client that connects has asked for a WebSocket by then, or is cut off."""


@dataclass(frozen=True, slots=True)
class PingTimes:
    """A peer that was silent for `after_idle_s` is pinged, and has `timeout_s` to answer. Others
    are pinged as often, and needn't."""

    after_idle_s: float = 30.0
    timeout_s: float = 30.0


class PicowsListener:
    """Implements ports.connection.ConnectionListener."""

    def __init__(
        self, pings: PingTimes | None = None, *, handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    ) -> None:
        self._pings = pings or PingTimes()
        self._handshake_timeout_s = handshake_timeout_s
        self._reception: Reception
        self._server: asyncio.Server | None = None

    async def start(self, reception: Reception, host: str, port: int, *, setting: str = "") -> int:
        self._reception = reception
        listener = listen(host, port, setting=setting)
        bound: int = listener.getsockname()[1]
        self._server = await ws_create_server(
            self._accept,
            sock=listener,
            websocket_handshake_timeout=self._handshake_timeout_s,
            enable_auto_ping=True,
            auto_ping_idle_timeout=self._pings.after_idle_s,
            auto_ping_reply_timeout=self._pings.timeout_s,
            max_frame_size=reception.message_bytes,
            logger_name="gateway",
        )
        return bound

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    def _accept(self, request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        try:
            return self._admitted(request)
        except errors.HeadgateError as error:
            return _refused(error)
        except ValueError:  # an address that is none, or what isn't text
            return _refused(errors.InvalidRequest("the request's path and headers can't be read"))

    def _admitted(self, request: WSUpgradeRequest) -> WSListener | WSUpgradeResponseWithListener:
        target = urlsplit(request.path.decode("latin-1"))
        headers = request.headers
        offered = [
            name.strip()
            for header in headers.getall("sec-websocket-protocol", [])
            for name in header.split(",")
        ]
        visit = Visit(
            target.path,
            target.query,
            host=headers.get("host", ""),
            origin=headers.get("origin", ""),
            subprotocols=tuple(offered),
            authorization=headers.get("authorization", ""),
        )
        peer = self._reception.admit(visit)
        connection = _Connection(
            peer, self._reception.message_bytes, ping_every_s=self._pings.after_idle_s
        )
        if not offered:
            return connection
        chosen = WSUpgradeResponse.create_101_response(
            {"Sec-WebSocket-Protocol": self._reception.subprotocol}
        )
        return WSUpgradeResponseWithListener(chosen, connection)


def _refused(error: errors.HeadgateError) -> WSUpgradeResponseWithListener:
    body = encode_json({"error": error_body(error)})
    refusal = WSUpgradeResponse.create_error_response(
        error.status, body, {"content-type": "application/json"}
    )
    return WSUpgradeResponseWithListener(refusal, None)


class _Wire:
    """Implements ports.connection.Wire."""

    __slots__ = ("_socket", "_transport", "send")

    def __init__(self, transport: WSTransport) -> None:
        self._transport = transport
        self._socket = transport.underlying_transport
        self._socket.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.send = partial(transport.send, WSMsgType.TEXT)

    @property
    def peer_address(self) -> str:
        peer = self._socket.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) and peer else ""

    @property
    def unsent_bytes(self) -> int:
        return self._socket.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._socket.is_closing()

    def stop_reading(self) -> None:
        self._socket.pause_reading()

    def read_on(self) -> None:
        self._socket.resume_reading()

    def close(self, code: int, reason: bytes) -> None:
        self._transport.send_close(code, reason)  # type: ignore[arg-type]  # any number will do
        self._transport.disconnect()

    def abort(self) -> None:
        self._transport.disconnect(graceful=False)


class _Connection(WSListener):
    """Brings what picows says to `peer`, frames put together."""

    def __init__(self, peer: Peer, message_bytes: int, *, ping_every_s: float) -> None:
        super().__init__()
        self._peer = peer
        self._message_bytes = message_bytes
        self._ping_every_s = ping_every_s
        self._pinging: asyncio.TimerHandle | None = None
        self._partial = bytearray()

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._ping_later(transport)
        self._peer.connected(_Wire(transport))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind == WSMsgType.CLOSE:
            self._peer.leaving()
            with contextlib.suppress(Exception):
                transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif kind == WSMsgType.BINARY:
            self._peer.fail(errors.InvalidRequest("send JSON in text frames, not binary ones"))
        elif kind in (WSMsgType.TEXT, WSMsgType.CONTINUATION):
            if frame.fin and not self._partial:
                self._peer.heard(frame.get_payload_as_bytes())
            else:
                self._put_together(frame)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
        self._peer.disconnected()

    def pause_writing(self) -> None:
        self._peer.paused()

    def resume_writing(self) -> None:
        self._peer.resumed()

    def _put_together(self, frame: WSFrame) -> None:
        self._partial += frame.get_payload_as_bytes()
        if len(self._partial) > (limit := self._message_bytes):
            self._partial.clear()
            self._peer.fail(errors.TooLarge(f"a message is over {limit} bytes", limit=limit))
        elif frame.fin:
            message = bytes(self._partial)
            self._partial.clear()
            self._peer.heard(message)

    def _ping_later(self, transport: WSTransport) -> None:
        loop = asyncio.get_running_loop()
        self._pinging = loop.call_later(self._ping_every_s, self._ping, transport)

    def _ping(self, transport: WSTransport) -> None:
        """Silence is all that a peer has to go by, and picows pings nobody who isn't silent. The
        answer isn't waited for: one that doesn't read for a while says otherwise that it lives."""
        if not transport.underlying_transport.is_closing():
            transport.send_ping()
            self._ping_later(transport)
