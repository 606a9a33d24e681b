"""The appends under way, and the bound on what waits.

Invariants: an append, once started, is never cancelled: nobody could say what became of it. A
request keeps its place until it is answered and the store has answered for its appends, so what is
held in memory is bounded. The head of a partition follows every append that succeeded.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from headgate import errors
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import Owner
from headgate.ports.log import Appended, LogWriter
from headgate.telemetry import LogEvent

log = structlog.get_logger()


@dataclass(slots=True)
class OpenPartition:
    """`lost` is set when the store refused this node's epoch: somebody newer owns it.

    `found_head` is the head it was found with, at `opened_s`: what is behind it was written by a
    former owner, or by this node before a restart.
    """

    owner: Owner
    version: int
    head: int
    opened_s: float
    found_head: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class WriteBounds:
    """How much may wait at once, beyond which a request is told to come back; and how many requests
    and events of opportunistic topics are remembered for a retry."""

    requests: int = 1_024
    events: int = 200_000
    remembered_requests: int = 10_000
    remembered_events: int = 100_000


@dataclass(frozen=True, slots=True)
class _UnderWay:
    ref: PartitionRef
    request: int


@dataclass(slots=True)
class _Hold:
    """A request's place: held by its caller, then by its appends under way."""

    events: int
    holders: int = 1


class Appends:
    def __init__(
        self, writer: LogWriter, *, now_ms: Callable[[], int], bounds: WriteBounds
    ) -> None:
        self._writer = writer
        self._now_ms = now_ms
        self._bounds = bounds
        self._tasks: dict[asyncio.Task[list[Appended]], _UnderWay] = {}
        self._holds: dict[int, _Hold] = {}
        self._numbers = itertools.count()
        self._events_waiting = 0

    # --- the bound -------------------------------------------------------------------------------

    @contextmanager
    def entered(self, events: int) -> Iterator[int]:
        """A place for a request of so many events, under a new number; Overloaded without room."""
        full = len(self._holds) >= self._bounds.requests
        if full or self._events_waiting + events > self._bounds.events:
            raise errors.Overloaded(
                "too many requests wait for the disk; nothing was written, try again later",
                waiting_requests=len(self._holds),
                waiting_events=self._events_waiting,
            )
        request = next(self._numbers)
        self._holds[request] = _Hold(events)
        self._events_waiting += events
        try:
            yield request
        finally:
            self._release(request)

    def _release(self, request: int) -> None:
        hold = self._holds[request]
        hold.holders -= 1
        if hold.holders == 0:
            self._events_waiting -= hold.events
            del self._holds[request]

    # --- appending -------------------------------------------------------------------------------

    def start(
        self, request: int, target: OpenPartition, events: Sequence[Event], *, version: int
    ) -> asyncio.Task[list[Appended]]:
        task = asyncio.create_task(self._append(target, events, version))
        self._holds[request].holders += 1
        self._tasks[task] = _UnderWay(target.owner.ref, request)
        task.add_done_callback(self._ended)
        return task

    async def _append(
        self, target: OpenPartition, events: Sequence[Event], version: int
    ) -> list[Appended]:
        try:
            appended = await self._writer.append(
                target.owner.ref, events, version=version, now_ms=self._now_ms()
            )
        except errors.Fenced:
            target.lost = True
            raise
        target.head = max(target.head, *(one.seq for one in appended))
        return appended

    def _ended(self, task: asyncio.Task[list[Appended]]) -> None:
        append = self._tasks.pop(task)
        self._release(append.request)
        failure = None if task.cancelled() else task.exception()
        if isinstance(failure, errors.HeadgateError):
            log.warning(LogEvent.APPEND_FAILED, partition=str(append.ref), reason=str(failure))
        elif failure is not None:
            log.error(LogEvent.UNEXPECTED, partition=str(append.ref), exc_info=failure)

    # --- looking back ----------------------------------------------------------------------------

    async def find(
        self, ref: PartitionRef, events: Sequence[Event], *, timeout_s: float
    ) -> dict[str, int] | None:
        """The seqs of those of `events` that are in `ref`; None when the store can't tell now."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._writer.find(ref, [event.event_id for event in events])
        except (errors.HeadgateError, TimeoutError) as error:
            reason = str(error) or f"no answer within {timeout_s:g} s"
            log.warning(LogEvent.APPEND_FAILED, partition=str(ref), reason=f"read back: {reason}")
            return None

    # --- the end ---------------------------------------------------------------------------------

    async def finished(self, ref: PartitionRef) -> None:
        """Wait for the appends to `ref` that are under way."""
        under_way = [task for task, append in self._tasks.items() if append.ref == ref]
        if under_way:
            await asyncio.wait(under_way)

    async def drain(self, *, timeout_s: float) -> bool:
        """Wait for every append under way; False when some are still there at the end."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)
        return not self._tasks
