"""What an ingest node makes of a position store that is quick, slow or away."""

from __future__ import annotations

import asyncio

from headgate.errors import StorageFailed
from headgate.model.event import PartitionRef
from headgate.model.position import Position
from headgate.services.ingest.settled import PATIENCE_S, Settled
from tests.virtual_time import run_virtual

REF = PartitionRef("flights", 0)


class Store:
    """Answers with `position` after `takes_s`, or fails then."""

    def __init__(self) -> None:
        self.position, self.takes_s, self.is_away, self.reads = 1, 0.0, False, 0

    async def list(self) -> dict[PartitionRef, Position]:
        self.reads += 1
        await asyncio.sleep(self.takes_s)
        if self.is_away:
            raise StorageFailed("away")
        return {REF: Position(self.position)}


def test_requests_that_come_together_share_one_read() -> None:
    async def work() -> None:
        store = Store()
        settled = Settled(store.list)
        assert await asyncio.gather(*(settled.read() for _ in range(9))) == [{REF: 1}] * 9
        assert store.reads == 1
        store.position = 2
        assert await settled.read() == {REF: 2}

    run_virtual(work())


def test_a_store_that_is_away_costs_little_time_and_leaves_what_was_known() -> None:
    async def work() -> None:
        store, clock = Store(), asyncio.get_running_loop().time
        settled = Settled(store.list)
        await settled.read()
        store.position, store.takes_s, store.is_away = 2, 5.0, True
        before = clock()
        assert await settled.read() == {REF: 1}
        assert clock() - before == PATIENCE_S
        for _ in range(100):
            assert await settled.read() == {REF: 1}
        assert clock() - before == PATIENCE_S, "the others don't wait for what hangs already"
        await asyncio.sleep(5)
        store.takes_s, store.is_away = 0.0, False
        assert await settled.read() == {REF: 2}

    run_virtual(work())


def test_a_slow_answer_serves_the_requests_after_it() -> None:
    async def work() -> None:
        store = Store()
        store.takes_s = 1.0
        settled = Settled(store.list)
        assert await settled.read() == {}
        await asyncio.sleep(1)
        assert await settled.read() == {REF: 1}

    run_virtual(work())
