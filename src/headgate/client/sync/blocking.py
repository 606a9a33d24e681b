"""A client for programs without an event loop: it lives on a loop of its own, in a thread.

Calls may come from several threads. Invariants: closing ends the thread, within a bound; every call
that another thread has under way ends before that, with its outcome or the news that it has none.
Nothing that a signal's handler does in the middle of a call waits for that call, and nothing waits
for the loop on its own thread. What a thread that was interrupted asked for is not done for nobody.
In a process that was forked off nothing of it works, and nothing waits; nor while Python goes down,
when no other thread runs any more and what the program has left open is closed by its collector.

A thread may be interrupted between any two steps, also of the standard library's, and then keeps
what it has locked in there. So it waits on bare locks, which the loop opens, and takes none that
the loop needs; the `with` of such a lock can't be cut in two.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from headgate import errors
from headgate.ports.machine import Machine
from headgate.tasks import start_thread

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]

LAST_WORDS_S = 2.0
"""How long calls may take to return after the client has settled all that they wait for."""


LAST_STEP_S = 0.001
"""Between two looks whether a thread that has nothing left to do has ended."""


class Latch:
    """Closed until the loop's thread opens it; any number of threads wait for that."""

    def __init__(self) -> None:
        self._is_open = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Twice is fine."""
        if not self._is_open:
            self._is_open = True
            self._lock.release()

    def wait(self) -> None:
        with self._lock:
            pass


class Call(Generic[T]):
    """One call of a thread, done on the loop. `unseen` is called there when it had a result that
    the thread didn't get to see."""

    def __init__(self, work: Work[T], unseen: Callable[[], None] = lambda: None) -> None:
        self._work = work
        self._unseen = unseen
        self._task: asyncio.Task[Any] | None = None
        self._results: list[T] = []
        """The result of the call, if it has one."""
        self._error: Exception | None = None
        self._is_abandoned = False
        self._over = Latch()

    async def run(self) -> None:
        if self._is_abandoned:
            return
        self._task = asyncio.current_task()
        try:
            self._results.append(await self._work())
        except Exception as error:  # noqa: BLE001 - told to the caller
            self._error = error
        finally:
            self._over.open()

    def end(self) -> None:
        """It has no outcome, and gets none."""
        self._over.open()

    def abandon(self) -> None:
        """Its thread has gone away. Twice is fine."""
        if self._is_abandoned:
            return
        self._is_abandoned = True
        if self._results:
            self._unseen()
        elif self._task is not None:
            self._task.cancel()

    def outcome(self, without_one: Callable[[], Exception]) -> T:
        """For its thread, which waits here until it is over."""
        self._over.wait()
        if self._results:
            return self._results[0]
        error, self._error = self._error, None
        try:
            raise error or without_one()
        finally:
            del error  # or it and its traceback would keep each other


class Blocking:
    def __init__(self, name: str, machine: Machine) -> None:
        self._name = name
        self._machine = machine
        self._process = machine.pid()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.RLock()  # a signal's handler may come while its thread has it
        self._calls: dict[Call[Any], Future[None]] = {}
        """On the loop: those that it has begun."""
        self._closed = False
        self._ending: Future[None] | None = None
        self._has_ended = False
        self._failure: BaseException | None = None
        """Why it could not be closed as it should be."""
        self._is_gone = Latch()
        self._thread = start_thread(name, self._live)

    def _live(self) -> None:
        try:
            while not self._has_ended:
                self._run()
            self._loop.run_until_complete(asyncio.sleep(0))  # the turn of those just cancelled
            self._loop.close()
        finally:
            self._is_gone.open()

    def _run(self) -> None:
        """Where a function of the program's, such as the one for tokens, wants to exit it,
        everything is closed, and the thread that closes it exits."""
        try:
            self._loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as wanted:
            self._failure, self._closed = wanted, True
            self._loop.call_soon(self._begin_to_end)

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

        So may a signal's handler that interrupts a call of the same thread, which ends by it.
        """
        if not self._is_here or sys.is_finalizing() or (self._closed and self._is_on_its_loop):
            return
        with self._lock:
            self._closed = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._begin_to_end)
        if not self._is_on_its_loop:
            self._wait_for_the_end()

    def _wait_for_the_end(self) -> None:
        """Without `join`: a thread whose `join` was interrupted is taken for ended from then on,
        and a handler that comes while one thread has its lock would wait for itself."""
        self._is_gone.wait()
        while self._thread in threading.enumerate():
            threading.Event().wait(LAST_STEP_S)
        if self._failure is not None:
            raise self._failure

    @property
    def _is_here(self) -> bool:
        """Whether this is the process that has the thread."""
        return self._machine.pid() == self._process

    @property
    def _is_on_its_loop(self) -> bool:
        """Whether this is the client's own thread, which can't wait for itself: the collector runs
        the `__del__` of the program's objects there, too."""
        return threading.current_thread() is self._thread

    async def _close_client(self) -> None:
        raise NotImplementedError

    def _closed_error(self) -> errors.HeadgateError:
        """For a call that comes too late."""
        return errors.InvalidRequest(f"the {self._name} is closed: call it before that")

    def _ended_error(self) -> errors.HeadgateError:
        """For a call that had no outcome when the client was closed."""
        return errors.NotNow(f"the {self._name} was closed before the call had its outcome")

    # --- on the loop -----------------------------------------------------------------------------

    def _begin_to_end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    async def _end(self) -> None:
        try:
            await self._close_client()
            if calls := [asyncio.wrap_future(call) for call in self._calls.values()]:
                await asyncio.wait(calls, timeout=LAST_WORDS_S)
        except Exception as error:  # noqa: BLE001 - told to the closer
            self._failure = error
        finally:
            for call, late in list(self._calls.items()):
                late.cancel()
                call.end()
            self._has_ended = True
            self._loop.stop()

    def _start(self, call: Call[Any]) -> None:
        if self._ending is not None:
            call.end()
            return
        running = asyncio.run_coroutine_threadsafe(call.run(), self._loop)
        self._calls[call] = running
        running.add_done_callback(lambda _: self._calls.pop(call, None))

    # --- calls -----------------------------------------------------------------------------------

    def _await(self, work: Work[T]) -> T:
        return self._outcome(Call(work))

    def _told(self, look: Callable[[], T]) -> T:
        """What `look` finds on the loop, after all that this thread has asked for or given up; just
        so where that is over, or nobody could answer."""

        async def told() -> T:
            return look()

        try:
            return self._await(told)
        except errors.HeadgateError:
            return look()

    def _outcome(self, call: Call[T]) -> T:
        if not self._is_here:
            raise errors.InvalidRequest(
                f"the {self._name} belongs to another process: make one after the fork"
            )
        if sys.is_finalizing():
            raise errors.InvalidRequest(
                f"the {self._name} was called while the program is ending: call it before that"
            )
        if self._is_on_its_loop:
            raise errors.InvalidRequest(
                f"the {self._name} was called on its own thread, by the collector: don't call it "
                "in a __del__"
            )
        try:
            self._begin(call)
            return call.outcome(self._ended_error)
        except BaseException:
            self._abandon(call)  # its own error, or its thread is interrupted
            raise

    def _begin(self, call: Call[T]) -> None:
        with self._lock:
            # Together: what is scheduled after the end would never begin.
            if self._closed:
                raise self._closed_error()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._start, call)
            if self._closed:  # a signal's handler has closed it in between
                raise self._ended_error()

    def _abandon(self, call: Call[Any]) -> None:
        if self._is_here:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(call.abandon)
