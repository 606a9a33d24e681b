"""Items one by one for programs without an event loop.

Invariant: an item that a thread didn't get to see, because it was interrupted (Ctrl-C) in the very
moment it came, is what the next call returns; an interrupted wait takes nothing.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Literal, Self

from headgate import errors
from headgate.client.line import Line
from headgate.client.sync.blocking import Blocking, Call
from headgate.model.client_messages import Item
from headgate.ports.machine import Machine

End = Literal["end"]


class BlockingItems(Blocking):
    """`for item in …`: ends when another thread closes it; raises what `async for` would."""

    def __init__(self, name: str, line: Line[Any], machine: Machine) -> None:
        super().__init__(name, machine)
        self._line = line
        self._was_entered = False

    def __enter__(self) -> Self:
        is_first, self._was_entered = not self._was_entered, True
        try:
            self._await(self._line.enter)
        except BaseException:
            if is_first:  # else it was a mistake, and is in use
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
        Raises InvalidRequest when it is closed, also in the middle of it, so that no loop asks for
        ever."""
        try:
            taken = self._take(timeout_s)
        except errors.NotNow:
            if self._closed:
                raise self._closed_error() from None
            raise
        if taken == "end":
            raise self._closed_error()
        return taken

    async def _close_client(self) -> None:
        await self._line.close()

    def _take(self, timeout_s: float | None) -> Item | End | None:
        thread = threading.current_thread()
        call = Call(
            lambda: self._taken(thread, timeout_s), unseen=lambda: self._line.put_back(thread)
        )
        try:
            return self._outcome(call)
        except BaseException:
            self._abandon(call)  # also in the last moment, with the item in its hands
            raise

    async def _taken(self, thread: threading.Thread, timeout_s: float | None) -> Item | End | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._line.next(thread)
        except TimeoutError:
            return None
        except StopAsyncIteration:
            return "end"
