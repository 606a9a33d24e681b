"""A repartition that is given up: whoever was told of the partitions to come goes on all the same,
away meanwhile or not, and with the next one that comes to its end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest

from headgate.adapters.memory.log_writer import MemoryLogWriter
from headgate.client.consumer import Consumer
from headgate.client.subscriber import Subscriber
from headgate.errors import StorageFailed
from headgate.model.api import RepartitionPlan, RepartitionTopic, TopicInfo
from headgate.model.client_messages import Event
from headgate.model.event import PartitionRef
from headgate.ports.log import Extent
from tests.sim.cluster import MemoryCluster, running
from tests.sim.test_cluster import TOPIC, send, wanted
from tests.sim.test_repartition import repartition
from tests.virtual_time import run_virtual

GIVEN_UP_S = 120.0
READ_S = 120.0
EVENTS = 200
"""Of each part: before, behind what is given up, and behind the next one."""


class Unopened(MemoryLogWriter):
    """Nobody can open what is to come, for as long as `holds`."""

    holds = True

    async def open(self, ref: PartitionRef, **options: Any) -> Extent:
        if self.holds and ref.topic == TOPIC and ref.partition > 1:
            raise StorageFailed(f"{ref} can't be opened")
        return await super().open(ref, **options)


async def given_up(cluster: MemoryCluster, told: asyncio.Event) -> None:
    """`told`: everybody has heard that there are more to come."""
    async with cluster.http(cluster.gateways[0].url) as http:
        path = f"/v1/topics/{TOPIC}"
        await http.post(f"{path}/repartition", RepartitionTopic(4), RepartitionPlan)
        await asyncio.sleep(1.0)
        told.set()
        async with asyncio.timeout(GIVEN_UP_S):
            while not (info := await http.get(path, TopicInfo)).given_up:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.5)
        assert info.partitions == 2


async def read(items: Subscriber | Consumer, numbers: dict[str, list[int]], count: int) -> None:
    async with asyncio.timeout(READ_S):
        while sum(map(len, numbers.values())) < count:
            item = await anext(items)
            assert isinstance(item, Event)
            numbers[item.key or ""].append(item.document["number"])
            if isinstance(items, Consumer):
                await items.acknowledge(item)


async def scenario() -> list[Mapping[str, list[int]]]:
    stays, goes, packed = (defaultdict[str, list[int]](list) for _ in range(3))
    told = asyncio.Event()
    async with running(1) as cluster:
        first, second = (gateway.url for gateway in cluster.gateways)
        await cluster.create_topic(first, TOPIC, 2)
        async with cluster.subscriber(first, TOPIC) as one, asyncio.TaskGroup() as work:
            work.create_task(send(cluster, EVENTS))
            giving_up = work.create_task(given_up(cluster, told))
            await told.wait()
            async with (
                cluster.subscriber(second, TOPIC, start="earliest") as two,
                cluster.consumer(
                    second, TOPIC, "packers", start="earliest", acks="manual"
                ) as three,
            ):
                await read(two, goes, EVENTS)
                await read(three, packed, EVENTS)
                positions = dict(two.positions)
            assert set(positions) == {0, 1, 2, 3}, "it has heard of those to come"
            await giving_up
            await send(cluster, EVENTS, first=EVENTS)
            start = ",".join(f"{number}:{seq + 1}" for number, seq in positions.items())
            async with (
                cluster.subscriber(second, TOPIC, start=start) as two,
                cluster.consumer(second, TOPIC, "packers", acks="manual") as three,
            ):
                Unopened.holds = False
                await repartition(cluster, 3)
                await send(cluster, EVENTS, first=2 * EVENTS)
                await read(one, stays, 3 * EVENTS)
                await read(two, goes, 3 * EVENTS)
                await read(three, packed, 3 * EVENTS)
    return [stays, goes, packed]


def test_whoever_was_told_of_partitions_to_come_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unopened, "holds", True)
    monkeypatch.setattr(MemoryCluster, "writer", lambda self: Unopened(self.log))
    for numbers in run_virtual(scenario()):
        assert numbers == wanted(3 * EVENTS)
