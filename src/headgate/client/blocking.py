"""A client for programs without an event loop: it lives on a loop of its own, in a thread.

Calls may come from several threads. Invariants: closing ends the thread, within a bound; every call
that another thread has under way ends before that, with its outcome or the news that it has none.
Nothing that a signal's handler does in the middle of a call waits for that call. What a thread that
was interrupted asked for is not done for nobody. In a process that was forked off nothing of it
works, and nothing waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from headgate import errors
from headgate.ports.machine import Machine
from headgate.tasks import start_thread

T = TypeVar("T")

LAST_WORDS_S = 2.0
"""How long calls may take to return after the client has settled all that they wait for."""


class Call(Generic[T]):
    """One call of a thread, done on the loop. `unseen` is called there when it had a result that
    the thread didn't get to see."""

    def __init__(
        self, work: Coroutine[Any, Any, T], unseen: Callable[[], None] = lambda: None
    ) -> None:
        self.work = work
        self._unseen = unseen
        self._task: asyncio.Task[Any] | None = None
        self._has_result = False
        self._is_abandoned = False

    async def run(self) -> T:
        if self._is_abandoned:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        result = await self.work
        self._has_result = True
        return result

    def abandon(self) -> None:
        """Its thread has gone away. Twice is fine."""
        if self._is_abandoned:
            return
        self._is_abandoned = True
        if self._task is None:
            self.work.close()
        elif self._has_result:
            self._unseen()
        else:
            self._task.cancel()


class Blocking:
    def __init__(self, name: str, machine: Machine) -> None:
        self._name = name
        self._machine = machine
        self._process = machine.pid()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.RLock()  # a signal's handler may come while its thread has it
        self._calls: set[Future[Any]] = set()
        self._here = threading.local()
        self._closed = False
        self._ending: Future[None] | None = None
        self._thread = start_thread(name, self._live)

    def _live(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(asyncio.sleep(0))  # the turn of those just cancelled
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client and end the thread. Any thread may do it, and doing it twice is fine.

        Within a signal's handler that interrupts a call of the same thread it only begins to: that
        call ends by it, and whoever closes after that waits for the end.
        """
        if not self._is_here:
            return
        with self._inside() as interrupts:
            with self._lock:
                self._closed = True
                if self._ending is None:
                    self._ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            if not interrupts:
                self._thread.join()
                if self._ending.done():
                    self._ending.result()

    @property
    def _is_here(self) -> bool:
        """Whether this is the process that has the thread."""
        return self._machine.pid() == self._process

    @contextlib.contextmanager
    def _inside(self) -> Iterator[bool]:
        """In the block this thread is in a call; True where it was before, and a signal's handler
        has interrupted that."""
        outer = getattr(self._here, "depth", 0)
        self._here.depth = outer + 1
        try:
            yield outer > 0
        finally:
            self._here.depth = outer

    async def _close_client(self) -> None:
        raise NotImplementedError

    def _closed_error(self) -> errors.HeadgateError:
        """For a call that comes too late."""
        return errors.InvalidRequest(f"the {self._name} is closed: call it before that")

    def _ended_error(self) -> errors.HeadgateError:
        """For a call that had no outcome when the client was closed."""
        return errors.NotNow(f"the {self._name} was closed before the call had its outcome")

    async def _end(self) -> None:
        try:
            await self._close_client()
            if calls := [asyncio.wrap_future(call) for call in self._under_way()]:
                ended, _ = await asyncio.wait(calls, timeout=LAST_WORDS_S)
                for call in ended:
                    call.cancelled() or call.exception()  # told to whoever made the call
        finally:
            for late in self._under_way():
                late.cancel()
            self._loop.stop()

    def _under_way(self) -> list[Future[Any]]:
        with self._lock:
            return list(self._calls)

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return self._outcome(Call(work))

    def _outcome(self, call: Call[T]) -> T:
        if not self._is_here:
            call.work.close()
            raise errors.InvalidRequest(
                f"the {self._name} belongs to another process: make one after the fork"
            )
        with self._inside():
            return self._awaited(call)

    def _awaited(self, call: Call[T]) -> T:
        waiting: Future[T] | None = None
        try:
            waiting = self._begin(call)
            return waiting.result()
        except CancelledError as error:
            raise self._ended_error() from error
        except BaseException:
            self._abandon(call)  # its own error, or its thread is interrupted
            raise
        finally:
            with self._lock:
                self._calls.discard(waiting)

    def _begin(self, call: Call[T]) -> Future[T]:
        with self._lock:
            # Together: what is scheduled after the end would never begin.
            if self._closed:
                call.work.close()
                raise self._closed_error()
            waiting = asyncio.run_coroutine_threadsafe(call.run(), self._loop)
            self._calls.add(waiting)
            if self._ending is not None:  # a signal's handler has closed it in between
                waiting.cancel()
        return waiting

    def _abandon(self, call: Call[Any]) -> None:
        if self._is_here:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(call.abandon)
