"""Subscribers of the test's own process, with ids that say where they belong."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Self, TypeVar

from headgate.client import Event, Subscriber

T = TypeVar("T")
TIMEOUT_S = 60.0


class Reader:
    """One subscriber: what it got, and when."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self.events: list[dict[str, Any]] = []
        self.at_s: list[float] = []

    @property
    def reconnects(self) -> int:
        return self._subscriber.reconnects

    @property
    def arrivals(self) -> list[tuple[int, float]]:
        """The number of each event, with when it came."""
        return [
            (event["document"]["n"], at_s)
            for event, at_s in zip(self.events, self.at_s, strict=False)
        ]

    async def follow(self) -> None:
        async for item in self._subscriber:
            assert isinstance(item, Event), item
            self.at_s.append(time.monotonic())
            self.events.append(
                {
                    "partition": item.partition,
                    "seq": item.seq,
                    "key": item.key,
                    "document": json.loads(bytes(item.raw)),
                }
            )

    async def open(self) -> None:
        await self._subscriber.__aenter__()

    async def close(self) -> None:
        await self._subscriber.close()


class Readers:
    """Any number of them, on one event loop in a thread; use it as a context manager."""

    def __init__(self, urls: Sequence[str], topic: str) -> None:
        self._urls = list(urls)
        self._topic = topic
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: list[tuple[Reader, asyncio.Task[None]]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        ends = self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()
        for error in ends:
            if kind is None and error is not None:
                raise error

    def open(self, subscriber_id: str) -> Reader:
        """One that misses nothing from now on."""
        return self._run(self._opened(subscriber_id))

    async def _opened(self, subscriber_id: str) -> Reader:
        reader = Reader(Subscriber(self._urls, self._topic, id=subscriber_id))
        await reader.open()
        self._open.append((reader, asyncio.create_task(reader.follow())))
        return reader

    async def _close(self) -> list[BaseException | None]:
        for reader, _ in self._open:
            await reader.close()
        return await asyncio.gather(*(task for _, task in self._open), return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)
