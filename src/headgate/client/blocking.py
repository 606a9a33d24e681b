"""A client for programs without an event loop: it lives on a loop of its own, in a thread.

Calls may come from several threads. Invariant: closing ends the thread, within a bound; every call
that another thread has under way ends before that, with its outcome or the news that it has none.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar

from headgate import errors
from headgate.tasks import start_thread

T = TypeVar("T")

LAST_WORDS_S = 2.0
"""How long calls may take to return after the client has settled all that they wait for."""


class Blocking:
    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._calls: set[Future[Any]] = set()
        self._closed = False
        self._thread = start_thread(name, self._loop.run_forever)

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
        """Close the client and end the thread. Any thread may do it, and doing it twice is fine."""
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

    async def _close_client(self) -> None:
        raise NotImplementedError

    def _closed_error(self) -> errors.HeadgateError:
        """For a call that comes too late."""
        return errors.InvalidRequest(f"the {self._name} is closed: call it before that")

    def _ended_error(self) -> errors.HeadgateError:
        """For a call that had no outcome when the client was closed."""
        return errors.NotNow(f"the {self._name} was closed before the call had its outcome")

    async def _end(self) -> None:
        await self._close_client()
        if calls := [asyncio.wrap_future(call) for call in self._under_way()]:
            ended, _ = await asyncio.wait(calls, timeout=LAST_WORDS_S)
            for call in ended:
                call.cancelled() or call.exception()  # told to whoever made the call

    def _under_way(self) -> list[Future[Any]]:
        with self._lock:
            return list(self._calls)

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            # Together: what is scheduled after the end would never begin.
            if self._closed:
                work.close()
                raise self._closed_error()
            call = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._calls.add(call)
        try:
            return call.result()
        except CancelledError as error:
            raise self._ended_error() from error
        except BaseException:
            call.cancel()  # the thread is interrupted, and nobody waits for it any more
            raise
        finally:
            with self._lock:
                self._calls.discard(call)
