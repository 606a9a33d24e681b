"""A network that can be cut: a socket proxy in front of a server.

What is in flight can be lost in each of the ways in which networks lose it: connections are reset
and refused, everything is swallowed without a word, or an answer ends in its middle.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

CHUNK_BYTES = 64 * 1024
HEADER_BYTES = 16
"""What is longer than this may end in its middle."""


class CutNetwork:
    """`async with` it; whoever connects to `port` gets to the server while nothing is cut."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self.lost = 0
        """So often something was swallowed, or broken off."""
        self._server_port = server_port
        self._is_refusing = self._is_swallowing = self._breaks_next = False
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def refuse(self) -> None:
        """Reset what is open, and refuse what comes."""
        self._is_refusing = True
        self.reset()

    def swallow(self) -> None:
        """Keep all connections, and pass on nothing."""
        self._is_swallowing = True

    def break_off(self) -> None:
        """The next answer of the server ends in its middle, and so does everything open."""
        self._breaks_next = True

    def mend(self) -> None:
        """Connections that were there before are gone: they lack what was lost."""
        self.reset()
        self._is_refusing = self._is_swallowing = self._breaks_next = False

    def reset(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            writer.transport.abort()
            return
        theirs, ours = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._open |= {writer, ours}
        for source, to, is_answer in ((reader, ours, False), (theirs, writer, True)):
            task = asyncio.create_task(self._pass_on(source, to, is_answer=is_answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                if self._is_swallowing:
                    self.lost += 1
                elif is_answer and self._breaks_next and len(data) > HEADER_BYTES:
                    self._breaks_next = False
                    self.lost += 1
                    to.write(data[: len(data) // 2])
                    await to.drain()
                    self.refuse()
                else:
                    to.write(data)
                    await to.drain()
        to.transport.abort()
