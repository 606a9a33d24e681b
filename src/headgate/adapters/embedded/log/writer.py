"""The embedded log's writer: group commit, one thread and one file per partition.

Calls gather while a thread waits for the disk and while the loop has more of them to hand in; the
thread then commits all of them at once and answers them in one hop to the event loop. Invariants: a
call is answered exactly once, after its fsync; what waits is bounded in bytes; each call is whole
or absent; one thread uses a file. Never blocks the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import queue
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.doorbell import Bell
from headgate.adapters.embedded.log.group_commit import Gathering
from headgate.adapters.embedded.log.partition_file import PartitionFile
from headgate.adapters.log.appending import (
    AppendRequest,
    Outcome,
    not_open,
    overloaded,
    stopping,
    unwritable,
)
from headgate.adapters.log.retention import droppable_seq
from headgate.errors import HeadgateError
from headgate.model.event import Event, PartitionRef
from headgate.model.intake import IntakeMark
from headgate.ports.log import Appended, Extent, Retention, Taken
from headgate.tasks import start_thread

T = TypeVar("T")

MAX_WAITING_BYTES = 64 * 1024 * 1024
GROUP_BYTES = 4 * 1024 * 1024
"""A commit takes what waits, up to this: larger ones gain nothing and make the first call wait."""


class EmbeddedLogWriter:
    """Implements ports.log.LogWriter. Belongs to the event loop that it's used on."""

    def __init__(self, folder: DataFolder, *, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        self._folder = folder
        self._max_waiting_bytes = max_waiting_bytes
        self._threads: dict[PartitionRef, _PartitionThread] = {}
        self._gathering: Gathering | None = None
        self._closed = False

    async def open(
        self, ref: PartitionRef, *, epoch: int, version: int = 1, sealed: bool = False
    ) -> Extent:
        return await self._thread(ref).call(lambda file: file.open(epoch, version, sealed=sealed))

    def append(
        self, ref: PartitionRef, events: Sequence[Event], *, version: int, now_ms: int
    ) -> asyncio.Future[list[Appended]]:
        try:
            thread = self._opened(ref)
            return thread.append(AppendRequest(events, version=version, now_ms=now_ms))
        except HeadgateError as error:
            refused: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused

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
        return await self._opened(ref).take_in(mark, request)

    async def find(self, ref: PartitionRef, event_ids: Sequence[str]) -> dict[str, int]:
        if not self._exists(ref):
            return {}
        return await self._thread(ref).call(lambda file: file.find(event_ids))

    async def move_on(self, ref: PartitionRef, *, from_head: int, to_head: int) -> Extent:
        return await self._opened(ref).call(lambda file: file.move_on(from_head, to_head))

    async def retain(
        self, ref: PartitionRef, retention: Retention, *, settled: int, ids_ms: int, now_ms: int
    ) -> Extent:
        thread = self._opened(ref)
        extent = await thread.call(PartitionFile.extent)
        up_to_seq = droppable_seq(retention, settled=settled, head=extent.head)

        def drop(file: PartitionFile) -> bool:
            return file.drop_expired(retention, up_to_seq=up_to_seq, ids_ms=ids_ms, now_ms=now_ms)

        while await thread.call(drop):
            pass  # Each turn drops something; appends get theirs in between.
        await self._give_back(thread)
        return await thread.call(PartitionFile.extent)

    async def drop_records(self, ref: PartitionRef, *, epoch: int) -> None:
        is_open = ref in self._threads
        thread = self._thread(ref)
        try:
            await thread.call(lambda file: file.drop_records(epoch))
            is_open = False
            await self._give_back(thread)
        finally:
            if not is_open:
                # Topics are deleted for ever: no owner may come back to this partition.
                self._threads.pop(ref, None)
                await thread.stop()

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(thread.stop() for thread in self._threads.values()))
        self._threads.clear()

    def _thread(self, ref: PartitionRef) -> _PartitionThread:
        if self._closed:
            raise stopping()
        if ref not in self._threads:
            gathering = self._gathering = self._gathering or Gathering(asyncio.get_running_loop())
            self._threads[ref] = _PartitionThread(
                self._folder, ref, gathering, self._max_waiting_bytes
            )
        return self._threads[ref]

    def _opened(self, ref: PartitionRef) -> _PartitionThread:
        if self._closed:
            raise stopping()
        thread = self._threads.get(ref)
        if thread is None:
            raise not_open(ref)
        return thread

    def _exists(self, ref: PartitionRef) -> bool:
        return ref in self._threads or self._folder.log_file(ref).exists()

    async def _give_back(self, thread: _PartitionThread) -> None:
        shrunk = False
        while await thread.call(lambda file: file.upkeep.give_back()):
            shrunk = True
        if shrunk:
            # The file itself shrinks when its write-ahead log is moved into it.
            await thread.call(lambda file: file.upkeep.move_wal())


Answer = tuple["asyncio.Future[Any]", object]


class _Append:
    __slots__ = ("future", "request")

    def __init__(self, request: AppendRequest, future: asyncio.Future[list[Appended]]) -> None:
        self.request = request
        self.future = future


class _Call:
    """Something else to do with the file, in its turn; `work` None ends the thread."""

    __slots__ = ("future", "work")

    def __init__(
        self, work: Callable[[PartitionFile], Any] | None, future: asyncio.Future[Any]
    ) -> None:
        self.work = work
        self.future = future


Job = _Append | _Call


class _PartitionThread:
    """The loop's side is `append`, `call` and `stop`; everything from `_run` on is the thread's.

    `_waiting_bytes` belongs to the loop alone: it grows when a call is queued and shrinks when its
    answer is back, so it needs no lock and covers everything that isn't answered.
    """

    def __init__(
        self, folder: DataFolder, ref: PartitionRef, gathering: Gathering, max_waiting_bytes: int
    ) -> None:
        self._folder = folder
        self._ref = ref
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._gathering = gathering
        self._has_ended = False
        self.in_company = False
        self._leaving: list[Job] = []
        self._queue: queue.SimpleQueue[list[Job]] = queue.SimpleQueue()
        self._arrived: deque[Job] = deque()
        self._file: PartitionFile | None = None
        self._bell = Bell(folder.root, ref)
        start_thread("log writer", self._run, about=str(ref), again=True)

    # --- on the event loop -----------------------------------------------------------------------

    def append(self, request: AppendRequest) -> asyncio.Future[list[Appended]]:
        if self._waiting_bytes and self._waiting_bytes + request.weight > self._max_waiting_bytes:
            raise overloaded(self._ref)
        self._waiting_bytes += request.weight
        future: asyncio.Future[list[Appended]] = self._loop.create_future()
        self._hand_in(_Append(request, future))
        return future

    async def take_in(self, mark: IntakeMark, request: AppendRequest) -> Taken:
        if self._waiting_bytes and self._waiting_bytes + request.weight > self._max_waiting_bytes:
            raise overloaded(self._ref)
        self._waiting_bytes += request.weight
        try:
            return await self.call(lambda file: self._take_in(file, mark, request))
        finally:
            self._waiting_bytes -= request.weight

    async def call(self, work: Callable[[PartitionFile], T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        self._hand_in(_Call(work, future))
        return await future

    async def stop(self) -> None:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._hand_in(_Call(None, future))
        self._has_ended = True
        await future

    def _hand_in(self, job: Job) -> None:
        if self._has_ended:
            raise not_open(self._ref)  # nobody would ever answer it
        self._leaving.append(job)
        self._gathering.add(self)

    def hand_over(self) -> None:
        """Give the thread what was handed in, all at once."""
        jobs, self._leaving = self._leaving, []
        self._queue.put(jobs)

    def _settle(self, answers: Sequence[Answer], weight: int) -> None:
        self._waiting_bytes -= weight
        self.in_company = len(answers) > 1
        for future, outcome in answers:
            if future.done():
                continue  # The caller went away; what it asked for happened all the same.
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    # --- on the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        job = self._next(wait=True)
        while not isinstance(job, _Call) or job.work is not None:
            behind = self._do(job)
            job = behind or self._next(wait=True)
        if self._file is not None:
            self._file.close()
            self._file = None
        self._bell.close()
        self._answer([(job.future, None)])

    def _do(self, job: Job | None) -> _Call | None:
        if isinstance(job, _Append):
            return self._commit_group(job)
        if job is not None and job.work is not None:
            self._serve(job, job.work)
        return None

    def _next(self, *, wait: bool) -> Job | None:
        """The next job, in the order they were handed in; None when there is none to wait for."""
        if not self._arrived:
            try:
                self._arrived.extend(self._queue.get(block=wait))
            except queue.Empty:
                return None
        return self._arrived.popleft()

    def _commit_group(self, first: _Append) -> _Call | None:
        """Commit `first` and what has queued behind it; returns the call that ended the group."""
        group, weight = [first], first.request.weight
        behind: _Call | None = None
        while weight < GROUP_BYTES:
            job = self._next(wait=False)
            if not isinstance(job, _Append):
                behind = job
                break
            group.append(job)
            weight += job.request.weight
        outcomes = self._append([job.request for job in group])
        futures = [job.future for job in group]
        if any(isinstance(outcome, list) for outcome in outcomes):
            self._bell.ring()
        # The last thing before this thread waits: the loop wakes up and wants the interpreter lock.
        self._answer(list(zip(futures, outcomes, strict=True)), weight)
        if self._file is not None:
            self._file.upkeep.tidy()
        return behind

    def _append(self, requests: list[AppendRequest]) -> Sequence[Outcome]:
        try:
            return self._opened().append(requests)
        except HeadgateError as error:
            # An exception grows a traceback where it's raised, so every caller gets its own.
            return [copy.copy(error) for _ in requests]
        except Exception as error:  # noqa: BLE001 - a value may fail in any way; only its request does
            if len(requests) == 1:
                return [unwritable(error)]
        # One request spoils the group; alone, only that one fails.
        return [self._append([request])[0] for request in requests]

    def _take_in(self, file: PartitionFile, mark: IntakeMark, request: AppendRequest) -> Taken:
        try:
            taken = file.take_in(mark, request)
        except HeadgateError:
            raise
        except Exception as error:
            raise unwritable(error) from error
        if taken.added:
            self._bell.ring()
        return taken

    def _serve(self, job: _Call, work: Callable[[PartitionFile], Any]) -> None:
        try:
            outcome = work(self._opened())
        except Exception as error:  # noqa: BLE001 - handed on to the caller
            outcome = error
        self._answer([(job.future, outcome)])
        if self._file is not None:
            self._file.upkeep.tidy()

    def _opened(self) -> PartitionFile:
        if self._file is None:
            self._file = PartitionFile(self._folder, self._ref)
        return self._file

    def _answer(self, answers: Sequence[Answer], weight: int = 0) -> None:
        # A closed loop has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, answers, weight)
