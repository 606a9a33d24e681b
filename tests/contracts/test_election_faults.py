"""Elections on a real etcd while leaders are killed and paused, and members of etcd go away.

The candidates are processes that save under their leadership. Whatever happens, etcd's own history
must show that each of them wrote only between its election and the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

import aetcd
import pytest

from headgate.adapters.etcd.connection import EtcdConnection
from headgate.adapters.etcd.coordination import EtcdCoordinationStore
from headgate.adapters.etcd.election import EtcdElection, leader_key
from headgate.errors import Fenced, StorageFailed
from headgate.model.leader import Leader
from headgate.model.stored import StoredState
from tests.contracts.link import Link
from tests.forks import AsyncFork, forked
from tests.servers.etcd import Etcd, EtcdCluster
from tests.servers.process import free_port
from tests.waiting import until

T = TypeVar("T")

TTL_S = 2
WAIT_S = 30.0
LONG_TTL_S = 60
"""Of a lease that nothing waits for: it doesn't end while something else happens."""
ONE, TWO = Leader("c-1", "http://127.0.0.1:1", "127.0.0.1:100"), Leader("c-2")


@dataclass
class Candidate:
    """One process of tests.contracts.leading_process; `told` is what it has printed."""

    name: str
    process: AsyncFork
    told: list[dict[str, Any]] = field(default_factory=list)

    async def listen(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.told.append(json.loads(line))

    def count(self, event: str) -> int:
        return sum(told["event"] == event for told in self.told)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


@dataclass
class Field:
    """The candidates of one election."""

    endpoints: str
    prefix: str
    ttl_s: int
    candidates: list[Candidate] = field(default_factory=list)
    listening: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self, count: int) -> None:
        """Returns when all of them have begun: one that never met etcd doesn't wait for it."""
        for number in range(1, count + 1):
            command = ("-m", "tests.contracts.leading_process", self.endpoints, self.prefix)
            process = await forked(
                (*command, f"c-{number}", str(self.ttl_s)), stdout=asyncio.subprocess.PIPE
            )
            self.candidates.append(Candidate(f"c-{number}", process))
        for candidate in self.candidates:
            assert candidate.process.stdout is not None
            assert await candidate.process.stdout.readline() == b"ready\n"
            self.listening.append(asyncio.create_task(candidate.listen()))

    async def leader(self, other_than: Candidate | None = None) -> Candidate:
        """Who leads and has saved something, once there is one."""

        def found() -> Candidate | None:
            return next(
                (
                    one
                    for one in self.candidates
                    if one is not other_than and one.told and one.told[-1]["event"] == "saved"
                ),
                None,
            )

        await until(found, timeout_s=30)
        leader = found()
        assert leader is not None
        return leader

    async def more_saves(self, candidate: Candidate, count: int = 10) -> None:
        goal = candidate.count("saved") + count
        await until(lambda: candidate.count("saved") >= goal, timeout_s=30)

    async def close(self) -> None:
        for candidate in self.candidates:
            if candidate.process.returncode is None:
                candidate.process.kill()
        await asyncio.gather(*(one.process.wait() for one in self.candidates))
        await asyncio.gather(*self.listening)


@contextlib.asynccontextmanager
async def candidates(endpoints: str, count: int, ttl_s: int = TTL_S) -> AsyncIterator[Field]:
    """An election among processes; at the end its history must be in order."""
    running = Field(endpoints, f"/election-{uuid4().hex[:12]}", ttl_s)
    try:
        await running.start(count)
        yield running
    finally:
        await running.close()
    await check_history(running)


async def check_history(running: Field) -> None:
    """Every write under a leadership lies between its key's creation and removal."""
    connection = EtcdConnection(running.endpoints, prefix=running.prefix)
    leads: dict[int, float] = {}
    writes: list[tuple[int, int]] = []
    saved = connection.key("state", "gateways", "")
    present = 0
    async for event in history(connection):
        at, key = event.kv.mod_revision, event.kv.key
        put = event.kind == aetcd.rtypes.EventKind.PUT
        if key == leader_key(connection):
            assert put == (not present), "one key, so one leader"
            leads[at if put else present] = float("inf") if put else at
            present = at if put else 0
        elif put and key.startswith(saved):
            writes.append((int(key.removeprefix(saved).split(b"-")[0]), at))
    assert writes
    for revision, at in writes:
        assert revision < at < leads[revision]
    told = [one for candidate in running.candidates for one in candidate.told]
    assert {one["revision"] for one in told} <= leads.keys()
    await connection.close()


async def history(connection: EtcdConnection) -> AsyncIterator[aetcd.Event]:
    """Everything that ever happened under the connection's prefix."""
    end = connection.key("zz-end")
    await connection.run(lambda client: client.put(end, b""), what="marking the end")
    async with connection.client() as client:
        watch = await client.watch_prefix(connection.key(""), start_revision=1)
        async for event in watch:
            if event.kv.key == end:
                break
            yield event
        await watch.cancel()


# --- leaders -------------------------------------------------------------------------------------


async def test_a_killed_leader_is_replaced_when_its_lease_ends(etcd: Etcd) -> None:
    async with candidates(etcd.endpoint, 3) as running:
        former = await running.leader()
        former.signal(signal.SIGKILL)
        successor = await running.leader(other_than=former)
        await running.more_saves(successor)
        assert sum(one.count("leads") for one in running.candidates) == 2


async def test_a_leader_paused_past_its_lease_does_nothing_when_it_is_revived(etcd: Etcd) -> None:
    async with candidates(etcd.endpoint, 2) as running:
        former = await running.leader()
        former.signal(signal.SIGSTOP)
        successor = await running.leader(other_than=former)
        await running.more_saves(successor)
        saved = former.count("saved")
        former.signal(signal.SIGCONT)
        await until(lambda: former.count("fenced"))
        # It may have been stopped between a save and saying so, but it has not saved since.
        assert former.count("saved") <= saved + 1
        assert not next(one for one in former.told if one["event"] == "fenced")["held"]
        await running.more_saves(successor)
        successor.signal(signal.SIGKILL)
        await running.more_saves(former)


async def connected(etcd: Etcd, count: int = 2) -> list[EtcdConnection]:
    prefix = f"/election-{uuid4().hex[:12]}"
    return [EtcdConnection(etcd.endpoint, prefix=prefix) for _ in range(count)]


async def test_a_leader_whose_clock_stood_still_is_refused_by_etcd(etcd: Etcd) -> None:
    """Its clock tells it nothing, so the comparison of the leadership has to."""
    mine, other = await connected(etcd)
    stopped_s = time.monotonic()
    leadership = await EtcdElection(mine, ttl_s=TTL_S, now_s=lambda: stopped_s).campaign(ONE)
    store = EtcdCoordinationStore(mine, leadership)
    await store.save(StoredState(boot=1))
    await _remove_leader(other)
    successor = await EtcdElection(other, ttl_s=TTL_S).campaign(TWO)
    new_store = EtcdCoordinationStore(other, successor)
    assert await new_store.load() == StoredState(boot=1)
    # Before the successor has written anything, there is only the leadership to compare.
    with pytest.raises(Fenced, match=r"leads"):
        await store.save(StoredState(boot=2))
    await new_store.save(StoredState(boot=3))
    assert await new_store.load() == StoredState(boot=3)
    await leadership.resign()
    assert successor.held
    await successor.resign()
    await mine.close()
    await other.close()


async def test_a_leader_knows_by_its_clock_before_anybody_tells_it(etcd: Etcd) -> None:
    mine, other = await connected(etcd)
    ahead_s, ttl_s = 0.0, 8
    election = EtcdElection(mine, ttl_s=ttl_s, now_s=lambda: time.monotonic() + ahead_s)
    leadership = await election.campaign(ONE)
    store = EtcdCoordinationStore(mine, leadership)
    await store.save(StoredState(boot=1))
    ahead_s = ttl_s
    assert not leadership.held
    with pytest.raises(Fenced, match="doesn't lead any more"):
        await store.save(StoredState(boot=1))
    async with asyncio.timeout(WAIT_S):
        await leadership.lost()
    assert not leadership.held
    assert (await EtcdCoordinationStore(other).load()).boot == 1
    # What it left behind is its own to remove: nobody has to wait for the lease to end.
    async with asyncio.timeout(ttl_s / 2):
        again = await election.campaign(ONE)
    assert again.revision > leadership.revision
    await again.resign()
    await mine.close()
    await other.close()


async def test_a_leadership_removed_by_hand_is_lost(etcd: Etcd) -> None:
    mine, other = await connected(etcd)
    leadership = await EtcdElection(mine, ttl_s=TTL_S).campaign(ONE)
    await _remove_leader(other)
    async with asyncio.timeout(WAIT_S):
        await leadership.lost()
    await mine.close()
    await other.close()


async def _remove_leader(connection: EtcdConnection) -> None:
    key = leader_key(connection)
    await connection.run(lambda client: client.delete(key), what="removing the leader")


@pytest.mark.parametrize("after_forwarding", [False, True], ids=["request", "answer"])
async def test_a_connection_cut_while_taking_the_leadership_is_made_up_for(
    etcd: Etcd, after_forwarding: bool
) -> None:
    async with Link(etcd.port) as link:
        connection = EtcdConnection(f"127.0.0.1:{link.port}", prefix=f"/cut-{uuid4().hex[:12]}")
        link.cut_at(ONE.url.encode(), after_forwarding=after_forwarding)
        async with asyncio.timeout(WAIT_S):
            leadership = await EtcdElection(connection, ttl_s=LONG_TTL_S).campaign(ONE)
        assert link.cuts == 1
        await EtcdCoordinationStore(connection, leadership).save(StoredState(boot=1))
        await leadership.resign()
        await connection.close()


class Twice(EtcdConnection):
    """Every first answer gets lost, so everything is done twice."""

    async def run(
        self,
        work: Callable[[aetcd.Client], Awaitable[T]],
        *,
        what: str,
        timeout_s: float | None = None,
    ) -> T:
        async def twice(client: aetcd.Client) -> T:
            await work(client)
            return await work(client)

        return await super().run(twice, what=what, timeout_s=timeout_s)


async def test_whoever_has_taken_the_leadership_unknowingly_finds_that_it_leads(etcd: Etcd) -> None:
    connection = Twice(etcd.endpoint, prefix=f"/twice-{uuid4().hex[:12]}")
    leadership = await EtcdElection(connection, ttl_s=TTL_S).campaign(ONE)
    for boot in (1, 2):
        await EtcdCoordinationStore(connection, leadership).save(StoredState(boot=boot))
    events = [event async for event in history(connection)]
    taken = [e.kv.mod_revision for e in events if e.kv.key == leader_key(connection)]
    assert taken == [leadership.revision], "once, and never given back in between"
    await leadership.resign()
    await connection.close()


# --- etcd ----------------------------------------------------------------------------------------


@pytest.fixture
def three() -> Iterator[EtcdCluster]:
    with EtcdCluster() as cluster:
        yield cluster


async def test_one_of_three_members_killed_stops_nothing(three: EtcdCluster) -> None:
    # A lease that lasts while etcd replaces a leader of its own.
    async with candidates(three.endpoints, 2, ttl_s=10) as running:
        leader = await running.leader()
        for member in three.members:
            await asyncio.to_thread(member.kill)
            await running.more_saves(leader, 50)
            await asyncio.to_thread(member.restart)
        assert {one["event"] for one in leader.told} == {"leads", "saved"}
        assert sum(one.count("leads") for one in running.candidates) == 1


async def test_all_members_away_for_longer_than_the_lease_and_back(three: EtcdCluster) -> None:
    async with candidates(three.endpoints, 2) as running:
        leader = await running.leader()
        await asyncio.to_thread(three.kill)
        await until(lambda: leader.count("fenced"), timeout_s=WAIT_S)
        assert not leader.told[-1]["held"]
        before = sum(one.count("saved") for one in running.candidates)
        await asyncio.to_thread(three.start)
        await until(lambda: sum(one.count("saved") for one in running.candidates) > before + 20)
        assert all(one.process.returncode is None for one in running.candidates)


async def test_all_members_away_for_a_moment_cost_no_leadership() -> None:
    with Etcd() as server:
        connection = EtcdConnection(server.endpoint)
        leadership = await EtcdElection(connection, ttl_s=20).campaign(ONE)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        await EtcdCoordinationStore(connection, leadership).save(StoredState(boot=1))
        assert leadership.held
        await leadership.resign()
        await connection.close()


async def test_a_standby_outlasts_a_restart_and_a_compaction() -> None:
    with Etcd() as server:
        standby, other = EtcdConnection(server.endpoint), EtcdConnection(server.endpoint)
        leadership = await EtcdElection(other, ttl_s=60).campaign(ONE)
        # So patient that only the watch can tell it in time.
        waiting = asyncio.create_task(EtcdElection(standby, ttl_s=60).campaign(TWO))
        seen: list[Leader | None] = []
        watching = asyncio.create_task(_record(EtcdElection(standby, ttl_s=60), seen.append))
        await until(lambda: seen == [ONE])
        await asyncio.to_thread(server.restart)
        for _ in range(3):
            await other.run(lambda client: client.put(b"unrelated", b""), what="writing")
        now = await other.run(lambda client: client.get(b"unrelated"), what="looking")
        await other.run(lambda client: client.compact(now.mod_revision), what="compacting")
        await leadership.resign()
        async with asyncio.timeout(WAIT_S):
            successor = await waiting
        await until(lambda: seen[-1] == TWO)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await successor.resign()
        await standby.close()
        await other.close()


async def _record(election: EtcdElection, record: Callable[[Leader | None], None]) -> None:
    async for leader in election.observe():
        record(leader)


async def test_an_etcd_that_never_answered_is_said_rather_than_waited_for() -> None:
    connection = EtcdConnection(f"127.0.0.1:{free_port()}", timeout_s=0.5)
    election = EtcdElection(connection, ttl_s=TTL_S)
    with pytest.raises(StorageFailed, match=r"check etcd\.endpoints"):
        async with asyncio.timeout(WAIT_S):
            await election.campaign(ONE)
    with pytest.raises(StorageFailed, match=r"check etcd\.endpoints"):
        async with asyncio.timeout(WAIT_S):
            await anext(aiter(election.observe()))
    await connection.close()
