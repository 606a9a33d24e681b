"""Positions in etcd and MongoDB while servers are killed, paused, away and back again.

The saver below does what a lane does: it saves on and on, and a save that failed is made up for by
the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import aetcd
import psutil
import pytest
from aetcd import rpc

from headgate.adapters.etcd.checkpoints import EtcdCheckpointStore
from headgate.adapters.etcd.connection import EtcdConnection
from headgate.adapters.mongo.checkpoints import MongoCheckpointStore
from headgate.errors import Fenced, InvalidConfig, StorageFailed
from headgate.model.event import Fence, PartitionRef
from headgate.model.position import Position, Tally
from headgate.ports.checkpoints import CheckpointStore
from tests.servers.etcd import Etcd, EtcdCluster
from tests.servers.mongodb import MongoReplicaSet, why_missing
from tests.servers.process import free_port

REF = PartitionRef("flights", 0)
HELD = Fence(1)
PATIENCE_S = 60.0


@dataclass
class Saver:
    """Saves 1, 2, 3, … under one fence; `saved` is the last position that was acknowledged."""

    store: CheckpointStore
    saved: int = 0
    failed: list[StorageFailed] = field(default_factory=list)
    _stopping: bool = False
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self) -> None:
        await self.store.claim(REF, HELD)
        position = 0
        while not self._stopping:
            position += 1
            try:
                await self.store.save(REF, HELD, position, Tally(dead=position))
                self.saved = position
            except StorageFailed as error:
                self.failed.append(error)
            async with self._changed:
                self._changed.notify_all()

    async def until_more(self, count: int = 20) -> None:
        goal = self.saved + count
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: self.saved >= goal)

    def stop(self) -> None:
        self._stopping = True


@contextlib.asynccontextmanager
async def saving(store: CheckpointStore) -> AsyncIterator[Saver]:
    """A saver at work; at the end nothing that was acknowledged may be missing."""
    saver = Saver(store)
    task = asyncio.create_task(saver.run())
    try:
        await saver.until_more()
        yield saver
        saver.stop()
        await task
        assert await store.list() == {REF: Position(saver.saved, Tally(dead=saver.saved))}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()


def etcd_store(endpoints: str, **bounds: float) -> EtcdCheckpointStore:
    return EtcdCheckpointStore(EtcdConnection(endpoints, **bounds))  # type: ignore[arg-type]


@pytest.fixture
def three() -> Iterator[EtcdCluster]:
    with EtcdCluster() as cluster:
        yield cluster


@pytest.fixture
def replica_set() -> Iterator[MongoReplicaSet]:
    if reason := why_missing():
        pytest.skip(reason)
    with MongoReplicaSet() as servers:
        yield servers


# --- etcd ----------------------------------------------------------------------------------------


async def test_etcd_killed_in_mid_save_loses_nothing_and_saves_go_on_after_it() -> None:
    with Etcd() as server:
        async with saving(etcd_store(server.endpoint)) as saver:
            for _ in range(3):
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)
                await saver.until_more()


@pytest.mark.parametrize("victim", ["the one in use", "the leader"])
async def test_one_of_three_members_killed_is_not_noticed(three: EtcdCluster, victim: str) -> None:
    member = three.members[0] if victim == "the one in use" else await _leader(three)
    async with saving(etcd_store(three.endpoints)) as saver:
        await asyncio.to_thread(member.kill)
        await saver.until_more()
        assert not saver.failed


async def test_a_member_that_is_paused_is_left_for_another(three: EtcdCluster) -> None:
    store = etcd_store(three.endpoints, attempt_timeout_s=0.5)
    async with saving(store) as saver:
        psutil.Process(three.members[0].pid).send_signal(signal.SIGSTOP)
        try:
            await saver.until_more()
        finally:
            psutil.Process(three.members[0].pid).send_signal(signal.SIGCONT)
        assert not saver.failed


async def test_without_a_majority_saves_fail_in_time_and_go_on_with_it(three: EtcdCluster) -> None:
    async with saving(etcd_store(three.endpoints, timeout_s=1.0)) as saver:
        for member in three.members[1:]:
            await asyncio.to_thread(member.kill)
        with pytest.raises(StorageFailed, match=r"etcd can't be reached .*; check etcd\.endpoints"):
            async with asyncio.timeout(3):
                await saver.store.claim(REF, HELD)
        await asyncio.to_thread(three.start)
        await saver.until_more()


async def _leader(cluster: EtcdCluster) -> Etcd:
    for member in cluster.members:
        async with aetcd.Client(host="127.0.0.1", port=member.port) as client:
            request = rpc.StatusRequest()
            status = await client.maintenancestub.Status(request)
            if status.leader == status.header.member_id:
                return member
    raise AssertionError("a ready cluster has a leader")


async def test_etcd_with_passwords_is_used_under_a_user_and_after_its_token_is_gone() -> None:
    with Etcd() as server:
        await _ask_for_passwords(server)
        right = EtcdConnection(server.endpoint, user="root", password="open")
        wrong = EtcdConnection(server.endpoint, user="root", password="sesame")
        store, refused = EtcdCheckpointStore(right), EtcdCheckpointStore(wrong)
        try:
            assert await store.claim(REF, HELD) == Position()
            with pytest.raises(
                StorageFailed, match=r"etcd refuses it .*; check etcd\.user"
            ) as said:
                await refused.claim(REF, HELD)
            assert "sesame" not in str(said.value)
            await asyncio.to_thread(server.restart)  # which forgets every token
            await store.save(REF, HELD, 3, Tally())
            assert await store.list() == {REF: Position(3)}
        finally:
            await store.close()
            await refused.close()


async def _ask_for_passwords(server: Etcd) -> None:
    async with aetcd.Client(host="127.0.0.1", port=server.port) as client:
        auth = rpc.AuthStub(client.channel)
        await auth.UserAdd(rpc.AuthUserAddRequest(name="root", password="open"))
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
        await auth.AuthEnable(rpc.AuthEnableRequest())


async def test_a_key_that_holds_no_position_is_named(etcd: Etcd) -> None:
    connection = EtcdConnection(etcd.endpoint, prefix="/spoilt")
    store = EtcdCheckpointStore(connection)
    key = connection.key("checkpoints", REF.topic, REF.partition)
    try:
        await connection.run(lambda client: client.put(key, b"?"), what="spoiling it")
        with pytest.raises(StorageFailed, match="/spoilt/checkpoints/flights/0 holds something"):
            await store.claim(REF, HELD)
    finally:
        await store.close()


async def test_clusters_with_different_prefixes_do_not_see_each_other(etcd: Etcd) -> None:
    one, two = (
        EtcdCheckpointStore(EtcdConnection(etcd.endpoint, prefix=prefix))
        for prefix in ("/apart", "/apart-2")
    )
    try:
        await one.claim(REF, Fence(9))
        assert await two.list() == {}
        assert await two.claim(REF, HELD) == Position()
    finally:
        await one.close()
        await two.close()


# --- MongoDB -------------------------------------------------------------------------------------


async def test_a_killed_primary_loses_no_position_and_no_fence(
    replica_set: MongoReplicaSet,
) -> None:
    async with saving(MongoCheckpointStore(replica_set.url, database="headgate")) as saver:
        for _ in range(2):
            former = await asyncio.to_thread(replica_set.primary)
            await asyncio.to_thread(former.kill)
            await saver.until_more()
            await asyncio.to_thread(former.restart)
        with pytest.raises(Fenced):
            await saver.store.claim(REF, Fence(0))


async def test_without_a_majority_mongodb_acknowledges_nothing(
    replica_set: MongoReplicaSet,
) -> None:
    store = MongoCheckpointStore(replica_set.url, database="headgate", timeout_s=2.0)
    async with saving(store) as saver:
        primary = await asyncio.to_thread(replica_set.primary)
        others = [node for node in replica_set.nodes if node is not primary]
        for node in others:
            await asyncio.to_thread(node.kill)
        with pytest.raises(StorageFailed, match=r"MongoDB can't be reached .*; check mongo\.url"):
            async with asyncio.timeout(20):
                await saver.store.claim(REF, HELD)
        for node in others:
            await asyncio.to_thread(node.start)
        await saver.until_more()


@pytest.mark.parametrize(
    "url", ["", "nonsense", "http://me:hunter2@db/x", "mongodb://me:hunter2@db:port/"]
)
async def test_what_is_no_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(InvalidConfig, match=r"mongo\.url must be") as said:
        MongoCheckpointStore(url, database="headgate")
    assert "hunter2" not in str(said.value)


# --- both ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["etcd", "mongodb"])
async def test_a_store_that_is_away_is_said_in_time_and_in_one_sentence(kind: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    store: CheckpointStore
    if kind == "etcd":
        store = etcd_store(address, timeout_s=0.5)
    else:
        url = f"mongodb://me:hunter2@{address}/?replicaSet=headgate"
        store = MongoCheckpointStore(url, database="headgate", timeout_s=0.5)
    try:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.claim(REF, HELD),
            lambda: store.save(REF, HELD, 1, Tally()),
            lambda: store.reset(REF, HELD, 1),
            store.list,
        ]
        for call in calls:
            with pytest.raises(StorageFailed) as said:
                async with asyncio.timeout(3):
                    await call()
            sentence = str(said.value)
            assert "can't be reached" in sentence
            assert "\n" not in sentence
            assert len(sentence) < 300
            assert "hunter2" not in sentence
    finally:
        await store.close()
