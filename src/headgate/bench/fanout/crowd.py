"""A crowd of WebSocket clients in one process, which notes when the last of them has a frame.

All servers of `bench fanout` meet the same clients: each connection first gets a `subscribed`
message, then frames, which are counted and otherwise left alone. An event is over when the crowd
has one frame more for each of its clients; no order is needed for that to be noticed, so an order
that is late doesn't spoil the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec
import uvloop
from picows import WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from headgate.bench.rebalance.orders import serve_orders
from headgate.bench.result import Failed

OPENING_AT_A_TIME = 64
"""Well below what a listener's backlog takes."""
OPEN_TIMEOUT_S = 60.0
HEADROOM = 1 << 16


class Join(msgspec.Struct, tag=True):
    """Open this many more connections to `url`; counting begins anew. `token` is the credential of
    each (empty: none)."""

    url: str
    clients: int
    token: str = ""


class Joined(msgspec.Struct):
    """`fault` says why not all could, if so."""

    subscriptions: list[str]
    fault: str = ""


class Await(msgspec.Struct, tag=True):
    """Answered when every client at `url` has had this many frames since the last `Join`."""

    url: str
    frames: int
    timeout_s: float


class Arrived(msgspec.Struct):
    """`at_s` is when the last frame came, on the machine's monotonic clock; `frame` is its text.

    `uneven` are clients with more or fewer frames than they should have, also after the timeout;
    `lost` are those that were disconnected.
    """

    at_s: float
    frame: str
    uneven: int
    lost: int


class _Subscribed(msgspec.Struct):
    type: str
    subscription: str = ""


class Crowd:
    """The clients of one server."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clients: list[_Client] = []
        self._room = asyncio.Semaphore(OPENING_AT_A_TIME)
        self._frames = 0
        self._rounds = 0
        self._at_s = 0.0
        self._last = b""
        self._round_over = asyncio.Event()
        self.lost = 0

    async def join(self, clients: int, token: str) -> Joined:
        more = [_Client(self) for _ in range(clients)]
        try:
            names = await asyncio.gather(*(self._open(client, token) for client in more))
        except (Failed, OSError, WSError, TimeoutError) as error:
            return Joined([], str(error) or type(error).__name__)
        self._clients += more
        self._frames = self._rounds = 0
        for client in self._clients:
            client.frames = 0
        return Joined(names)

    async def _open(self, client: _Client, token: str) -> str:
        said = {"Authorization": f"Bearer {token}"} if token else {}
        async with self._room, asyncio.timeout(OPEN_TIMEOUT_S):
            await ws_connect(lambda: client, self._url, max_frame_size=HEADROOM, extra_headers=said)
            return await client.subscribed

    def count(self, frame: WSFrame) -> None:
        self._frames += 1
        if self._frames % len(self._clients) == 0:
            self._at_s = time.monotonic()
            self._last = frame.get_payload_as_bytes()
            self._rounds += 1
            self._round_over.set()

    async def arrived(self, frames: int, timeout_s: float) -> Arrived:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._rounds < frames and not self.lost:
                    self._round_over.clear()
                    await self._round_over.wait()
        uneven = sum(client.frames != frames for client in self._clients)
        return Arrived(self._at_s, self._last.decode(), uneven, self.lost)

    def lose(self) -> None:
        self.lost += 1
        self._round_over.set()


class _Client(WSListener):
    def __init__(self, crowd: Crowd) -> None:
        super().__init__()
        self._crowd = crowd
        self._is_subscribed = False
        self.subscribed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.frames = 0

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        if self._is_subscribed:
            self.frames += 1
            self._crowd.count(frame)
        else:
            self._begin(frame.get_payload_as_bytes())

    def _begin(self, message: bytes) -> None:
        answer = msgspec.json.decode(message, type=_Subscribed)
        if answer.type == "authenticated":
            return
        if answer.type == "subscribed":
            self._is_subscribed = True
            self.subscribed.set_result(answer.subscription)
        elif not self.subscribed.done():
            self.subscribed.set_exception(Failed(f"a client was refused: {message.decode()}"))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if not self.subscribed.done():
            self.subscribed.set_exception(Failed("a client was disconnected"))
        self._crowd.lose()


async def run() -> None:
    crowds: dict[str, Crowd] = {}

    async def answer(order: Join | Await) -> msgspec.Struct:
        crowd = crowds.setdefault(order.url, Crowd(order.url))
        match order:
            case Join(clients=clients, token=token):
                return await crowd.join(clients, token)
            case Await(frames=frames, timeout_s=timeout_s):
                return await crowd.arrived(frames, timeout_s)

    await serve_orders(Join | Await, answer)


if __name__ == "__main__":
    uvloop.run(run())
