"""The link between routers and a gateway, which can be cut: in both directions, or in one of them.

A relay in the test's own process stands before a gateway that is a process like any other; the
gateway announces the relay's address instead of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Literal, Self

from tests.servers.process import free_port

Cut = Literal["both ways", "towards the gateway", "back from the gateway"]
"""Both ways, connections are reset. One way, they stay, and what is sent that way vanishes."""

TIMEOUT_S = 30.0
ANNOUNCES = (
    "import runpy\n"
    "from headgate.adapters import listeners\n"
    "listeners.reachable = lambda *_, **__: '{address}'\n"
    "runpy.run_module('headgate', run_name='__main__', alter_sys=True)\n"
)


class Link:
    """Use it as a context manager; start the gateway as `program`, with `settings`."""

    def __init__(self) -> None:
        self.settings = {"HEADGATE_GATEWAY__CLIENT_PORT": str(free_port())}
        self.program: tuple[str, ...] = ()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._relay = Relay(int(self.settings["HEADGATE_GATEWAY__CLIENT_PORT"]))

    def __enter__(self) -> Self:
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(self._relay.start(), self._loop)
        code = ANNOUNCES.format(address=f"127.0.0.1:{started.result(TIMEOUT_S)}")
        self.program = (sys.executable, "-c", code)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._relay.stop(), self._loop).result(TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    @contextlib.contextmanager
    def cut(self, cut: Cut) -> Iterator[None]:
        self._loop.call_soon_threadsafe(self._relay.cut, cut)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._relay.heal)


class Relay:
    """Passes bytes on, but for those that go where the link is cut."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._cut: Cut | None = None
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _connected(self, router: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        if self._cut == "both ways":
            reset(answer)
            return
        try:
            gateway, ask = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            reset(answer)
            return
        self._pass_on(router, ask, "towards the gateway")
        self._pass_on(gateway, answer, "back from the gateway")

    def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: Cut) -> None:
        self._open.add(sink)
        task = asyncio.create_task(self._carry(source, sink, way))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: Cut
    ) -> None:
        try:
            while data := await source.read(65_536):
                if self._cut != way:
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass
        finally:
            self._open.discard(sink)
            sink.close()

    def cut(self, cut: Cut) -> None:
        self._cut = cut
        if cut == "both ways":
            self._reset_all()

    def heal(self) -> None:
        """What has vanished is gone, so no connection can go on where it was."""
        self._cut = None
        self._reset_all()

    def _reset_all(self) -> None:
        for sink in list(self._open):
            reset(sink)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection at once, and let the other side know that it is no ordinary end."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
