"""Sends events to topics: `async with Producer(url) as producer: await producer.send(...)`.

Invariants: every event carries an id made here, so a retry can't write it twice; the events of one
key reach the log in the order of the calls (see turns.py and topic_stream.py); what waits is
bounded, and a call waits for room, first come, first served. Every call ends, within its deadline
and one margin (see calls.py), and so does closing. One call's mistake never fails another call that
happened to travel in the same request.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from copy import copy
from types import TracebackType
from typing import Self

from headgate import errors
from headgate.client.credentials import Token, credentials
from headgate.client.defaults import THIS_MACHINE, open_calls
from headgate.client.http import topic_path
from headgate.client.producing.calls import Calls, overdue
from headgate.client.producing.exchange import ANSWER_MARGIN_S
from headgate.client.producing.fair_order import Turns, lines_of
from headgate.client.producing.outgoing import (
    Document,
    Outcome,
    OutgoingEvent,
    Receipt,
    weight_bytes,
    wire_event,
)
from headgate.client.producing.pending import Call, Pending, ProducerOptions, event_id, failed
from headgate.client.producing.route import Route
from headgate.client.producing.topic_stream import TopicStream
from headgate.client.texts import plain
from headgate.model.api import DEFAULT_URL, MAX_EVENTS_PER_REQUEST, ProduceEvent
from headgate.model.event import ProducedOp
from headgate.ports.http import OpenCalls
from headgate.ports.machine import Machine

__all__ = ["Producer", "ProducerOptions"]

UNKNOWN_MAX = 100_000

_Part = tuple[Sequence[tuple[int, ProduceEvent, int]], int]
"""What fits one request, of index, event and size in bytes, and how many bytes that is in all."""


class Producer:
    """`token` is the credential, where a Headgate asks for one: a text, or a function that returns
    one whenever a new one is needed, which may be asynchronous.

    `machine` and `open_calls` are for tests: time, chance and threads are this machine's, its
    calls HTTP."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        options: ProducerOptions | None = None,
        *,
        token: Token | None = None,
        route: Route | None = None,
        machine: Machine = THIS_MACHINE,
        open_calls: OpenCalls = open_calls,
    ) -> None:
        self._machine = machine
        self._options = options or ProducerOptions()
        if not 1 <= self._options.batch_events <= MAX_EVENTS_PER_REQUEST:
            raise errors.InvalidRequest(
                f"batch_events is {self._options.batch_events}: it must be between 1 and "
                f"{MAX_EVENTS_PER_REQUEST}"
            )
        self._route = route or Route(
            url,
            open_calls=open_calls,
            machine=machine,
            credentials=credentials(token, machine),
        )
        self._streams: dict[str, TopicStream] = {}
        self._calls = Calls(self._options.deadline_s, release=self._leave)
        self._numbers = itertools.count()
        self._turns = Turns()
        self._entrance = asyncio.Lock()
        self._at_the_entrance = 0
        self._room = asyncio.Event()
        self._outstanding_events = 0
        self._outstanding_bytes = 0
        self._unknown: dict[str, None] = {}
        """Ids of events whose outcome nobody knew, the last `UNKNOWN_MAX`: their program may send
        them once more."""
        self._closed = False

    async def __aenter__(self) -> Self:
        self._route.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            # Somebody wants out now: what waits is not sent, and is told so.
            self._abandon(errors.NotNow("the producer was cancelled"))
        await self.close()

    async def close(self) -> None:
        """Send what waits, then let go of the connections; at most `deadline_s` and a margin.

        What has no outcome by then gets one: not written, or unknown.
        """
        self._closed = True
        self._room.set()
        deadline_s = _now_s() + self._options.deadline_s + ANSWER_MARGIN_S
        try:
            for stream in self._streams.values():
                stream.hurry()
            await self._ended(deadline_s)
        finally:
            self._abandon(errors.NotNow("the producer was closed"))
            await self._ended(_now_s() + ANSWER_MARGIN_S)
            await self._route.close()

    async def _ended(self, until_s: float) -> None:
        """Wait for everything that is under way, until then."""
        while tasks := [task for stream in self._streams.values() for task in stream.tasks()]:
            left_s = until_s - _now_s()
            if left_s <= 0:
                return
            await asyncio.wait(tasks, timeout=left_s)

    def _abandon(self, error: errors.HeadgateError) -> None:
        """Send nothing more; what is under way ends as an unknown outcome."""
        self._calls.end_all(error)
        for stream in list(self._streams.values()):
            stream.abandon()

    # --- calls -----------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        document: Document,
        *,
        key: str | None = None,
        op: ProducedOp = "insert",
        event_id: str | None = None,
        collection: str = "",
        earlier: Document | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Receipt:
        """Write one event; returns once it is on disk."""
        event = OutgoingEvent(document, key, op, event_id, collection, earlier, headers)
        [outcome] = await self.send_many(topic, [event])
        if isinstance(outcome, errors.HeadgateError):
            # One that is nobody else's: calls that fail together share the outcome.
            raise copy(outcome)
        return outcome

    async def send_many(self, topic: str, events: Sequence[OutgoingEvent]) -> list[Outcome]:
        """Write `events`, in order; one receipt or error per event, in the same order.

        An error that names an event by `index` means its place in `events`.
        """
        if self._closed:
            raise errors.InvalidRequest("the producer is closed: send before leaving its block")
        topic = plain("topic", topic)
        if topic not in self._streams:
            topic_path(topic)
        wired = [wire_event(event, self._machine) for event in events]
        parts = self._parts(wired)
        call = self._calls.begin(len(wired))
        entered = call.entered  # kept here where the call ends in the moment it is cancelled
        try:
            if len(parts) == 1 and self._has_room_now(parts[0]):
                refused = self._queue(topic, call, parts[0], call.began_s)
            else:
                refused = await self._enter_all(topic, call, parts)
            if refused is not None:
                call.refuse_rest(refused)
            await call.done
        except BaseException:
            for pending in entered:
                if pending.asked or pending.unknown:
                    self._remember(pending)
            call.abandon()
            raise
        return call.outcomes

    def _parts(self, events: Sequence[ProduceEvent]) -> list[_Part]:
        """Pieces that fit one request each."""
        parts: list[_Part] = []
        part: list[tuple[int, ProduceEvent, int]] = []
        size_bytes = 0
        for index, event in enumerate(events):
            weight = weight_bytes(event)
            too_long = len(part) == self._options.batch_events
            if part and (too_long or size_bytes + weight > self._options.batch_bytes):
                parts.append((part, size_bytes))
                part, size_bytes = [], 0
            part.append((index, event, weight))
            size_bytes += weight
        if part:
            parts.append((part, size_bytes))
        return parts

    # --- room ------------------------------------------------------------------------------------

    async def _enter_all(
        self, topic: str, call: Call, parts: Sequence[_Part]
    ) -> errors.HeadgateError | None:
        """Part by part, before any later call that has a key of theirs; returns why not all of
        them got room."""
        if len(parts) == 1 and not self._turns:
            return await self._enter(topic, call, parts[0])
        events = [event for entries, _ in parts for _, event, _ in entries]
        try:
            async with self._turns.taken(lines_of(topic, events), call.deadline_s):
                for part in parts:
                    if refused := await self._enter(topic, call, part):
                        return refused
        except TimeoutError:
            return overdue(self._options.deadline_s)
        return None

    def _has_room_now(self, part: _Part) -> bool:
        """And nobody is before it."""
        return not self._turns and not self._at_the_entrance and self._fits(part)

    async def _enter(self, topic: str, call: Call, part: _Part) -> errors.HeadgateError | None:
        """Wait for room, then queue; returns why there was none before the call has to end."""
        if not self._at_the_entrance and self._fits(part):
            return self._queue(topic, call, part, _now_s())
        self._at_the_entrance += 1
        try:
            async with asyncio.timeout_at(call.deadline_s), self._entrance:
                await self._until_it_fits(part)
                return self._queue(topic, call, part, _now_s())
        except TimeoutError:
            return overdue(self._options.deadline_s)
        finally:
            self._at_the_entrance -= 1

    async def _until_it_fits(self, part: _Part) -> None:
        while not self._closed and not self._fits(part):
            self._room.clear()
            await self._room.wait()

    def _queue(
        self, topic: str, call: Call, part: _Part, now_s: float
    ) -> errors.HeadgateError | None:
        if self._closed:
            return errors.NotNow("the producer was closed before it could send the event")
        if call.entered and not call.has_failed:
            # The first part counts from when the call came in. A call of many parts gets on.
            call.deadline_s = now_s + self._options.deadline_s
        entries, size_bytes = part
        self._outstanding_events += len(entries)
        self._outstanding_bytes += size_bytes
        entered = [
            Pending(event, next(self._numbers), weight, now_s, call, index, self._again(event))
            for index, event, weight in entries
        ]
        call.entered += entered
        stream = self._streams.get(topic) or self._new_stream(topic)
        for pending in entered:
            try:
                stream.add(pending)
            except Exception as error:  # noqa: BLE001  # the other events of the call go on
                pending.settle(failed(error))
        return None

    def _fits(self, part: _Part) -> bool:
        if self._outstanding_events == 0:
            return True
        entries, size_bytes = part
        return (
            self._outstanding_events + len(entries) <= self._options.outstanding_events
            and self._outstanding_bytes + size_bytes <= self._options.outstanding_bytes
        )

    def _leave(self, pending: Pending) -> None:
        self._outstanding_events -= 1
        self._outstanding_bytes -= pending.size_bytes
        self._room.set()
        if isinstance(pending.call.outcomes[pending.index], errors.OutcomeUnknown):
            self._remember(pending)

    def _remember(self, pending: Pending) -> None:
        self._unknown[event_id(pending)] = None
        if len(self._unknown) > UNKNOWN_MAX:
            del self._unknown[next(iter(self._unknown))]

    def _again(self, event: ProduceEvent) -> bool:
        return self._options.again or (bool(self._unknown) and event.event_id in self._unknown)

    def _new_stream(self, topic: str) -> TopicStream:
        stream = self._streams[topic] = TopicStream(
            topic,
            self._route,
            self._options,
            machine=self._machine,
            idle=lambda: self._streams.pop(topic, None),
        )
        return stream


def _now_s() -> float:
    return asyncio.get_running_loop().time()
