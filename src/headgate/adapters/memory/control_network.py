"""Control streams within one process, both ends: nodes dial, coordinators listen, nothing is real.

What gRPC does for them is done here too, and no more: pieces of bytes arrive whole and in order;
a writer waits while the other end hasn't read what fills its window; a connection ends for
both when either leaves it. What is said on a stream, and when, is the code that ships
(adapters/control_stream.py). One thread; each end lives on the event loop that opened it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from headgate.adapters.control_stream import StreamSession, serve_pipe
from headgate.model.control.to_coordinator import Hello
from headgate.ports.control import Serve
from headgate.tasks import Crew

WINDOW_BYTES: Final = 64 << 10
"""What may wait to be read before a writer waits, too."""
TELL_BYTES: Final = WINDOW_BYTES // 2
"""What was read before the writer is told."""
FIRST_FREE_PORT: Final = 50_000


class MemoryPipe:
    """Implements adapters.control_stream.NodePipe; `other` reads what this one writes, on the
    `loop` of that end. What it says is behind everything it said before."""

    other: MemoryPipe

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._arrived: deque[bytes] = deque()
        self._unread_bytes = 0
        """Of what was written here, as far as is known."""
        self._untold_bytes = 0
        """Of what was read here, and the other end doesn't know of."""
        self._is_left = self._is_other_left = self._has_heard_all = False
        self._news = asyncio.Event()

    @classmethod
    def pair(
        cls, one: asyncio.AbstractEventLoop, two: asyncio.AbstractEventLoop
    ) -> tuple[MemoryPipe, MemoryPipe]:
        near, far = cls(one), cls(two)
        near.other, far.other = far, near
        return near, far

    async def read(self) -> bytes | None:
        while not self._arrived:
            if self._is_left:
                raise ConnectionResetError("the connection is gone")
            if self._has_heard_all:
                return None
            await self._something_new()
        data = self._arrived.popleft()
        self._untold_bytes += len(data)
        if self._untold_bytes >= TELL_BYTES:
            self.other.loop.call_soon(self.other._was_read, self._untold_bytes)
            self._untold_bytes = 0
        return data

    async def write(self, data: bytes) -> None:
        self._check()
        self._unread_bytes += len(data)
        self.other.loop.call_soon(self.other._arrives, data)
        while self._unread_bytes > WINDOW_BYTES:
            await self._something_new()
            self._check()

    async def done_writing(self) -> None:
        self.other.loop.call_soon(self.other._heard_all)

    def leave(self) -> None:
        """What the other end hasn't read yet, it still can."""
        self._is_left = True
        self._news.set()
        self.other.loop.call_soon(self.other.left)

    # --- from the other end ----------------------------------------------------------------------

    def left(self) -> None:
        self._is_other_left = True
        self._heard_all()

    def _heard_all(self) -> None:
        self._has_heard_all = True
        self._news.set()

    def _arrives(self, data: bytes) -> None:
        self._arrived.append(data)
        self._news.set()

    def _was_read(self, size_bytes: int) -> None:
        self._unread_bytes -= size_bytes
        self._news.set()

    async def _something_new(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _check(self) -> None:
        if self._is_left or self._is_other_left:
            raise ConnectionResetError("the connection is gone")


class MemoryControlNetwork:
    """Who listens where."""

    def __init__(self) -> None:
        self._servers: dict[str, MemoryControlServer] = {}
        self._next_port = FIRST_FREE_PORT
        self._open: dict[MemoryPipe, None] = {}

    def listen(self, host: str, port: int, server: MemoryControlServer) -> int:
        """Returns the port, any free one for 0; raises OSError for one in use."""
        if not port:
            port, self._next_port = self._next_port, self._next_port + 1
        if f"{host}:{port}" in self._servers:
            raise OSError(f"can't listen on {host}:{port}")
        self._servers[f"{host}:{port}"] = server
        return port

    def forget(self, server: MemoryControlServer) -> None:
        """It doesn't listen any more."""
        for address in [one for one, to in self._servers.items() if to is server]:
            del self._servers[address]

    @asynccontextmanager
    async def dial(self, address: str) -> AsyncIterator[MemoryPipe]:
        server = self._servers.get(address)
        if server is None:
            raise ConnectionRefusedError(f"nobody listens on {address}")
        near, far = MemoryPipe.pair(asyncio.get_running_loop(), server.loop)
        self._open[near] = None
        server.loop.call_soon(server.accept, far)
        try:
            yield near
        finally:
            near.leave()
            self._open.pop(near, None)

    def gone(self, loop: asyncio.AbstractEventLoop) -> None:
        """Everything on `loop` is, without a word: its connections end for the others."""
        for server in [one for one in self._servers.values() if one.loop is loop]:
            self.forget(server)
        for near in [*self._open]:
            if loop in (near.loop, near.other.loop):
                del self._open[near]
                for end in (near, near.other):
                    end.loop.call_soon(end.left)


class NetworkControlSession(StreamSession):
    """A node's side; implements ports.control.ControlSession."""

    def __init__(
        self,
        network: MemoryControlNetwork,
        addresses: str,
        hello: Callable[[], Hello],
        *,
        jitter: Callable[[], float],
    ) -> None:
        super().__init__(addresses, hello, network.dial, jitter=jitter)


class MemoryControlServer:
    """Implements ports.control.ControlListener."""

    def __init__(self, network: MemoryControlNetwork) -> None:
        self._network = network
        self._crew = Crew("control")
        self._large = asyncio.Lock()
        self._serve: Serve
        self.loop: asyncio.AbstractEventLoop

    async def start(self, serve: Serve, host: str, ports: list[int]) -> list[int]:
        self._serve, self.loop = serve, asyncio.get_running_loop()
        return [self._network.listen(host, port, self) for port in ports]

    async def stop(self, grace_s: float) -> None:
        self._network.forget(self)
        await self._crew.close(grace_s=grace_s)

    def accept(self, pipe: MemoryPipe) -> None:
        self._crew.start("stream", self._serve_one(pipe))

    async def _serve_one(self, pipe: MemoryPipe) -> None:
        try:
            await serve_pipe(pipe, self._serve, self._large)
        finally:
            pipe.leave()
