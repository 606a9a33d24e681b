"""A record that can't be read holds a repartition of its topic until an operator skips it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.client.producing.outgoing import OutgoingEvent
from headgate.errors import NotNow, StorageFailed
from headgate.model.api import RepartitionTopic, ResetAnswer, ResetPartition, Status
from headgate.model.client_messages import Event, Item, Resync
from headgate.model.event import PartitionRef, Record
from tests.sim.cluster import MemoryCluster, running
from tests.virtual_time import run_virtual

TOPIC = "flights"
BAD = PartitionRef(TOPIC, 0)
BAD_SEQ = 5
RESET = f"/v1/topics/{TOPIC}/partitions/0/reset"


class DamagedReader(MemoryLogReader):
    async def read(self, ref: PartitionRef, *, after_seq: int, limit: int) -> list[Record]:
        found = await super().read(ref, after_seq=after_seq, limit=limit)
        if ref == BAD and any(record.seq == BAD_SEQ for record in found):
            raise StorageFailed(f"record {BAD_SEQ} of {ref} is damaged")
        return found


async def send(cluster: MemoryCluster, numbers: range) -> None:
    async with cluster.producer(cluster.gateways[0].url) as producer:
        events = [OutgoingEvent({"number": n}, key=f"key-{n}") for n in numbers]
        for outcome in await producer.send_many(TOPIC, events):
            assert not isinstance(outcome, Exception), outcome


def test_what_cannot_be_read_can_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else would ever bring it to its end."""
    monkeypatch.setattr(MemoryCluster, "reader", lambda self: DamagedReader(self.log))
    numbers: list[int] = []
    resyncs = 0

    async def read(items: AsyncIterator[Item]) -> None:
        nonlocal resyncs
        async for item in items:
            resyncs += isinstance(item, Resync)
            if isinstance(item, Event):
                numbers.append(item.document["number"])

    async def scenario() -> None:
        async with running(1) as cluster, asyncio.TaskGroup() as reading:
            url = cluster.gateways[0].url
            await cluster.create_topic(url, TOPIC, 1)
            async with cluster.subscriber(url, TOPIC) as items, cluster.http(url) as client:
                task = reading.create_task(read(items))
                await send(cluster, range(8))
                path = f"/v1/topics/{TOPIC}/repartition"
                await client.post(path, RepartitionTopic(2), dict)
                await asyncio.sleep(120.0)
                await send(cluster, range(8, 16))
                await asyncio.sleep(60.0)
                under_way = (await client.get("/v1/status", Status)).topics[0].repartition
                assert under_way is not None
                assert under_way.phase == "draining"
                assert numbers == [0, 1, 2, 3]
                with pytest.raises(NotNow, match="or skip what can't be read"):
                    await client.post(RESET, ResetPartition(2), ResetAnswer)
                skipped = await client.post(RESET, ResetPartition(6, resync=True), ResetAnswer)
                assert (skipped.skips, skipped.repeats) == (1, 0)
                await asyncio.sleep(60.0)
                assert (await client.get("/v1/status", Status)).topics[0].repartition is None
                task.cancel()
        assert sorted(numbers) == [number for number in range(16) if number != BAD_SEQ - 1]
        assert resyncs == 1

    run_virtual(scenario())
