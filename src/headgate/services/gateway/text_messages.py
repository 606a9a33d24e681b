"""One connection of a subscriber or consumer as text messages in both directions, whatever they
say.

Invariants: however a connection ends, `ended` is called once, and `gone` is set; one that the
gateway closes is gone after `CLOSE_TIMEOUT_S` at the latest.
"""

from __future__ import annotations

import asyncio

from headgate import errors
from headgate.ports.connection import Wire
from headgate.services.gateway.entry import Entry
from headgate.services.gateway.subscriptions.connection_output import Outlet
from headgate.services.gateway.wire import (
    CLOSE_FAILED,
    CLOSE_GOING_AWAY,
    CLOSE_LATER,
    CLOSE_POLICY,
    CLOSE_TOO_BIG,
    CLOSE_UNAUTHORIZED,
    error_message,
)

MAX_REASON_BYTES = 120
CLOSE_TIMEOUT_S = 5.0


class TextConnection:
    """Implements ports.connection.Peer. `connections` has every connection of the gateway for as
    long as it lasts."""

    def __init__(self, connections: dict[TextConnection, None], entry: Entry | None = None) -> None:
        self._connections = connections
        self.entry = entry or Entry()
        self._wire: Wire | None = None
        self._outlet: Outlet | None = None
        self._closing = False
        self.is_ended_here = False
        """Whether the gateway closed the connection."""
        self.gone = asyncio.Event()

    # --- what the two kinds of connections fill in -----------------------------------------------

    def begun(self) -> None:
        """The client is connected."""

    def said(self, payload: bytes) -> None:
        """The client has sent a whole message."""

    def writable(self) -> None:
        """The connection takes more again."""

    def ended(self) -> None:
        """The connection is over."""

    # --- what happens to it ----------------------------------------------------------------------

    def connected(self, wire: Wire) -> None:
        self._wire = wire
        self._outlet = Outlet(wire)
        self._connections[self] = None
        try:
            self.entry.begin(wire.peer_address)
        except errors.TooMany as error:
            self.entry.refused(error)
            self.fail(error)
        else:
            self.begun()

    def heard(self, message: bytes) -> None:
        if not self._closing:
            self.said(message)

    def paused(self) -> None:
        self.outlet.pause()

    def resumed(self) -> None:
        if not self._closing:
            self.writable()

    def leaving(self) -> None:
        self._closing = True
        self.outlet.close()

    def disconnected(self) -> None:
        self._closing = True
        self._connections.pop(self, None)
        self.entry.end()
        if self._outlet is not None:
            self._outlet.close()
        self.ended()
        self.gone.set()

    # --- messages --------------------------------------------------------------------------------

    @property
    def outlet(self) -> Outlet:
        assert self._outlet is not None, "there is one as soon as it is connected"
        return self._outlet

    def answer(self, message: bytes) -> None:
        if self._outlet is not None and not self._closing:
            self._outlet.answer(message)

    # --- the end ---------------------------------------------------------------------------------

    def fail(self, error: errors.HeadgateError) -> None:
        """Say why, and close."""
        self.close(close_code(error), error_message(error), close_reason(error))

    def close(self, code: int, last_message: bytes, reason: bytes = b"") -> None:
        """Close after one more message; a client that doesn't read isn't waited for."""
        if self._closing or self._wire is None:
            return
        self._closing = self.is_ended_here = True
        self.outlet.shut()
        self.outlet.send(last_message)
        self._wire.close(code, reason)
        asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        if self._wire is not None:
            self._wire.abort()


def close_code(error: errors.HeadgateError) -> int:
    if isinstance(error, errors.Unauthorized):
        return CLOSE_UNAUTHORIZED
    if error.details.get("reason") == "going_away":
        return CLOSE_GOING_AWAY
    if isinstance(error, errors.TooLarge):
        return CLOSE_TOO_BIG
    if isinstance(error, errors.CallerError):
        return CLOSE_POLICY
    if isinstance(error, errors.NotNow):
        return CLOSE_LATER
    return CLOSE_FAILED


def close_reason(error: errors.HeadgateError) -> bytes:
    return error.message.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
