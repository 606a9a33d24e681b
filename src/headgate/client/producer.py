"""Sends events to topics: `async with Producer(url) as producer: await producer.send(...)`.

Invariants: every event carries an id made here, so a retry can't write it twice; the events of one
topic reach the log in the order of the calls, because a topic has one request under way at a time
and what comes meanwhile fills the next one; what waits is bounded, and a call waits for room. One
call's mistake never fails another call that happened to travel in the same request.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from headgate import errors
from headgate.client.http import DEFAULT_URL, HttpClient, rebuild, topic_path
from headgate.client.outgoing import (
    Outcome,
    OutgoingEvent,
    Receipt,
    weight_bytes,
    wire_event,
)
from headgate.client.route import Route
from headgate.model.api import (
    MAX_EVENTS_PER_REQUEST,
    ProduceAnswer,
    ProduceEvent,
    ProduceRequest,
    ProduceResult,
)
from headgate.model.event import Op

ANSWER_MARGIN_S = 2.0
"""How much longer than the server's own deadline to wait for its answer."""


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """`deadline_s` is how long a call tries before it gives up, retries included."""

    linger_s: float = 0.002
    batch_events: int = 500
    batch_bytes: int = 4 * 1024 * 1024
    outstanding_events: int = 10_000
    outstanding_bytes: int = 64 * 1024 * 1024
    request_timeout_s: float = 5.0
    deadline_s: float = 30.0
    backoff_first_s: float = 0.05
    backoff_max_s: float = 2.0


@dataclass(slots=True, eq=False)
class _Call:
    """The events of one call that fit one request, and the future of their outcomes."""

    events: list[ProduceEvent]
    size_bytes: int
    deadline_s: float
    arrived_s: float
    outcomes: asyncio.Future[list[Outcome]]


@dataclass(slots=True)
class _Stream:
    """What waits for one topic. `ready` is set when a full batch waits or the producer closes."""

    topic: str
    calls: deque[_Call] = field(default_factory=deque)
    waiting_events: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Producer:
    def __init__(self, url: str = DEFAULT_URL, options: ProducerOptions | None = None) -> None:
        self._options = options or ProducerOptions()
        if not 1 <= self._options.batch_events <= MAX_EVENTS_PER_REQUEST:
            raise errors.InvalidRequest(
                f"batch_events is {self._options.batch_events}: it must be between 1 and "
                f"{MAX_EVENTS_PER_REQUEST}"
            )
        self._route = Route(url)
        self._streams: dict[str, _Stream] = {}
        self._entrance = asyncio.Lock()
        self._room = asyncio.Event()
        self._outstanding_events = 0
        self._outstanding_bytes = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._abandon()
        await self.close()

    def _abandon(self) -> None:
        """Somebody wants out now: what waits is not sent, and is told so."""
        for stream in self._streams.values():
            _settle_all(stream.calls, errors.NotNow("the producer was cancelled"))
            if stream.task is not None:
                stream.task.cancel()

    async def close(self) -> None:
        """Send what waits, then let go of the connections; at most `deadline_s`."""
        self._closed = True
        for stream in self._streams.values():
            stream.ready.set()
        tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._route.close()

    # --- calls -----------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        document: Mapping[str, Any] | bytes | str,
        *,
        key: str | None = None,
        op: Op = "insert",
        event_id: str | None = None,
        collection: str = "",
    ) -> Receipt:
        """Write one event; returns once it is on disk."""
        event = OutgoingEvent(document, key, op, event_id, collection)
        [outcome] = await self.send_many(topic, [event])
        if isinstance(outcome, errors.HeadgateError):
            raise outcome
        return outcome

    async def send_many(self, topic: str, events: Sequence[OutgoingEvent]) -> list[Outcome]:
        """Write `events`, in order; one receipt or error per event, in the same order."""
        futures = [
            await self._enter(topic, part, size_bytes) for part, size_bytes in self._parts(events)
        ]
        return [outcome for future in futures for outcome in await future]

    def _parts(self, events: Sequence[OutgoingEvent]) -> list[tuple[list[ProduceEvent], int]]:
        """Cut into pieces that fit one request each."""
        parts: list[tuple[list[ProduceEvent], int]] = []
        part: list[ProduceEvent] = []
        size_bytes = 0
        for event in map(wire_event, events):
            weight = weight_bytes(event)
            too_long = len(part) == self._options.batch_events
            if part and (too_long or size_bytes + weight > self._options.batch_bytes):
                parts.append((part, size_bytes))
                part, size_bytes = [], 0
            part.append(event)
            size_bytes += weight
        return [*parts, (part, size_bytes)] if part else parts

    async def _enter(
        self, topic: str, events: list[ProduceEvent], size_bytes: int
    ) -> asyncio.Future[list[Outcome]]:
        """Wait for room, first come, first served, then queue."""
        async with self._entrance:
            while not self._fits(len(events), size_bytes):
                self._room.clear()
                await self._room.wait()
            if self._closed:
                raise errors.InvalidRequest("the producer is closed: send before leaving its block")
            self._outstanding_events += len(events)
            self._outstanding_bytes += size_bytes
            return self._queue(topic, events, size_bytes)

    def _fits(self, events: int, size_bytes: int) -> bool:
        if self._outstanding_events == 0:
            return True
        return (
            self._outstanding_events + events <= self._options.outstanding_events
            and self._outstanding_bytes + size_bytes <= self._options.outstanding_bytes
        )

    def _queue(
        self, topic: str, events: list[ProduceEvent], size_bytes: int
    ) -> asyncio.Future[list[Outcome]]:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        outcomes: asyncio.Future[list[Outcome]] = loop.create_future()
        call = _Call(events, size_bytes, now_s + self._options.deadline_s, now_s, outcomes)
        stream = self._streams.setdefault(topic, _Stream(topic))
        stream.calls.append(call)
        stream.waiting_events += len(events)
        if stream.waiting_events >= self._options.batch_events:
            stream.ready.set()
        if stream.task is None:
            stream.task = asyncio.create_task(self._run(stream), name=f"produce {topic}")
        return outcomes

    # --- requests --------------------------------------------------------------------------------

    async def _run(self, stream: _Stream) -> None:
        """Sends a topic's batches, one after the other, until nothing waits."""
        while stream.calls:
            await self._linger(stream)
            batch = self._take(stream)
            try:
                await self._deliver(stream.topic, batch)
            except asyncio.CancelledError:
                _settle_all(batch, errors.OutcomeUnknown("the producer was cancelled"))
                raise
            except Exception as error:  # noqa: BLE001  # callers must not wait for ever
                _settle_all(batch, errors.HeadgateError(f"the producer failed: {error!r}"))
            finally:
                self._release(batch)
        del self._streams[stream.topic]

    async def _linger(self, stream: _Stream) -> None:
        """Give a batch that isn't full a moment to grow, counted from its first call."""
        rest_s = stream.calls[0].arrived_s + self._options.linger_s - _now_s()
        full = stream.waiting_events >= self._options.batch_events
        if full or rest_s <= 0 or self._closed:
            return
        stream.ready.clear()
        try:
            async with asyncio.timeout(rest_s):
                await stream.ready.wait()
        except TimeoutError:
            return

    def _take(self, stream: _Stream) -> list[_Call]:
        batch: list[_Call] = []
        events = size_bytes = 0
        while stream.calls:
            call = stream.calls[0]
            grown = events + len(call.events), size_bytes + call.size_bytes
            over = grown[0] > self._options.batch_events or grown[1] > self._options.batch_bytes
            if batch and over:
                break
            batch.append(stream.calls.popleft())
            events, size_bytes = grown
            stream.waiting_events -= len(call.events)
        return batch

    def _release(self, batch: Sequence[_Call]) -> None:
        for call in batch:
            self._outstanding_events -= len(call.events)
            self._outstanding_bytes -= call.size_bytes
        self._room.set()

    async def _deliver(self, topic: str, batch: Sequence[_Call]) -> None:
        """Send the calls of `batch` in one request; each alone where one of them is at fault."""
        batch = [call for call in batch if not call.outcomes.cancelled()]
        if not batch:
            return
        try:
            outcomes = await self._persist(topic, batch)
        except (errors.InvalidRequest, errors.TooLarge) as error:
            if len(batch) == 1:
                _settle_all(batch, error)
                return
            for call in batch:
                await self._deliver(topic, [call])
        except errors.HeadgateError as error:
            _settle_all(batch, error)
        else:
            for call in batch:
                _settle(call, [outcomes[_id(event)] for event in call.events])

    async def _persist(self, topic: str, batch: Sequence[_Call]) -> dict[str, Outcome]:
        """Outcomes by event id; tries what failed for the moment again until the deadline."""
        deadline_s = max(call.deadline_s for call in batch)
        pending = [event for call in batch for event in call.events]
        outcomes: dict[str, Outcome] = {}
        backoff_s = self._options.backoff_first_s
        while True:
            answers = await self._attempt(topic, pending, deadline_s)
            outcomes.update(answers)
            pending = [event for event in pending if _may_retry(outcomes[_id(event)])]
            if not pending or _now_s() + backoff_s >= deadline_s:
                return outcomes
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(backoff_s * 2, self._options.backoff_max_s)

    async def _attempt(
        self, topic: str, events: Sequence[ProduceEvent], deadline_s: float
    ) -> dict[str, Outcome]:
        """One request; a failure that may pass is an outcome, one that won't is raised."""
        client = await self._route.client()
        timeout_s = min(self._options.request_timeout_s, max(0.05, deadline_s - _now_s()))
        try:
            answer = await _post(client, topic, events, timeout_s)
        except errors.HeadgateError as error:
            if not _may_retry(error):
                raise
            if isinstance(error, errors.PeerUnreachable | errors.Timeout):
                self._route.failed(client)
            return {_id(event): error for event in events}
        return {result.event_id: _outcome(result) for result in answer.events}


async def _post(
    client: HttpClient, topic: str, events: Sequence[ProduceEvent], timeout_s: float
) -> ProduceAnswer:
    body = ProduceRequest(list(events), f"{int(timeout_s * 1_000)}ms")
    answer = await client.post(
        f"{topic_path(topic)}/produce",
        body,
        ProduceAnswer,
        timeout_s=timeout_s + ANSWER_MARGIN_S,
    )
    if [result.event_id for result in answer.events] != [event.event_id for event in events]:
        raise errors.HeadgateError(f"{client.url} answered for other events than were sent")
    return answer


def _outcome(result: ProduceResult) -> Outcome:
    if result.error is not None:
        return rebuild(result.error)
    if result.partition is None or result.seq is None:
        return errors.HeadgateError("the answer says neither where the event is nor what failed")
    return Receipt(result.partition, result.seq, result.event_id)


def _may_retry(outcome: Outcome) -> bool:
    return isinstance(outcome, errors.NotNow | errors.StorageFailed)


def _settle(call: _Call, outcomes: list[Outcome]) -> None:
    if not call.outcomes.done():
        call.outcomes.set_result(outcomes)


def _settle_all(batch: Iterable[_Call], error: errors.HeadgateError) -> None:
    for call in batch:
        _settle(call, [error] * len(call.events))


def _id(event: ProduceEvent) -> str:
    assert event.event_id is not None
    return event.event_id


def _now_s() -> float:
    return asyncio.get_running_loop().time()
