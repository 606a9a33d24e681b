"""What every election promises: ports/election.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from uuid import uuid4

import pytest

from headgate.adapters.embedded.election import SoleElection
from headgate.adapters.etcd.connection import EtcdConnection
from headgate.adapters.etcd.election import EtcdElection
from headgate.adapters.memory.election import MemoryElection, MemoryLeases
from headgate.model.leader import Leader
from headgate.ports.election import Election, Leadership
from tests.servers.etcd import Etcd

TTL_S = 2
CANDIDATES = [Leader(f"c-{n}", f"http://127.0.0.1:{n}", f"127.0.0.1:{n}00") for n in (1, 2, 3)]

New = Callable[[], Election]


@pytest.fixture(params=["embedded", "memory", "etcd"])
async def election(request: pytest.FixtureRequest) -> AsyncIterator[New]:
    """Gives each coordinator its own way into one election."""
    if request.param == "embedded":
        sole = SoleElection()
        yield lambda: sole
        return
    if request.param == "memory":
        leases = MemoryLeases(TTL_S, asyncio.get_running_loop().time)
        yield lambda: MemoryElection(leases)
        return
    etcd: Etcd = request.getfixturevalue("etcd")
    prefix, opened = f"/election-{uuid4().hex[:12]}", []

    def new() -> Election:
        opened.append(EtcdConnection(etcd.endpoint, prefix=prefix))
        return EtcdElection(opened[-1], ttl_s=TTL_S)

    yield new
    for connection in opened:
        await connection.close()


async def soon(awaited: asyncio.Task[Leadership]) -> Leadership:
    async with asyncio.timeout(TTL_S):
        return await awaited


async def test_of_three_candidates_exactly_one_leads_at_a_time(election: New) -> None:
    waiting = {asyncio.create_task(election().campaign(one)) for one in CANDIDATES}
    led: list[Leadership] = []
    while waiting:
        done, waiting = await asyncio.wait(
            waiting, timeout=TTL_S, return_when=asyncio.FIRST_COMPLETED
        )
        assert len(done) == 1
        led.append(done.pop().result())
        assert [leadership.held for leadership in led] == [*[False] * (len(led) - 1), True]
        if waiting:
            done, _ = await asyncio.wait(waiting, timeout=0.5)
            assert not done, "nobody else gets in"
        assert led[-1].held
        await led[-1].resign()
    assert [one.revision for one in led] == sorted({one.revision for one in led})


async def test_a_leader_stays_for_longer_than_its_lease(election: New) -> None:
    leadership = await election().campaign(CANDIDATES[0])
    other = asyncio.create_task(election().campaign(CANDIDATES[1]))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(TTL_S * 1.5):
            await asyncio.shield(other)
    assert leadership.held
    await leadership.resign()
    await (await soon(other)).resign()


async def test_a_leadership_that_was_given_back_is_over_and_the_next_begins_at_once(
    election: New,
) -> None:
    first = await election().campaign(CANDIDATES[0])
    lost = asyncio.create_task(first.lost())
    other = asyncio.create_task(election().campaign(CANDIDATES[1]))
    await first.resign()
    async with asyncio.timeout(1):
        await lost
    assert not first.held
    second = await soon(other)
    assert second.held
    assert second.revision > first.revision
    await first.resign()
    assert second.held, "resigning twice takes nothing from the next"
    await second.resign()


async def test_whoever_led_before_may_lead_again(election: New) -> None:
    mine = election()
    revisions = []
    for _ in range(3):
        leadership = await mine.campaign(CANDIDATES[0])
        revisions.append(leadership.revision)
        await leadership.resign()
    assert revisions == sorted(set(revisions))


async def test_a_campaign_that_was_given_up_takes_nothing(election: New) -> None:
    leadership = await election().campaign(CANDIDATES[0])
    given_up = asyncio.create_task(election().campaign(CANDIDATES[1]))
    other = asyncio.create_task(election().campaign(CANDIDATES[2]))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await given_up
    await leadership.resign()
    await (await soon(other)).resign()


async def test_everybody_can_see_who_leads(election: New) -> None:
    async with asyncio.timeout(10 * TTL_S), aclosing(election().observe()) as seen:
        assert await anext(seen) is None
        for candidate in CANDIDATES:
            leadership = await election().campaign(candidate)
            assert await anext(seen) == candidate
            await leadership.resign()
            assert await anext(seen) is None
