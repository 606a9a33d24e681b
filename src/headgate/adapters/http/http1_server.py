"""Serves an application over HTTP/1.1 on the event loop itself.

For roles that answer many small requests: no other thread and no other runtime stand between the
socket and the handler (see docs/adr/0012). Invariants: no signal handler is touched, no logging is
configured, and `stop` returns soon after its timeout.
"""

from __future__ import annotations

import asyncio
from email.utils import formatdate

from headgate.adapters.http.http1_connection import Connection, Serving
from headgate.adapters.http.http1_limits import Http1Limits
from headgate.adapters.http.listening import BACKLOG, listen
from headgate.ports.http import App

TICK_S = 1.0
"""How often deadlines are looked at, and the Date header moves."""
CANCEL_TIMEOUT_S = 1.0


class Http1Server:
    """Implements ports.http.HttpListener."""

    def __init__(self, limits: Http1Limits | None = None) -> None:
        self._limits = limits or Http1Limits()
        self._serving: Serving | None = None
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, app: App, host: str, port: int, *, setting: str = "") -> int:
        listener = listen(host, port, setting=setting)
        bound: int = listener.getsockname()[1]
        serving = self._serving = Serving(app, self._limits)
        self._tick(serving)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(serving), sock=listener, backlog=BACKLOG
        )
        return bound

    async def stop(self, timeout_s: float) -> None:
        serving, self._serving = self._serving, None
        if serving is None or self._server is None or self._timer is None:
            return
        serving.stopping = True
        self._server.close()
        for connection in tuple(serving.connections):
            connection.stop()
        for stream in tuple(serving.streams):
            stream.cancel()
        await serving.crew.close(grace_s=timeout_s, timeout_s=CANCEL_TIMEOUT_S)
        for connection in tuple(serving.connections):
            connection.finish()
        self._timer.cancel()

    async def failed(self) -> None:
        await asyncio.Event().wait()  # the event loop's own server ends with it, and no sooner

    @property
    def connections(self) -> int:
        return 0 if self._serving is None else len(self._serving.connections)

    def _tick(self, serving: Serving) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TICK_S, self._tick, serving)  # whatever comes of this one
        serving.date = b"date: " + formatdate(usegmt=True).encode() + b"\r\n"
        now_s = loop.time()
        for connection in [one for one in serving.connections if one.deadline_s <= now_s]:
            connection.expire()
