"""What a role holds of requests is bounded in bytes: 200 documents of a mebibyte at once meet one
that can't pass them on, in a process whose memory has a limit."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.services.large_requests import MIB, ROOM_BYTES

COUNT = 200
MOST_MIB = 2 * ROOM_BYTES // MIB + 100
"""What waits, a copy of it on its way, what is refused and still arriving, and what every process
takes. Without a bound it would be twice as much."""
AT_ONCE = 8
"""Are being sent: not so many that those alone are too many."""
TIMEOUT_S = 170.0


@dataclass
class Role:
    process: asyncio.subprocess.Process
    port: int

    async def line(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        await self.process.stdin.drain()

    async def report(self) -> dict[str, Any]:
        await self.line()
        assert self.process.stdout is not None
        line = b""
        while not line.startswith(b'{"grown_mib"'):
            line = await self.process.stdout.readline()
            assert line
        found: dict[str, Any] = json.loads(line)
        return found


@asynccontextmanager
async def role(*arguments: str) -> AsyncIterator[Role]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.services.large_requests",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        url = ""
        while not url.startswith("http"):  # what it logs comes before
            url = (line := await process.stdout.readline()).decode().strip()
            assert line
        yield Role(process, int(url.rpartition(":")[2]))
        await process.wait()
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def body(number: int) -> bytes:
    return (
        b'{"events":[{"event_id":"e%d","key":"k%d","document":{"text":"%s"}}],'
        b'"request_timeout":"60s"}'
    ) % (number, number, b"x" * (MIB - 100))


async def post(port: int, number: int, sending: asyncio.Semaphore) -> int:
    """Send a request and return the status of its answer, also of one that comes early."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = body(number)
    head = (
        "POST /v1/topics/flights/produce HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    )
    try:
        writer.transport.set_write_buffer_limits(0)
        async with sending:
            writer.write(head.encode() + text)
            del text
            await writer.drain()
        return int((await reader.readline()).split()[1])
    finally:
        writer.transport.abort()


async def until_refused(sent: list[asyncio.Task[int]], refused: int) -> None:
    async with asyncio.timeout(TIMEOUT_S / 2):
        while sum(one.done() for one in sent) < refused:
            await asyncio.wait(
                [one for one in sent if not one.done()], return_when=asyncio.FIRST_COMPLETED
            )


async def all_taken(role: Role, node: Node | None) -> None:
    """What finds room is written, the rest is refused, and taken when it comes again."""
    sending = asyncio.Semaphore(AT_ONCE)
    sent = [asyncio.create_task(post(role.port, number, sending)) for number in range(COUNT)]
    await until_refused(sent, COUNT - ROOM_BYTES // MIB)
    await role.line()
    if node is not None:
        node.goes_on.set()
    statuses = dict(enumerate(await asyncio.gather(*sent)))
    seen = Counter(statuses.values())
    assert seen.keys() == {200, 503}
    assert ROOM_BYTES // MIB // 4 <= seen[200] <= ROOM_BYTES / MIB
    for number, status in statuses.items():
        if status != 200:
            assert await post(role.port, number, sending) == 200


class Node:
    """An ingest node that answers nobody before it `goes_on`."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.answered = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    int(line.partition(b":")[2])
                    for line in head.lower().splitlines()
                    if line.startswith(b"content-length")
                )
                while length:
                    length -= len(await reader.read(min(length, MIB)))
                await self.goes_on.wait()
                self.answered += 1
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def test_what_waits_for_a_stalled_disk_is_bounded_and_all_of_it_is_written() -> None:
    async with asyncio.timeout(TIMEOUT_S), role("ingest") as ingest:
        await all_taken(ingest, None)
        report = await ingest.report()
    assert report["written"] == COUNT
    assert report["grown_mib"] < MOST_MIB


async def test_what_a_gateway_passes_on_is_bounded_and_all_of_it_arrives() -> None:
    node = Node()
    server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(TIMEOUT_S), server, role("gateway", url) as gateway:
        await all_taken(gateway, node)
        report = await gateway.report()
    assert node.answered == COUNT
    assert report["grown_mib"] < MOST_MIB
