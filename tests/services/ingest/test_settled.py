"""What an ingest node makes of a position store that is quick, slow or away."""

from __future__ import annotations

import asyncio

from headgate.errors import StorageFailed
from headgate.model.event import PartitionRef
from headgate.model.position import Position
from headgate.services.ingest.settled import PATIENCE_S, Settled
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.virtual_time import run_virtual

REF = PartitionRef("flights", 0)


def stored(settled: int) -> FaultyCheckpoints:
    store = FaultyCheckpoints()
    store.put(REF, Position(settled))
    return store


def test_requests_that_come_together_share_one_read() -> None:
    async def work() -> None:
        store = stored(1)
        settled = Settled(store.list)
        assert await asyncio.gather(*(settled.read() for _ in range(9))) == [{REF: 1}] * 9
        assert store.lists == 1
        store.put(REF, Position(2))
        assert await settled.read() == {REF: 2}

    run_virtual(work())


def test_a_store_that_is_away_costs_little_time_and_leaves_what_was_known() -> None:
    async def work() -> None:
        store, clock = stored(1), asyncio.get_running_loop().time
        settled = Settled(store.list)
        await settled.read()
        store.put(REF, Position(2))
        store.takes_s, store.failing = 5.0, StorageFailed("away")
        before = clock()
        assert await settled.read() == {REF: 1}
        assert clock() - before == PATIENCE_S
        for _ in range(100):
            assert await settled.read() == {REF: 1}
        assert clock() - before == PATIENCE_S, "the others don't wait for what hangs already"
        await asyncio.sleep(5)
        store.takes_s, store.failing = 0.0, None
        assert await settled.read() == {REF: 2}

    run_virtual(work())


def test_one_that_cannot_be_read_leaves_what_was_known_of_it_and_no_other() -> None:
    async def work() -> None:
        store, other = stored(1), PartitionRef("flights", 1)
        store.put(other, Position(1))
        settled = Settled(store.list)
        await settled.read()
        store.damaged.add(REF)
        store.put(other, Position(5))
        assert await settled.read() == {REF: 1, other: 5}
        assert settled.error == "what is stored for flights:0 is no position"
        store.damaged.clear()
        await settled.read()
        assert settled.error == ""

    run_virtual(work())


def test_a_slow_answer_serves_the_requests_after_it() -> None:
    async def work() -> None:
        store = stored(1)
        store.takes_s = 1.0
        settled = Settled(store.list)
        assert await settled.read() == {}
        await asyncio.sleep(1)
        assert await settled.read() == {REF: 1}

    run_virtual(work())
