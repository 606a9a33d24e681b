"""A client that sends what it likes over a plain connection, and reads answers one by one."""

from __future__ import annotations

import asyncio

LOOPBACK = "127.0.0.1"
ANSWER_S = 20.0


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def send_all(self, data: bytes) -> None:
        """Send `data` without looking at an answer before all of it has left."""
        self._writer.transport.set_write_buffer_limits(0)
        self._writer.write(data)
        async with asyncio.timeout(30):
            await self._writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, header fields and body of the next answer."""
        async with asyncio.timeout(ANSWER_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            pairs = (line.split(": ", 1) for line in lines if line)
            fields = {name.lower(): value for name, value in pairs}
            body = await self._reader.readexactly(int(fields.get("content-length", "0")))
        return int(first.split()[1]), fields, body

    async def rest(self) -> bytes:
        """Everything until the server hangs up."""
        async with asyncio.timeout(30):
            return await self._reader.read()

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            pass  # The server was faster.

    @classmethod
    async def dial(cls, port: int) -> Wire:
        return cls(*await asyncio.open_connection(LOOPBACK, port))
