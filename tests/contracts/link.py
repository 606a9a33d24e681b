"""A link to a server that can be cut, or slowed down, at a chosen moment of the conversation."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class Link:
    """Forwards a local port to `server_port`."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._cut_at: bytes | None = None
        self._after_forwarding = False
        self._delay_at: bytes | None = None
        self._delay_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.delays = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def through(self, dsn: str) -> str:
        return dsn.replace(f"port={self._server_port}", f"port={self.port}")

    def cut_at(self, words: bytes, *, after_forwarding: bool) -> None:
        """Cut the next connection whose client says `words`, before or after they arrive."""
        self._cut_at, self._after_forwarding = words, after_forwarding

    def delay_at(self, words: bytes, delay_s: float) -> None:
        """From now on whatever says `words` takes `delay_s` longer."""
        self._delay_at, self._delay_s = words, delay_s

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        answers = asyncio.ensure_future(_copy(to_reader, writer))
        try:
            with contextlib.suppress(ConnectionError):
                await self._forward(reader, to_writer)
        finally:
            answers.cancel()
            writer.close()
            to_writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while said := await reader.read(65_536):
            if self._delay_at and self._delay_at in said:
                self.delays += 1
                await asyncio.sleep(self._delay_s)
            cut = self._cut_at is not None and self._cut_at in said
            if cut:
                self._cut_at = None
                self.cuts += 1
                if not self._after_forwarding:
                    return
            writer.write(said)
            await writer.drain()
            if cut:
                return


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while said := await reader.read(65_536):
            writer.write(said)
            await writer.drain()
