"""An election among coordinators that share what stands for etcd here: one lease, one key.

`MemoryLeases` is the store: it grants the leadership for a while, by its own clock, takes it back
when nobody renews it in time, and may be away. `MemoryElection` is one candidate's way to it. As
with etcd, a leader gives up by its own clock before its lease can have ended, and what it was given
is numbered, so that a store of the coordinator's state refuses a leader that was overtaken.

The candidates may live on different event loops of one thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Final

from headgate.errors import StorageFailed
from headgate.model.leader import Leader
from headgate.tasks import Crew

RENEWALS_PER_TTL: Final = 3
PAUSE_S: Final = 0.2
"""After a failure, before the next look."""


class MemoryLeases:
    """The leader, and until when it leads, by the clock `now_s`; while it `is_away` it answers
    nobody."""

    def __init__(self, ttl_s: float, now_s: Callable[[], float]) -> None:
        self.ttl_s = ttl_s
        self.is_away = False
        self._now_s = now_s
        self._revision = 0
        self._leader: Leader | None = None
        self._ends_s = 0.0
        self._changed: list[asyncio.Future[None]] = []

    @property
    def leader(self) -> Leader | None:
        """The last leader, for onlookers: its time may be over."""
        return self._leader

    async def look(self) -> Leader | None:
        await self._answers()
        return self._present()

    async def take(self, candidate: Leader) -> int | None:
        """The revision of a new leadership; None while another candidate has it."""
        await self._answers()
        if self._present() is not None:
            return None
        self._revision += 1
        self._ends_s = self._now_s() + self.ttl_s
        self._change(candidate)
        return self._revision

    async def renew(self, revision: int) -> bool:
        """Whether the leadership of that revision lasts for another while."""
        await self._answers()
        if self._present() is None or revision != self._revision:
            return False
        self._ends_s = self._now_s() + self.ttl_s
        return True

    async def give_back(self, revision: int) -> None:
        await self._answers()
        if revision == self._revision and self._leader is not None:
            self._change(None)

    async def changed(self) -> None:
        """Returns when another candidate may lead than did when this was called."""
        changed = asyncio.get_running_loop().create_future()
        self._changed = [*(one for one in self._changed if not one.done()), changed]
        left_s = self._ends_s - self._now_s() if self._leader is not None else self.ttl_s
        with suppress(TimeoutError):
            async with asyncio.timeout(max(left_s, 0.0) + PAUSE_S):
                await changed

    def _present(self) -> Leader | None:
        if self._leader is not None and self._now_s() >= self._ends_s:
            self._change(None)
        return self._leader

    def _change(self, leader: Leader | None) -> None:
        self._leader = leader
        changed, self._changed = self._changed, []
        for one in changed:
            if not one.done():
                one.set_result(None)

    async def _answers(self) -> None:
        await asyncio.sleep(0)
        if self.is_away:
            raise StorageFailed("the store of the coordinators' election is away")


class MemoryLeadership:
    """Implements ports.election.Leadership; renews itself until it is lost or resigned."""

    def __init__(self, leases: MemoryLeases, revision: int, granted_s: float) -> None:
        self._leases = leases
        self._revision = revision
        self._loop = asyncio.get_running_loop()
        self._ends_s = granted_s + leases.ttl_s
        self._over = asyncio.Event()
        self._crew = Crew("election")
        self._crew.start("leadership", self._renew())

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def held(self) -> bool:
        return not self._over.is_set() and self._loop.time() < self._ends_s

    async def lost(self) -> None:
        await self._over.wait()

    async def resign(self) -> None:
        self._over.set()
        await self._crew.close()
        with suppress(StorageFailed):
            await self._leases.give_back(self._revision)

    async def _renew(self) -> None:
        try:
            while (left_s := self._ends_s - self._loop.time()) > 0:
                await asyncio.sleep(min(left_s, self._leases.ttl_s / RENEWALS_PER_TTL))
                with suppress(StorageFailed):
                    sent_s = self._loop.time()
                    if not await self._leases.renew(self._revision) or not self.held:
                        return
                    self._ends_s = sent_s + self._leases.ttl_s
        finally:
            self._over.set()


class MemoryElection:
    """Implements ports.election.Election."""

    def __init__(self, leases: MemoryLeases) -> None:
        self._leases = leases
        self._has_answered = False

    async def campaign(self, candidate: Leader) -> MemoryLeadership:
        while True:
            granted_s = asyncio.get_running_loop().time()
            try:
                revision = await self._leases.take(candidate)
            except StorageFailed:
                if not self._has_answered:
                    raise
                await asyncio.sleep(PAUSE_S)
                continue
            self._has_answered = True
            if revision is None:
                await self._leases.changed()
                continue
            leadership = MemoryLeadership(self._leases, revision, granted_s)
            if leadership.held:
                return leadership

    async def observe(self) -> AsyncGenerator[Leader | None, None]:
        shown: Leader | bool | None = False
        while True:
            try:
                leader = await self._leases.look()
            except StorageFailed:
                if not self._has_answered:
                    raise
                await asyncio.sleep(PAUSE_S)
                continue
            self._has_answered = True
            if leader != shown:
                shown = leader
                yield leader
            else:
                await self._leases.changed()
