"""When the calls that wait go to the threads that write: once the event loop has nothing to add.

A commit for sixteen calls costs little more than one for four, and a thread that commits while the
loop is busy mostly waits for the interpreter lock. So where calls come in company, they are
gathered until the loop has been around twice without a new one; by then everybody who was just
answered has sent the next request. A call that comes alone isn't kept.

Invariants: what is gathered leaves within `TURNS_MAX` turns of the loop, and in the order it came.
Sets no timer, and knows nothing of files.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

QUIET_TURNS = 2
"""What arrives in one turn reaches its thread in the next."""
TURNS_MAX = 32


class Leaving(Protocol):
    """`in_company`: the last append was committed together with another one."""

    in_company: bool

    def hand_over(self) -> None: ...


class Gathering:
    """One for all threads of a writer, because the interpreter lock is one, too."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Leaving, None] = {}
        self._came = False
        self._quiet_turns = 0

    def add(self, thread: Leaving) -> None:
        """A call has come for `thread`."""
        if not self._waiting and not thread.in_company:
            thread.hand_over()
            return
        if not self._waiting:
            self._quiet_turns = 0
            self._loop.call_soon(self._look, TURNS_MAX)
        self._waiting[thread] = None
        self._came = True

    def _look(self, turns_left: int) -> None:
        self._quiet_turns = 0 if self._came else self._quiet_turns + 1
        self._came = False
        may_wait = turns_left > 0 and self._quiet_turns < QUIET_TURNS
        if may_wait and any(thread.in_company for thread in self._waiting):
            self._loop.call_soon(self._look, turns_left - 1)
            return
        waiting, self._waiting = self._waiting, {}
        for thread in waiting:
            thread.hand_over()
