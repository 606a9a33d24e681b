"""The baseline of the latency benchmark: the same events over a bare loopback WebSocket and back.

A server in a process of its own returns every frame; what is measured is from a frame sent to the
frame received. No log, no disk, no matching: what the machine's sockets and Python's loop cost by
themselves, at the same rate.

The server is this module run as a program: it prints its port and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from picows import (
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    ws_connect,
    ws_create_server,
)

from headgate.adapters.processes import on_parent_gone
from headgate.demo.aircraft import Fleet
from headgate.demo.figures import Histogram, Pace
from headgate.demo.flight import TIME_LAPSE

HOST = "127.0.0.1"
START_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 5.0


class _Echo(WSListener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            transport.send(WSMsgType.TEXT, frame.get_payload_as_bytes())
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.disconnect()


class _Sender(WSListener):
    """A connection answers in order, so the oldest frame under way is the one that came back."""

    def __init__(self) -> None:
        super().__init__()
        self.latency = Histogram()
        self.sent_s: deque[float] = deque()
        self.idle = asyncio.Event()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            now_s = asyncio.get_running_loop().time()
            self.latency.add((now_s - self.sent_s.popleft()) * 1_000)
            if not self.sent_s:
                self.idle.set()


async def bare_latency(*, per_s: float, seconds: float, seed: int, aircraft: int) -> Histogram:
    """The latency of the demo's own documents through the echo."""
    fleet = Fleet(seed=seed, count=aircraft)
    async with _server() as port:
        transport, sender = await ws_connect(_Sender, f"ws://{HOST}:{port}/")
        assert isinstance(sender, _Sender)
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        pace, number = Pace(per_s=per_s, start_s=start_s), 0
        while (now_s := loop.time()) < start_s + seconds:
            for _ in range(pace.take(now_s)):
                report = fleet.report(number, (now_s - start_s) * TIME_LAPSE)
                number += 1
                sender.idle.clear()
                sender.sent_s.append(loop.time())
                transport.send(WSMsgType.TEXT, msgspec.json.encode(report))
            await asyncio.sleep(max(0.0, pace.due_s - loop.time()))
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await sender.idle.wait()
        transport.disconnect()
        return sender.latency


@asynccontextmanager
async def _server() -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "headgate.bench.echo",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            port = int(await process.stdout.readline())
        yield port
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _serve() -> None:
    def accept(_request: WSUpgradeRequest) -> WSListener:
        return _Echo()

    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    on_parent_gone(lambda: loop.call_soon_threadsafe(gone.set))
    server = await ws_create_server(accept, HOST, 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await gone.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve())
