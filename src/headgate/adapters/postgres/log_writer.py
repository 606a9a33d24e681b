"""The log's writer on PostgreSQL: group commit, one task and two tables per partition.

While a task waits for the server, calls gather in its queue; it then commits all of them at once.
Invariants: a call is answered exactly once, after its commit is durable; what waits is bounded in
bytes and in time, also while the server is paused or gone; each call is whole or absent.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from headgate.adapters.log.appending import (
    AppendRequest,
    Outcome,
    not_open,
    overloaded,
    stopping,
    unwritable,
)
from headgate.adapters.log.retention import droppable_seq
from headgate.adapters.postgres.connections import (
    COMMIT_TIMEOUT_S,
    TIMEOUT_S,
    Connections,
    check_dsn,
)
from headgate.adapters.postgres.notices import Notifier
from headgate.adapters.postgres.partition_table import PartitionTable
from headgate.adapters.postgres.schema import DEFAULT_SCHEMA, SchemaStatements
from headgate.errors import HeadgateError, InvalidRequest, StorageFailed
from headgate.model.event import Event, PartitionRef
from headgate.model.intake import IntakeMark
from headgate.ports.log import Appended, Extent, Retention, Taken
from headgate.tasks import Crew

T = TypeVar("T")

MAX_WAITING_BYTES = 64 * 1024 * 1024
GROUP_BYTES = 4 * 1024 * 1024
"""A commit takes what waits, up to this: larger ones gain nothing and make the first call wait."""
MAX_CONNECTIONS = 8


class PostgresLogWriter:
    """Implements ports.log.LogWriter. Belongs to the event loop that it's used on.

    An append ends within twice `timeout_s` (waiting for its turn, then for its statements) plus
    `commit_timeout_s`.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        max_connections: int = MAX_CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
        commit_timeout_s: float = COMMIT_TIMEOUT_S,
    ) -> None:
        check_dsn(dsn)
        self._schema = SchemaStatements(schema)
        self._max_waiting_bytes = max_waiting_bytes
        self._timeout_s = timeout_s
        self._connections = Connections(
            dsn, limit=max_connections, timeout_s=timeout_s, commit_timeout_s=commit_timeout_s
        )
        self._notifier = Notifier(dsn, self._schema)
        self._turns: dict[PartitionRef, _PartitionTurns] = {}
        self._opened: set[PartitionRef] = set()
        self._closed = False

    async def open(
        self, ref: PartitionRef, *, epoch: int, version: int = 1, sealed: bool = False
    ) -> Extent:
        extent = await self._turns_of(ref).call(
            lambda table: table.open(epoch, version, sealed=sealed)
        )
        self._opened.add(ref)
        return extent

    async def append(
        self, ref: PartitionRef, events: Sequence[Event], *, version: int, now_ms: int
    ) -> list[Appended]:
        turns = self._open_turns(ref)
        return await turns.append(AppendRequest(events, version=version, now_ms=now_ms))

    async def take_in(
        self,
        ref: PartitionRef,
        mark: IntakeMark,
        events: Sequence[Event],
        *,
        version: int,
        now_ms: int,
    ) -> Taken:
        request = AppendRequest(events, version=version, now_ms=now_ms)
        return await self._open_turns(ref).take_in(mark, request)

    async def find(self, ref: PartitionRef, event_ids: Sequence[str]) -> dict[str, int]:
        return await self._turns_of(ref).call(lambda table: table.find(event_ids))

    async def move_on(self, ref: PartitionRef, *, from_head: int, to_head: int) -> Extent:
        return await self._open_turns(ref).call(lambda table: table.move_on(from_head, to_head))

    async def retain(
        self, ref: PartitionRef, retention: Retention, *, settled: int, ids_ms: int, now_ms: int
    ) -> Extent:
        """The space is used again by later records; PostgreSQL's autovacuum sees to that."""
        turns = self._open_turns(ref)
        extent = await turns.call(PartitionTable.extent)
        up_to_seq = droppable_seq(retention, settled=settled, head=extent.head)

        def drop(table: PartitionTable) -> Awaitable[bool]:
            return table.drop_expired(retention, up_to_seq=up_to_seq, ids_ms=ids_ms, now_ms=now_ms)

        while await turns.call(drop):
            pass  # Each turn drops something; appends get theirs in between.
        return await turns.call(PartitionTable.extent)

    async def drop_records(self, ref: PartitionRef, *, epoch: int) -> None:
        is_open = ref in self._turns
        turns = self._turns_of(ref)
        try:
            await turns.call(lambda table: table.drop_records(epoch))
            is_open = False
        finally:
            if not is_open:
                # Topics are deleted for ever: no owner may come back to this partition.
                self._opened.discard(ref)
                self._turns.pop(ref, None)
                await turns.stop()

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(turns.stop() for turns in self._turns.values()))
        self._turns.clear()
        await self._notifier.close()
        await self._connections.close()

    def _turns_of(self, ref: PartitionRef) -> _PartitionTurns:
        if self._closed:
            raise stopping()
        if ref not in self._turns:
            self._turns[ref] = _PartitionTurns(
                ref,
                PartitionTable(self._connections, self._schema, ref),
                self._notifier,
                max_waiting_bytes=self._max_waiting_bytes,
                timeout_s=self._timeout_s,
            )
        return self._turns[ref]

    def _open_turns(self, ref: PartitionRef) -> _PartitionTurns:
        if not self._closed and ref not in self._opened:
            raise not_open(ref)
        return self._turns_of(ref)


class _Append:
    __slots__ = ("future", "latest_start", "request")

    def __init__(
        self,
        request: AppendRequest,
        future: asyncio.Future[list[Appended]],
        latest_start: float,
    ) -> None:
        self.request = request
        self.future = future
        self.latest_start = latest_start


class _Call:
    """Something else to do with the partition, in its turn; `work` None ends the task."""

    __slots__ = ("future", "work")

    def __init__(
        self,
        work: Callable[[PartitionTable], Awaitable[Any]] | None,
        future: asyncio.Future[Any],
    ) -> None:
        self.work = work
        self.future = future


class _PartitionTurns:
    """One partition's queue and the task that serves it, in order."""

    def __init__(
        self,
        ref: PartitionRef,
        table: PartitionTable,
        notifier: Notifier,
        *,
        max_waiting_bytes: int,
        timeout_s: float,
    ) -> None:
        self._ref = ref
        self._table = table
        self._notifier = notifier
        self._max_waiting_bytes = max_waiting_bytes
        self._timeout_s = timeout_s
        self._waiting_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Append | _Call] = deque()
        self._wanted = asyncio.Event()
        self._has_ended = False
        self._crew = Crew("postgres")
        self._task = self._crew.keep("log writer", self._run, about=str(ref))

    async def append(self, request: AppendRequest) -> list[Appended]:
        if self._waiting_bytes and self._waiting_bytes + request.weight > self._max_waiting_bytes:
            raise overloaded(self._ref)
        self._waiting_bytes += request.weight
        future: asyncio.Future[list[Appended]] = self._loop.create_future()
        self._put(_Append(request, future, self._loop.time() + self._timeout_s))
        return await future

    async def take_in(self, mark: IntakeMark, request: AppendRequest) -> Taken:
        if self._waiting_bytes and self._waiting_bytes + request.weight > self._max_waiting_bytes:
            raise overloaded(self._ref)
        self._waiting_bytes += request.weight
        try:
            taken = await self.call(lambda table: table.take_in(mark, request))
        finally:
            self._waiting_bytes -= request.weight
        if taken.added:
            self._notifier.ring(self._ref)
        return taken

    async def call(self, work: Callable[[PartitionTable], Awaitable[T]]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        self._put(_Call(work, future))
        return await future

    async def stop(self) -> None:
        self._crew.dismiss()
        self._put(_Call(None, self._loop.create_future()))
        self._has_ended = True
        await self._task

    def _put(self, job: _Append | _Call) -> None:
        if self._has_ended:
            raise not_open(self._ref)  # nobody would ever answer it
        self._queue.append(job)
        self._wanted.set()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            while self._queue:
                job = self._queue.popleft()
                if isinstance(job, _Append):
                    await self._commit_group(job)
                elif job.work is None:
                    return
                else:
                    await self._serve(job, job.work)
            self._wanted.clear()

    async def _commit_group(self, first: _Append) -> None:
        """Commit `first` and what has queued behind it, up to the next call."""
        group, weight = [first], first.request.weight
        while self._queue and weight < GROUP_BYTES:
            job = self._queue[0]
            if isinstance(job, _Call):
                break
            self._queue.popleft()
            group.append(job)
            weight += job.request.weight
        now = self._loop.time()
        timely = [job for job in group if job.latest_start >= now]
        outcomes = await self._append([job.request for job in timely]) if timely else []
        self._waiting_bytes -= weight
        for job, outcome in zip(timely, outcomes, strict=True):
            _answer(job.future, outcome)
        for job in group:
            _answer(job.future, self._too_late())  # Those that were not tried.
        if any(isinstance(outcome, list) for outcome in outcomes):
            self._notifier.ring(self._ref)

    async def _append(self, requests: list[AppendRequest]) -> Sequence[Outcome]:
        try:
            return await self._table.append(requests)
        except HeadgateError as error:
            if len(requests) == 1 or not isinstance(error, InvalidRequest):
                # An exception grows a traceback where it's raised, so every caller gets its own.
                return [copy.copy(error) for _ in requests]
        except Exception as error:  # noqa: BLE001 - a value may fail in any way; only its request does
            if len(requests) == 1:
                return [unwritable(error)]
        # One request spoils the group; alone, only that one fails.
        return [(await self._append([request]))[0] for request in requests]

    async def _serve(self, job: _Call, work: Callable[[PartitionTable], Awaitable[Any]]) -> None:
        try:
            outcome = await work(self._table)
        except Exception as error:  # noqa: BLE001 - handed on to the caller
            outcome = error
        _answer(job.future, outcome)

    def _too_late(self) -> StorageFailed:
        return StorageFailed(
            f"the write to partition {self._ref.partition} of {self._ref.topic} failed: PostgreSQL "
            "was too busy with those before it; nothing was written"
        )


def _answer(future: asyncio.Future[Any], outcome: object) -> None:
    if future.done():
        return  # Answered, or the caller went away: what it asked for happened all the same.
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
