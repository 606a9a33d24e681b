"""Items one by one for programs without an event loop.

Invariant: an item that a thread didn't get to see, because it was interrupted (Ctrl-C) in the very
moment it came, is what the next call returns.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any, Literal, Self

from headgate import errors
from headgate.client.blocking import Blocking
from headgate.client.line import Line
from headgate.model.client_messages import Item

End = Literal["end"]


class _Wait:
    """One thread's wait for an item."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.item: Item | None = None
        self.is_abandoned = False


class BlockingItems(Blocking):
    """`for item in …`: ends when another thread closes it; raises what `async for` would."""

    def __init__(self, name: str, line: Line[Any]) -> None:
        super().__init__(name)
        self._line = line
        self._left_over: deque[Item] = deque()

    def __enter__(self) -> Self:
        try:
            self._await(self._line.enter())
        except BaseException:
            self.close()
            raise
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        try:
            taken = self._take(None)
        except errors.HeadgateError:
            if self._closed:
                raise StopIteration from None
            raise
        if taken is None or taken == "end":
            raise StopIteration
        return taken

    def next(self, timeout_s: float | None = None) -> Item | None:
        """The next item; None when there is none within `timeout_s` (0: none that is here already).
        Raises InvalidRequest when it is closed, so that no loop asks for ever."""
        taken = self._take(timeout_s)
        if taken == "end":
            raise self._closed_error()
        return taken

    async def _close_client(self) -> None:
        await self._line.close()

    def _take(self, timeout_s: float | None) -> Item | End | None:
        with self._lock:
            if self._left_over and not self._closed:
                return self._left_over.popleft()
        wait = _Wait()
        try:
            return self._await(self._taken(wait, timeout_s))
        except BaseException:
            with self._lock:
                wait.is_abandoned = True
                if wait.item is not None:
                    self._left_over.append(wait.item)
            raise

    async def _taken(self, wait: _Wait, timeout_s: float | None) -> Item | End | None:
        try:
            async with asyncio.timeout(timeout_s):
                item = await self._line.next(wait.thread)
        except TimeoutError:
            return None
        except StopAsyncIteration:
            return "end"
        with self._lock:
            if wait.is_abandoned:
                self._left_over.append(item)
            else:
                wait.item = item
        return item
