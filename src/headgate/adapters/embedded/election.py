"""The election where there is one coordinator: it leads from its first campaign on.

A lock on its state (`hold`) keeps a second process away, so there is nobody to lose to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext

from headgate.model.leader import Leader


class SoleLeadership:
    """Implements ports.election.Leadership; over only once it is resigned."""

    def __init__(self, revision: int, over: asyncio.Event, held: ExitStack) -> None:
        self._revision = revision
        self._over = over
        self._held = held

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def held(self) -> bool:
        return not self._over.is_set()

    async def lost(self) -> None:
        await self._over.wait()

    async def resign(self) -> None:
        self._over.set()
        self._held.close()


class SoleElection:
    """Implements ports.election.Election within one process; a campaign raises what `hold` does
    where another process has the state."""

    def __init__(self, hold: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._hold = hold
        self._terms = 0
        self._leader: Leader | None = None
        self._over = asyncio.Event()
        self._over.set()
        self._began = asyncio.Event()

    async def campaign(self, candidate: Leader) -> SoleLeadership:
        while not self._over.is_set():  # of several that wait, only the first finds it still set
            await self._over.wait()
        held = ExitStack()
        held.enter_context(self._hold())
        self._terms += 1
        self._leader = candidate
        self._over = asyncio.Event()
        self._began.set()
        return SoleLeadership(self._terms, self._over, held)

    async def observe(self) -> AsyncGenerator[Leader | None, None]:
        while True:
            if self._over.is_set():
                self._began.clear()
                yield None
                await self._began.wait()
            else:
                over = self._over
                yield self._leader
                await over.wait()
