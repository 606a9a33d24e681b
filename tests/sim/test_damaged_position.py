"""One stored position is damaged, in a whole cluster: its partition stands still, and nothing else
waits; mended, it goes on where it was."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Collection

import pytest

from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.client.producing.outgoing import OutgoingEvent
from headgate.errors import NoPosition
from headgate.model.api import Status
from headgate.model.client_messages import Event, Item
from headgate.model.event import Fence, PartitionRef
from headgate.model.position import Position, Tally
from headgate.services.router.service import Router
from tests.sim.cluster import MemoryCluster, running
from tests.virtual_time import run_virtual

TOPIC = "flights"
PARTITIONS = 4
BAD = PartitionRef(TOPIC, 0)
MOMENT_S = 8.0
"""With the start of a router in it."""
SUBSCRIBED_S = 12.0
"""New subscriptions wait for some ten seconds after a restart of the coordinator."""


class Damaged(MemoryCheckpointStore):
    """What is stored for `BAD` is no position while `is_bad`."""

    is_bad = False

    async def claim(
        self, ref: PartitionRef, fence: Fence, *, after: Collection[Fence] | None = None
    ) -> Position:
        self._check(ref)
        return await super().claim(ref, fence, after=after)

    async def save(self, ref: PartitionRef, fence: Fence, settled: int, tally: Tally) -> None:
        self._check(ref)
        await super().save(ref, fence, settled, tally)

    async def list(self) -> dict[PartitionRef, Position]:
        found = await super().list()
        if Damaged.is_bad and BAD in found:
            found[BAD] = Position(unreadable="it is no position")
        return found

    def _check(self, ref: PartitionRef) -> None:
        if Damaged.is_bad and ref == BAD:
            raise NoPosition(f"what is stored for {ref} is no position")


class Reader:
    """The numbers of each key, and the partitions they came from, as they arrived."""

    def __init__(self) -> None:
        self.numbers: defaultdict[str, list[int]] = defaultdict(list)
        self.partitions: list[int] = []

    async def read(self, items: AsyncIterator[Item]) -> None:
        async for item in items:
            assert isinstance(item, Event), f"{item} was left out"
            self.partitions.append(item.partition)
            self.numbers[item.key or ""].append(item.document["number"])


async def send(cluster: MemoryCluster, numbers: range) -> None:
    async with cluster.producer(cluster.gateways[0].url) as producer:
        events = [OutgoingEvent({"number": n}, key=f"key-{n % 20}") for n in numbers]
        for outcome in await producer.send_many(TOPIC, events):
            assert not isinstance(outcome, Exception), outcome


async def started(cluster: MemoryCluster) -> Router:
    router = cluster.router("router-1")
    await router.start()
    return router


async def status_of(cluster: MemoryCluster) -> Status:
    async with cluster.http(cluster.gateways[0].url) as client:
        return await client.get("/v1/status", Status)


def test_nothing_but_its_own_partition_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryCluster, "checkpoints", lambda self: Damaged(self.positions))
    monkeypatch.setattr(Damaged, "is_bad", False)

    async def scenario() -> None:
        first, second = Reader(), Reader()
        async with running(1, routers=0) as cluster, asyncio.TaskGroup() as reading:
            url = cluster.gateways[0].url
            router = await started(cluster)
            await cluster.create_topic(url, TOPIC, PARTITIONS)
            async with cluster.subscriber(url, TOPIC) as one:
                tasks = [reading.create_task(first.read(one))]
                await send(cluster, range(100))
                await asyncio.sleep(10.0)
                assert len(first.partitions) == 100
                Damaged.is_bad = True
                await router.stop()
                router = await started(cluster)
                await send(cluster, range(100, 200))
                async with asyncio.timeout(MOMENT_S), cluster.subscriber(url, TOPIC) as two:
                    tasks.append(reading.create_task(second.read(two)))
                    await asyncio.sleep(MOMENT_S / 2)
                    await send(cluster, range(200, 300))
                    await asyncio.sleep(1.0)
                    assert set(second.partitions) == {1, 2, 3}, "of what came after it subscribed"
                assert set(first.partitions[100:]) == {1, 2, 3}
                bad, *well = (await status_of(cluster)).topics[0].details
                assert bad.state == "failed"
                assert "is no position" in bad.reason
                assert {detail.state for detail in well} == {"healthy"}
                await asyncio.sleep(120.0)
                Damaged.is_bad = False
                await asyncio.sleep(10.0)
                assert (await status_of(cluster)).topics[0].details[0].state == "healthy"
                for task in tasks:
                    task.cancel()
            await router.stop()
        for key, numbers in first.numbers.items():
            assert numbers == [n for n in range(300) if f"key-{n % 20}" == key]

    run_virtual(scenario())


def test_nobody_else_waits_for_its_lane_after_a_restart_of_the_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lane has nothing else, so nothing of what it asks the store can be answered."""
    monkeypatch.setattr(MemoryCluster, "checkpoints", lambda self: Damaged(self.positions))
    monkeypatch.setattr(Damaged, "is_bad", False)

    async def scenario() -> None:
        first = Reader()
        async with running(1, routers=0) as cluster, asyncio.TaskGroup() as reading:
            url = cluster.gateways[0].url
            router = await started(cluster)
            for topic in (TOPIC, "others"):
                await cluster.create_topic(url, topic, 1)
            async with cluster.subscriber(url, TOPIC) as one:
                task = reading.create_task(first.read(one))
                await send(cluster, range(20))
                await asyncio.sleep(10.0)
                Damaged.is_bad = True
                await cluster.stop_coordinator()
                await cluster.start_coordinator()
                async with asyncio.timeout(SUBSCRIBED_S), cluster.subscriber(url, "others"):
                    pass
                await send(cluster, range(20, 40))
                [bad] = (await status_of(cluster)).topics[0].details
                assert (bad.state, bad.lag) == ("failed", 20)
                Damaged.is_bad = False
                await asyncio.sleep(30.0)
                task.cancel()
            await router.stop()
        for key, numbers in first.numbers.items():
            assert numbers == [n for n in range(40) if f"key-{n % 20}" == key]

    run_virtual(scenario())
