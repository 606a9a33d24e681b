"""`Producer` for programs without an event loop: the same calls, which block.

The producer lives on a loop of its own in a thread, so calls from several threads share batches.
Invariant: leaving the `with` block sends what waits and ends the thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from headgate import errors
from headgate.client.outgoing import Document, Outcome, OutgoingEvent, Receipt
from headgate.client.producer import Producer, ProducerOptions
from headgate.model.api import DEFAULT_URL
from headgate.model.event import Op
from headgate.tasks import start_thread

T = TypeVar("T")


class SyncProducer:
    def __init__(self, url: str = DEFAULT_URL, options: ProducerOptions | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._producer = Producer(url, options)
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
        if self._loop.is_closed():
            return
        self._await(self._producer.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _await(self, call: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            call.close()
            raise errors.InvalidRequest("the producer is closed: send before leaving its block")
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()
