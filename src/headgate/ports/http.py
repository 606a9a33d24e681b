"""HTTP, seen from a role: how it is called, and how it calls other roles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headgate.model.http import Answer, Request, Response


class App(Protocol):
    async def answer(self, request: Request) -> Answer:
        """The answer to `request`, whatever happens. Cancelled when nobody waits for it any
        more."""


class HttpListener(Protocol):
    """One address where an application is served. Start it once, stop it once."""

    async def start(self, app: App, host: str, port: int, *, setting: str = "") -> int:
        """Listen and serve; returns the port, which is any free one where `port` is 0. From then on
        requests are taken.

        Raises PortInUse, or another OperatorError, with a sentence that names `setting`, the config
        key of the port.
        """

    async def failed(self) -> None:
        """Waits for as long as it serves, and raises what keeps it from doing so."""

    async def stop(self, timeout_s: float) -> None:
        """Take no more requests, end streams, let the other answers leave within `timeout_s`, then
        cut off the rest, which get none, or a bare 500; returns soon after that. Nothing to do
        where it was never started."""


class HttpCalls(Protocol):
    """Requests to others, straight to their addresses, over connections that are kept."""

    async def send(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> Response:
        """What the server at `url` answers, whatever its status; a redirect is an answer, too.
        The headers of an answer have their names in lower case, its media type among them.

        Raises PeerUnreachable where nothing was sent, because nobody listens there; Timeout where
        no whole answer came within `timeout_s`; OutcomeUnknown where the connection ended before
        the answer did. After these two the other side may have done what it was asked. Never sends
        twice: who calls knows whether that is safe.

        A call that is cancelled isn't waited for any longer; the other side sees its client go
        when `timeout_s` is over, if not before.
        """

    async def close(self) -> None:
        """Give up all connections; calls that are under way fail."""


class OpenCalls(Protocol):
    def __call__(self, *, connect_timeout_s: float) -> HttpCalls:
        """New ones; an address that doesn't take a connection for so long is unreachable."""
