"""Control streams within one process, both ends: nodes dial, coordinators listen, nothing is real.

What gRPC does for them is done here too, and no more: pieces of bytes arrive whole and in order;
whoever writes waits while the other end hasn't read what fills its window; a connection ends for
both when either leaves it. What is said on a stream, and when, is the code that ships
(adapters/control_stream.py). One thread; each end lives on the event loop of whoever opened it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from headgate.adapters.control_stream import StreamSession, serve_pipe
from headgate.model.control import Hello
from headgate.ports.control import Serve
from headgate.tasks import Crew

WINDOW_BYTES: Final = 64 << 10
"""What may wait to be read before a writer waits, too."""
FIRST_FREE_PORT: Final = 50_000


class MemoryPipe:
    """Implements adapters.control_stream.NodePipe; `other` reads what this one writes."""

    other: MemoryPipe

    def __init__(self) -> None:
        self._arrived: deque[bytes] = deque()
        self._unread_bytes = 0
        self._is_left = self._has_said_all = False
        self._news = asyncio.Event()

    async def read(self) -> bytes | None:
        while not self._arrived:
            if self._is_left:
                raise ConnectionResetError("the connection is gone")
            if self.other._has_said_all:
                return None
            await self._something_new()
        data = self._arrived.popleft()
        self._unread_bytes -= len(data)
        self.other._news.set()
        return data

    async def write(self, data: bytes) -> None:
        other = self.other
        self._check()
        other._arrived.append(data)
        other._unread_bytes += len(data)
        other._news.set()
        while other._unread_bytes > WINDOW_BYTES:
            await self._something_new()
            self._check()

    async def done_writing(self) -> None:
        self._has_said_all = True
        self.other._news.set()

    def leave(self) -> None:
        """What the other end hasn't read yet, it still can."""
        self._is_left = self._has_said_all = True
        self._news.set()
        self.other._news.set()

    async def _something_new(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _check(self) -> None:
        if self._is_left or self.other._is_left:
            raise ConnectionResetError("the connection is gone")


class MemoryControlNetwork:
    """Who listens where."""

    def __init__(self) -> None:
        self._accepting: dict[str, Callable[[MemoryPipe], None]] = {}
        self._next_port = FIRST_FREE_PORT

    def listen(self, host: str, port: int, accept: Callable[[MemoryPipe], None]) -> int:
        """Returns the port, any free one for 0; raises OSError for one in use."""
        if not port:
            port, self._next_port = self._next_port, self._next_port + 1
        if f"{host}:{port}" in self._accepting:
            raise OSError(f"can't listen on {host}:{port}")
        self._accepting[f"{host}:{port}"] = accept
        return port

    def forget(self, accept: Callable[[MemoryPipe], None]) -> None:
        """Whoever listened with `accept` does so no more."""
        for address in [one for one, to in self._accepting.items() if to == accept]:
            del self._accepting[address]

    @asynccontextmanager
    async def dial(self, address: str) -> AsyncIterator[MemoryPipe]:
        accept = self._accepting.get(address)
        if accept is None:
            raise ConnectionRefusedError(f"nobody listens on {address}")
        near, far = MemoryPipe(), MemoryPipe()
        near.other, far.other = far, near
        accept(far)
        try:
            yield near
        finally:
            near.leave()


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
        self._loop: asyncio.AbstractEventLoop

    async def start(self, serve: Serve, host: str, ports: list[int]) -> list[int]:
        self._serve, self._loop = serve, asyncio.get_running_loop()
        return [self._network.listen(host, port, self._accept) for port in ports]

    async def stop(self, grace_s: float) -> None:
        self._network.forget(self._accept)
        await self._crew.close(grace_s=grace_s)

    def _accept(self, pipe: MemoryPipe) -> None:
        self._loop.call_soon(lambda: self._crew.start("stream", self._serve_one(pipe)))

    async def _serve_one(self, pipe: MemoryPipe) -> None:
        try:
            await serve_pipe(pipe, self._serve, self._large)
        finally:
            pipe.leave()
