"""HTTP, seen from a role: where it is called, and how it calls others."""

from __future__ import annotations

from typing import Protocol

from headgate.model.http import Answer, Request


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
        cut off the rest; returns soon after that. Nothing to do where it was never started."""
