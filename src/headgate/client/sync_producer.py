"""`Producer` for programs without an event loop: the same calls, which block.

The producer lives on a loop of its own in a thread, so calls from several threads share batches.
Invariant: leaving the `with` block sends what waits and ends the thread, within a bound; every call
that another thread has under way ends before that, with its outcome or as unknown.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar

from headgate import errors
from headgate.client.outgoing import Document, Outcome, OutgoingEvent, Receipt
from headgate.client.producer import Producer, ProducerOptions
from headgate.model.api import DEFAULT_URL
from headgate.model.event import Op
from headgate.tasks import start_thread

T = TypeVar("T")

LAST_WORDS_S = 2.0
"""How long calls may take to return after the producer has settled all that they sent."""


class SyncProducer:
    def __init__(self, url: str = DEFAULT_URL, options: ProducerOptions | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._producer = Producer(url, options)
        self._lock = threading.Lock()
        self._calls: set[Future[Any]] = set()
        self._closed = False
        self._thread = start_thread("producer", self._loop.run_forever)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(
        self,
        topic: str,
        document: Document,
        *,
        key: str | None = None,
        op: Op = "insert",
        event_id: str | None = None,
        collection: str = "",
        earlier: Document | None = None,
    ) -> Receipt:
        """Write one event; returns once it is on disk."""
        return self._await(
            self._producer.send(
                topic,
                document,
                key=key,
                op=op,
                event_id=event_id,
                collection=collection,
                earlier=earlier,
            )
        )

    def send_many(self, topic: str, events: Sequence[OutgoingEvent]) -> list[Outcome]:
        """Write `events`, in order; one receipt or error per event, in the same order."""
        return self._await(self._producer.send_many(topic, events))

    def close(self) -> None:
        """Send what waits and end the thread; at most `deadline_s` and a few seconds."""
        with self._lock:
            is_first, self._closed = not self._closed, True
        if not is_first:
            self._thread.join()
            return
        try:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        finally:
            # Also where somebody interrupts the wait: nobody else would end them.
            for call in self._under_way():
                call.cancel()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(asyncio.sleep(0))  # the turn of those just cancelled
            self._loop.close()

    async def _end(self) -> None:
        await self._producer.close()
        if calls := [asyncio.wrap_future(call) for call in self._under_way()]:
            await asyncio.wait(calls, timeout=LAST_WORDS_S)

    def _under_way(self) -> list[Future[Any]]:
        with self._lock:
            return list(self._calls)

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            # Together: what is scheduled after the end would never begin.
            if self._closed:
                work.close()
                raise errors.InvalidRequest("the producer is closed: send before leaving its block")
            call = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._calls.add(call)
        try:
            return call.result()
        except CancelledError as error:
            raise errors.OutcomeUnknown(
                "the producer was closed before the call had its outcome: send the same event ids "
                "again to find out"
            ) from error
        finally:
            with self._lock:
                self._calls.discard(call)
