"""The subscribers of `bench pipeline`: a few connections with a thousand subscriptions each.

They count events and otherwise leave them alone. Anything but an event after the beginning (an
error, a resync, a lost connection) is a fault.
"""

from __future__ import annotations

import asyncio

import msgspec
import uvloop
from picows import WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from headgate.bench.pipeline.events import TOPIC, where
from headgate.bench.rebalance.orders import serve_orders
from headgate.bench.result import Failed

FRAME_BYTES_MAX = 1 << 20
EVENT = b'{"type":"event"'
SUBSCRIBED = b'{"type":"subscribed"'


class Subscribe(msgspec.Struct, tag=True):
    """Subscribe to the aircraft from 0 on; answered when all are subscribed."""

    url: str
    connections: int
    per_connection: int
    timeout_s: float


class Count(msgspec.Struct, tag=True):
    """Answered when so many events have come in all, or after a while."""

    events: int = 0
    timeout_s: float = 0.0


class Counted(msgspec.Struct):
    events: int
    fault: str = ""


class _Wish(msgspec.Struct, tag_field="type", tag="subscribe"):
    id: str
    topic: str
    where: str


class Crowd:
    def __init__(self) -> None:
        self.events = 0
        self.fault = ""
        self._wanted = 0
        self._reached = asyncio.Event()
        self._transports: list[WSTransport] = []

    async def subscribe(self, order: Subscribe) -> None:
        size = order.per_connection
        try:
            async with asyncio.timeout(order.timeout_s):
                for number in range(order.connections):
                    await self._open(order.url, range(number * size, (number + 1) * size))
        except (Failed, OSError, WSError, TimeoutError) as error:
            self.fail(f"subscribing failed: {str(error) or type(error).__name__}")

    async def _open(self, url: str, aircraft: range) -> None:
        client = _Client(self, len(aircraft))
        transport, _ = await ws_connect(lambda: client, url, max_frame_size=FRAME_BYTES_MAX)
        self._transports.append(transport)
        for number in aircraft:
            wish = _Wish(str(number), TOPIC, where(number))
            transport.send(WSMsgType.TEXT, msgspec.json.encode(wish))
        await client.subscribed

    async def close(self) -> None:
        for transport in self._transports:
            transport.disconnect()
            await transport.wait_disconnected()

    def count(self) -> None:
        self.events += 1
        if self.events == self._wanted:
            self._reached.set()

    def fail(self, reason: str) -> None:
        self.fault = self.fault or reason
        self._reached.set()

    async def counted(self, order: Count) -> Counted:
        self._wanted = order.events
        if self.events < order.events and not self.fault and order.timeout_s:
            self._reached.clear()
            await _within(order.timeout_s, self._reached)
        return Counted(self.events, self.fault)


async def _within(timeout_s: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return


class _Client(WSListener):
    def __init__(self, crowd: Crowd, subscriptions: int) -> None:
        super().__init__()
        self._crowd = crowd
        self._missing = subscriptions
        self.subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        message = frame.get_payload_as_bytes()
        if message.startswith(EVENT):
            self._crowd.count()
        elif message.startswith(SUBSCRIBED) and self._missing:
            self._missing -= 1
            if not self._missing and not self.subscribed.done():
                self.subscribed.set_result(None)
        else:
            self._fail(f"a subscriber was told {message[:500].decode(errors='replace')}")

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._fail("a subscriber was disconnected")

    def _fail(self, reason: str) -> None:
        if not self.subscribed.done():
            self.subscribed.set_exception(Failed(reason))
        self._crowd.fail(reason)


async def run() -> None:
    crowd = Crowd()

    async def answer(order: Subscribe | Count) -> Counted:
        match order:
            case Subscribe():
                await crowd.subscribe(order)
                return Counted(crowd.events, crowd.fault)
            case Count():
                return await crowd.counted(order)

    await serve_orders(Subscribe | Count, answer)
    await crowd.close()


if __name__ == "__main__":
    uvloop.run(run())
