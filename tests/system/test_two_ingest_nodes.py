"""Two ingest nodes on one data folder: whoever is asked, an event lands once, where it belongs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.client import Producer
from headgate.client.http import HttpClient, topic_path
from headgate.client.producing.pending import ProducerOptions
from headgate.decide.produce.placement import partition_of
from headgate.errors import NotNow, StaleVersion
from headgate.model.api import CreateTopic, ProduceAnswer, TopicInfo
from headgate.model.event import PartitionRef, Record
from tests.system.cluster import Cluster

PARTITIONS = 4
KEYS = [f"k{number}" for number in range(40)]
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "data", ingest_nodes=2) as running:
        yield running


@asynccontextmanager
async def topic(cluster: Cluster, name: str) -> AsyncIterator[dict[int, str]]:
    """A topic shared by both nodes, for as long as the block runs; yields its owners."""
    async with HttpClient(cluster.url) as client:
        await client.post("/v1/topics", CreateTopic(name, PARTITIONS), TopicInfo)
        owners = await asyncio.to_thread(cluster.owners, name)
        assert set(owners.values()) == set(cluster.ingest_ids), owners
        yield owners
        await client.delete(topic_path(name))


def event(key: str, number: int) -> dict[str, Any]:
    return {"key": key, "event_id": f"{key}-{number}", "document": {"n": number}}


def home(key: str) -> int:
    return partition_of(key, collection="", count=PARTITIONS)


async def stored(cluster: Cluster, name: str) -> dict[int, list[Record]]:
    reader = EmbeddedLogReader(DataFolder(cluster.data))
    try:
        return {
            number: await reader.read(PartitionRef(name, number), after_seq=0, limit=100_000)
            for number in range(PARTITIONS)
        }
    finally:
        await reader.close()


async def check_stored(cluster: Cluster, name: str, counts: dict[str, int]) -> None:
    """Exactly the first `counts[key]` events of each key are there, once, in order, at home."""
    found: dict[str, list[int]] = defaultdict(list)
    for partition, records in (await stored(cluster, name)).items():
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        for record in records:
            assert record.key is not None
            assert home(record.key) == partition
            found[record.key].append(msgspec.json.decode(record.document)["n"])
    assert found == {key: list(range(count)) for key, count in counts.items() if count}


# --- asking the wrong one ------------------------------------------------------------------------


async def test_a_producer_that_routes_and_one_that_does_not_write_each_event_once(
    cluster: Cluster,
) -> None:
    async with topic(cluster, "everybody"), Producer(cluster.url) as producer:
        halves = KEYS[:20], KEYS[20:]
        sends = [
            producer.send("everybody", {"n": number}, key=key, event_id=f"{key}-{number}")
            for number in range(20)
            for key in halves[0]
        ]
        plain = [
            plain_produce(cluster, node_id, "everybody", halves[1][offset::2], 20)
            for offset, node_id in enumerate(cluster.ingest_ids)
        ]
        await asyncio.gather(*sends, *plain)
        await check_stored(cluster, "everybody", dict.fromkeys(KEYS, 20))


async def plain_produce(
    cluster: Cluster, node_id: str, name: str, keys: Sequence[str], count: int
) -> None:
    """Send everything to one node, whoever owns it, without a word about routing."""
    async with HttpClient(cluster.address(node_id)) as client:
        for number in range(count):
            body = {"events": [event(key, number) for key in keys]}
            answer = await client.post(f"{topic_path(name)}/produce", body, ProduceAnswer)
            assert [(one.event_id, one.partition) for one in answer.events] == [
                (f"{key}-{number}", home(key)) for key in keys
            ]


async def test_a_sender_that_routes_wrongly_is_told_the_owners_and_nothing_is_written(
    cluster: Cluster,
) -> None:
    async with topic(cluster, "misrouted") as owners:
        [wrong, right] = cluster.ingest_ids
        events = [event(key, 0) for key in KEYS if owners[home(key)] == right]
        path = f"{topic_path('misrouted')}/produce"
        async with HttpClient(cluster.address(wrong)) as client:
            with pytest.raises(StaleVersion) as caught:
                await client.post(path, {"events": events, "version": 1}, ProduceAnswer)
        addresses = {str(number): cluster.address(owner) for number, owner in owners.items()}
        assert caught.value.details["owners"] == addresses
        assert not any((await stored(cluster, "misrouted")).values())
        told = caught.value.details["owners"]
        async with HttpClient(told[str(home(events[0]["key"]))]) as client:
            await client.post(path, {"events": events, "version": 1}, ProduceAnswer)
        await check_stored(cluster, "misrouted", {one["key"]: 1 for one in events})


# --- a node dies in mid-load ---------------------------------------------------------------------


class Load:
    """One task per key that sends number after number, each until it is acknowledged."""

    def __init__(self, send: Callable[[str, int], Any]) -> None:
        self.acknowledged = dict.fromkeys(KEYS, 0)
        self._send = send
        self._news = asyncio.Condition()
        self._stopping = False
        self._tasks = [asyncio.create_task(self._run(key)) for key in KEYS]

    async def _run(self, key: str) -> None:
        while not self._stopping:
            await self._send(key, self.acknowledged[key])
            async with self._news:
                self.acknowledged[key] += 1
                self._news.notify_all()

    async def until_more(self, keys: Sequence[str], count: int) -> None:
        """Waits until each of `keys` has `count` more acknowledgements than now."""
        goals = {key: self.acknowledged[key] + count for key in keys}

        def reached() -> bool:
            failed = [task for task in self._tasks if task.done()]
            return bool(failed) or all(self.acknowledged[key] >= goals[key] for key in keys)

        async with self._news:
            await asyncio.wait_for(self._news.wait_for(reached), PATIENCE_S)
        self._raise_failures()

    def _raise_failures(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def finish(self) -> dict[str, int]:
        self._stopping = True
        await asyncio.wait_for(asyncio.gather(*self._tasks), PATIENCE_S)
        return self.acknowledged


async def patient_produce(client: HttpClient, name: str, key: str, number: int) -> None:
    """Retry with the same id, as the contract asks of whoever gets a 503."""
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
    body = {"events": [event(key, number)], "request_timeout": "1s"}
    while True:
        try:
            answer = await client.post(f"{topic_path(name)}/produce", body, ProduceAnswer)
            assert answer.events[0].error is None
            return
        except NotNow:
            if asyncio.get_running_loop().time() > deadline_s:
                raise
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("sender", ["producer", "plain-http"])
@pytest.mark.timeout(180)
async def test_a_node_killed_in_mid_load_comes_back_and_nothing_is_lost_or_there_twice(
    cluster: Cluster, sender: str
) -> None:
    [survivor, victim] = cluster.ingest_ids
    name = f"killed-{sender}"
    async with (
        topic(cluster, name) as owners,
        Producer(cluster.url, ProducerOptions(deadline_s=PATIENCE_S)) as producer,
        HttpClient(cluster.address(survivor)) as client,
    ):

        async def send(key: str, number: int) -> None:
            if sender == "producer":
                document = {"n": number}
                await producer.send(name, document, key=key, event_id=f"{key}-{number}")
            else:
                await patient_produce(client, name, key, number)

        unharmed = [key for key in KEYS if owners[home(key)] == survivor]
        load = Load(send)
        await load.until_more(KEYS, 20)
        before = cluster.address(victim)
        await asyncio.to_thread(cluster.kill, victim)
        await load.until_more(unharmed, 20)
        await asyncio.to_thread(cluster.start, "ingest", victim)
        await load.until_more(KEYS, 20)
        acknowledged = await load.finish()
        assert cluster.address(victim) != before
        assert cluster.owners(name) == owners
        await check_stored(cluster, name, acknowledged)


async def test_a_killed_node_that_is_restarted_keeps_its_records_and_ids(cluster: Cluster) -> None:
    victim = cluster.ingest_ids[1]
    async with topic(cluster, "again") as owners:
        events = [event(key, 0) for key in KEYS if owners[home(key)] == victim]
        path = f"{topic_path('again')}/produce"
        async with HttpClient(cluster.address(victim)) as client:
            first = await client.post(path, {"events": events}, ProduceAnswer)
        await asyncio.to_thread(cluster.kill, victim)
        await asyncio.to_thread(cluster.start, "ingest", victim)
        async with Producer(cluster.url) as producer:
            for one in events:
                await producer.send(
                    "again", one["document"], key=one["key"], event_id=one["event_id"]
                )
        async with HttpClient(cluster.address(victim)) as client:
            again = await client.post(path, {"events": events}, ProduceAnswer)
        assert again == first
        await check_stored(cluster, "again", {one["key"]: 1 for one in events})
