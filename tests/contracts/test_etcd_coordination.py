"""What only the cluster's state in etcd can go through: other writers, lost answers, etcd away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar
from uuid import uuid4

import aetcd
import msgspec
import pytest

from headgate.adapters.etcd import coordination
from headgate.adapters.etcd.connection import EtcdConnection
from headgate.adapters.etcd.coordination import EtcdCoordinationStore, in_transactions
from headgate.adapters.etcd.election import EtcdElection
from headgate.errors import Fenced, StorageFailed
from headgate.model.event import PartitionRef
from headgate.model.leader import Leader
from headgate.model.stored import StoredState
from headgate.model.topology import Owner, Topic
from tests.contracts.link import Link
from tests.servers.etcd import Etcd
from tests.servers.process import free_port

T = TypeVar("T")


class Unreliable(EtcdConnection):
    """Loses requests or answers, or lets requests arrive only when told to."""

    trouble = ""
    late: Callable[[], Awaitable[object]] | None = None

    async def run(
        self,
        work: Callable[[aetcd.Client], Awaitable[T]],
        *,
        what: str,
        timeout_s: float | None = None,
    ) -> T:
        def arrive() -> Awaitable[T]:
            return EtcdConnection.run(self, work, what=what, timeout_s=timeout_s)

        trouble, self.trouble = self.trouble, ""
        if trouble == "late":
            self.late = arrive
        if trouble in ("request lost", "late"):
            raise StorageFailed(f"{what} failed")
        answer = await arrive()
        if trouble == "answer lost":
            raise StorageFailed(f"{what} failed")
        return answer

    async def catch_up(self) -> None:
        """What was late arrives now; by then it may be refused."""
        if self.late is not None:
            late, self.late = self.late, None
            try:
                await late()
            except Fenced:
                pass  # overtaken by what was written since: etcd refused it, as it should


@pytest.fixture
async def connection(etcd: Etcd) -> AsyncIterator[Unreliable]:
    connection = Unreliable(etcd.endpoint, prefix=f"/coordination-{uuid4().hex[:12]}")
    yield connection
    await connection.close()


def state(boot: int, *, partitions: int = 0, epoch: int = 1) -> StoredState:
    refs = (PartitionRef("flights", number) for number in range(partitions))
    return StoredState(boot=boot, logs=tuple(Owner(ref, "ingest-1", epoch) for ref in refs))


async def revision(connection: EtcdConnection) -> int:
    found = await connection.run(lambda client: client.get_range(b"a", b"b"), what="looking")
    return int(found.header.revision)


# --- other writers -------------------------------------------------------------------------------


async def test_a_second_writer_is_refused_even_where_it_changes_something_else(
    connection: Unreliable,
) -> None:
    first, second = EtcdCoordinationStore(connection), EtcdCoordinationStore(connection)
    await first.load()
    await second.load()
    await first.save(state(1))
    for _ in range(2):
        with pytest.raises(Fenced, match=r"no other coordinator uses the same etcd\.prefix"):
            await second.save(StoredState(topics=(Topic("flights", 4),)))
    await first.save(state(2))
    assert await EtcdCoordinationStore(connection).load() == state(2)


async def test_of_two_that_start_at_once_one_goes_on(connection: Unreliable) -> None:
    """As coordinators do that were both told to run without an election."""
    stores = [EtcdCoordinationStore(connection) for _ in range(4)]
    loaded = await asyncio.gather(*(store.load() for store in stores))
    assert set(loaded) == {StoredState()}
    outcomes = await asyncio.gather(
        *(store.save(state(1)) for store in stores), return_exceptions=True
    )
    assert outcomes.count(None) == 1
    assert all(outcome is None or isinstance(outcome, Fenced) for outcome in outcomes)


async def test_what_somebody_changed_by_hand_is_not_written_over(connection: Unreliable) -> None:
    store = EtcdCoordinationStore(connection)
    await store.save(state(1, partitions=2))
    key = connection.key("state", "logs", "flights", 1)
    await connection.run(lambda client: client.delete(key), what="deleting a key")
    with pytest.raises(Fenced):
        await store.save(state(1, partitions=2, epoch=2))


# --- transactions --------------------------------------------------------------------------------


async def test_one_changed_owner_of_many_is_one_small_transaction(connection: Unreliable) -> None:
    store = EtcdCoordinationStore(connection)
    many = state(1, partitions=2_000)
    await store.save(many)
    before = await revision(connection)
    owner = Owner(PartitionRef("flights", 1_000), "ingest-2", 2)
    moved = msgspec.structs.replace(many, logs=(*many.logs[:1_000], owner, *many.logs[1_001:]))
    await store.save(moved)
    assert await revision(connection) == before + 1
    changed = await connection.run(
        lambda client: client.get_range(connection.key("state", ""), connection.key("state", "~")),
        what="looking",
    )
    assert [kv.key for kv in changed if kv.mod_revision > before] == [
        connection.key("state", "logs", "flights", 1_000)
    ]
    await store.save(moved)
    assert await revision(connection) == before + 1, "nothing to write"
    assert await EtcdCoordinationStore(connection).load() == moved


@pytest.mark.parametrize("elected", [False, True], ids=["alone", "elected"])
async def test_a_large_change_takes_as_few_transactions_as_etcd_allows(
    connection: Unreliable, elected: bool
) -> None:
    leadership = (
        await EtcdElection(connection, ttl_s=10).campaign(Leader("c-1")) if elected else None
    )
    store = EtcdCoordinationStore(connection, leadership)
    await store.load()
    before = await revision(connection)
    await store.save(state(1, partitions=3 * coordination.CHANGES_PER_TRANSACTION - 1))
    assert await revision(connection) == before + 3
    if leadership is not None:
        await leadership.resign()


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([1] * 126, [126], id="as many as fit"),
        pytest.param([1] * 127, [126, 1], id="one more"),
        pytest.param([300_000, 200_000, 100_000], [2, 1], id="as large as fits"),
        pytest.param([900_000, 1, 900_000], [1, 1, 1], id="larger than fits is left to etcd"),
    ],
)
def test_changes_are_split_in_order(sizes: list[int], parts: list[int]) -> None:
    changes = {str(number): b"." * size for number, size in enumerate(sizes)}
    split = list(in_transactions(changes))
    assert [len(part) for part in split] == parts
    assert [name for part in split for name in part] == list(changes)


# --- outcomes that got lost ----------------------------------------------------------------------


@pytest.mark.parametrize("after_forwarding", [False, True], ids=["request", "answer"])
async def test_a_connection_cut_in_a_save_is_made_up_for(
    etcd: Etcd, after_forwarding: bool
) -> None:
    async with Link(etcd.port) as link:
        connection = EtcdConnection(f"127.0.0.1:{link.port}", prefix=f"/cut-{uuid4().hex[:12]}")
        store = EtcdCoordinationStore(connection)
        await store.load()
        for boot in range(1, 6):
            link.cut_at(b"state-writer", after_forwarding=after_forwarding)
            await store.save(state(boot, partitions=boot))
            assert link.cuts == boot
        assert await store.load() == state(5, partitions=5)
        await store.close()


@pytest.mark.parametrize("trouble", ["request lost", "answer lost", "late"])
async def test_after_an_open_outcome_the_next_save_goes_on_from_what_is_there(
    connection: Unreliable, trouble: str
) -> None:
    store = EtcdCoordinationStore(connection)
    await store.save(state(1, partitions=3))
    connection.trouble = trouble
    with pytest.raises(StorageFailed):
        await store.save(state(2, partitions=2, epoch=2))
    await store.save(state(3, partitions=4, epoch=3))
    await connection.catch_up()
    assert await store.load() == state(3, partitions=4, epoch=3)
    await store.save(state(4))
    assert await EtcdCoordinationStore(connection).load() == state(4)


@pytest.mark.parametrize("trouble", ["request lost", "answer lost", "late"])
async def test_after_an_open_outcome_the_state_before_it_can_be_saved_again(
    connection: Unreliable, trouble: str
) -> None:
    store = EtcdCoordinationStore(connection)
    await store.save(state(1, partitions=3))
    connection.trouble = trouble
    with pytest.raises(StorageFailed):
        await store.save(state(2, partitions=2, epoch=2))
    await store.save(state(1, partitions=3))
    await connection.catch_up()
    assert await EtcdCoordinationStore(connection).load() == state(1, partitions=3)


@pytest.mark.parametrize("seed", range(4))
async def test_no_trouble_of_the_connection_fences_the_only_writer(
    connection: Unreliable, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small transactions, so that saves are also interrupted between two of them."""
    monkeypatch.setattr(coordination, "CHANGES_PER_TRANSACTION", 2)
    chance = random.Random(seed)
    store = EtcdCoordinationStore(connection)
    saved, boots = StoredState(), range(1, 40)
    for boot in boots:
        wanted = state(boot, partitions=chance.randint(0, 6), epoch=boot)
        connection.trouble = chance.choice(["", "", "request lost", "answer lost", "late"])
        try:
            await store.save(wanted)
            saved = wanted
        except StorageFailed:
            if chance.random() < 0.3:
                # What is there is a mixture of this one and those since the last that was saved.
                found = await EtcdCoordinationStore(connection).load()
                assert saved.boot <= found.boot <= boot
        if chance.random() < 0.5:
            await connection.catch_up()
    connection.trouble = ""
    await store.save(state(99, partitions=3))
    await connection.catch_up()
    assert await store.load() == state(99, partitions=3)


# --- etcd away -----------------------------------------------------------------------------------


async def test_etcd_away_is_said_in_time_and_in_one_sentence() -> None:
    connection = EtcdConnection(f"127.0.0.1:{free_port()}", timeout_s=0.5)
    store = EtcdCoordinationStore(connection)
    for call in (store.load, lambda: store.save(state(1))):
        with pytest.raises(StorageFailed, match=r"etcd can't be reached .*; check etcd\.endpoints"):
            async with asyncio.timeout(30):
                await call()
    await store.close()


async def test_saves_go_on_when_etcd_is_back() -> None:
    with Etcd() as server:
        store = EtcdCoordinationStore(EtcdConnection(server.endpoint, timeout_s=1.0))
        await store.save(state(1, partitions=200))
        await asyncio.to_thread(server.kill)
        with pytest.raises(StorageFailed):
            await store.save(state(2, partitions=200, epoch=2))
        await asyncio.to_thread(server.restart)
        await store.save(state(3, partitions=200, epoch=3))
        assert await store.load() == state(3, partitions=200, epoch=3)
        await store.close()


async def test_a_damaged_element_is_named(connection: Unreliable) -> None:
    key = connection.key("state", "boot")
    await connection.run(lambda client: client.put(key, b"?"), what="spoiling it")
    with pytest.raises(StorageFailed, match="the stored element boot is damaged"):
        await EtcdCoordinationStore(connection).load()
