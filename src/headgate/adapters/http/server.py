"""Serves an application with granian, inside the service's own event loop.

HTTP/1.1 and HTTP/2 (prior knowledge) on one port. Invariants: no signal handler is touched, no
logging is configured, and `stop` returns within its timeout; nobody who says nothing stays.
"""

from __future__ import annotations

import socket
from pathlib import Path

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP2Settings
from granian.log import LogLevels
from granian.server.embed import Server

from headgate.adapters.http.asgi import AsgiApp
from headgate.adapters.http.listening import BACKLOG, listen
from headgate.adapters.http.resting import Patience, Resting
from headgate.ports.http import App
from headgate.tasks import Crew

MAX_CONNECTIONS = 65_536


class _SocketServer(Server):
    """granian's embedded server on a socket that is already listening; granian closes it."""

    def __init__(
        self, app: AsgiApp, listener: socket.socket, certificate: Path | None, key: Path | None
    ) -> None:
        self._listener = listener
        super().__init__(
            app,
            interface=Interfaces.ASGINL,
            http=HTTPModes.auto,
            websockets=False,
            backlog=BACKLOG,
            backpressure=MAX_CONNECTIONS,
            http2_settings=HTTP2Settings(max_concurrent_streams=1_000),
            ssl_cert=certificate,
            ssl_key=key,
            log_access=False,
            log_level=LogLevels.error,
            # An incremental configuration sets granian's own level and leaves the handlers of the
            # process alone; the default one would close them all.
            log_dictconfig={"version": 1, "incremental": True, "handlers": {}, "loggers": {}},
        )

    def _init_shared_socket(self) -> None:
        # granian's stubs describe neither the constructor nor these attributes.
        holder = SocketHolder(self._listener.detach(), False, BACKLOG)  # type: ignore[call-arg]
        vars(self).update(_ssp=None, _shd=holder, _sfd=holder.get_fd())


class HttpServer:
    """Implements ports.http.HttpListener. With the files of a certificate and its key it speaks
    TLS."""

    def __init__(
        self,
        certificate: Path | None = None,
        key: Path | None = None,
        *,
        patience: Patience | None = None,
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._patience = patience or Patience()
        self._app: AsgiApp | None = None
        self._server: _SocketServer | None = None
        self._crew, self._looks = Crew("http"), Crew("http")

    async def start(self, app: App, host: str, port: int, *, setting: str = "") -> int:
        return self.serve(AsgiApp(app, self._patience), host, port, setting=setting)

    def serve(self, app: AsgiApp, host: str, port: int, *, setting: str = "") -> int:
        """For what is ASGI already."""
        listener = listen(host, port, setting=setting)
        bound: int = listener.getsockname()[1]
        self._app = app
        self._server = _SocketServer(app, listener, self._certificate, self._key)
        self._crew.need("server", self._server.serve(), about=f"{host}:{bound}")
        resting = Resting(bound, app.answered, self._patience)
        self._looks.keep("resting connections", resting.keep_looking, about=f"{host}:{bound}")
        # The kernel queues connections from `listen` on, so there is nothing to wait for.
        return bound

    async def stop(self, timeout_s: float) -> None:
        app, self._app = self._app, None
        if app is None or self._server is None:
            return
        self._crew.dismiss()
        await self._looks.close()
        self._server.stop()  # type: ignore[no-untyped-call]  # granian isn't fully typed
        await app.drain(timeout_s)
        await self._crew.close(grace_s=max(timeout_s, 1.0))

    async def failed(self) -> None:
        await self._crew.failed()
