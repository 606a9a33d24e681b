"""Subscribers over server-sent events.

Invariant: a chunk is made when the connection has room for it, so what waits stays in the
subscriber's bounded queue; however the stream ends, the subscription ends with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from headgate.decide.feed.queue import Resync
from headgate.model.http import StreamResponse
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.services.gateway.subscriptions.subscriptions import Subscriptions
from headgate.services.gateway.wire import (
    SSE_KEEP_ALIVE,
    error_message,
    kind_of,
    resync_message,
    sse_event,
    subscribed_message,
)

CHUNK_BYTES = 64 * 1024
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


OnEnd = Callable[[], None]


def sse_response(
    subscriptions: Subscriptions,
    subscriber: LiveSubscription,
    *,
    keep_alive_s: float,
    on_end: OnEnd = lambda: None,
) -> StreamResponse:
    """`on_end` hears that it is over, however that came."""
    stream = SseStream(subscriptions, subscriber, keep_alive_s, on_end)
    return StreamResponse(200, dict(HEADERS), stream)


class SseStream:
    """The chunks of one subscriber. Not a generator, because one that was never started can't
    clean up when it is closed."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        subscriber: LiveSubscription,
        keep_alive_s: float,
        on_end: OnEnd,
    ) -> None:
        self._on_end = on_end
        self._subscriptions = subscriptions
        self._subscriber = subscriber
        self._keep_alive_s = keep_alive_s
        self._wake = asyncio.Event()
        self._begun = False
        self._ended = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._ended:
            raise StopAsyncIteration
        if not self._begun:
            self._begun = True
            self._subscriptions.begin(self._subscriber, self._wake.set)
            return self._subscribed()
        while True:
            self._wake.clear()
            if chunk := self._chunk():
                return chunk
            try:
                async with asyncio.timeout(self._keep_alive_s):
                    await self._wake.wait()
            except TimeoutError:
                return SSE_KEEP_ALIVE

    async def aclose(self) -> None:
        self._ended = True
        self._on_end()
        await self._subscriptions.unsubscribe(self._subscriber)

    def _subscribed(self) -> bytes:
        subscriber = self._subscriber
        positions = subscriber.feed.sent()
        message = subscribed_message(subscriber.name, subscriber.topic, positions)
        return sse_event("subscribed", message, positions)

    def _chunk(self) -> bytes:
        """What waits, up to a bound, or the end."""
        subscriber = self._subscriber
        if subscriber.closing is not None:
            self._ended = True
            return sse_event("error", error_message(subscriber.closing))
        chunk = bytearray()
        while len(chunk) < CHUNK_BYTES and (item := subscriber.take()) is not None:
            positions = subscriber.feed.sent()
            if isinstance(item, Resync):
                message = resync_message(subscriber.name, subscriber.topic, item)
                chunk += sse_event("resync", message, positions)
            else:
                kind = kind_of(item.value)
                chunk += sse_event(kind, item.value + subscriber.tail, positions)
        return bytes(chunk)
