"""One fsync that takes five real seconds: who waits for it is told the truth, the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.decide.produce.placement import partition_of
from headgate.errors import OutcomeUnknown
from headgate.model.event import Event
from headgate.model.topology import Topic
from tests.contracts.faulty_disk import FaultyDisk, faulty_disk
from tests.services.ingest.doubles import World, topology

FLIGHTS = Topic("flights", 2)
JOBS = Topic("jobs", 2, "opportunistic")
STALL_S = 5.0
KEYS = {partition_of(f"k{n}", collection="", count=2): f"k{n}" for n in range(100)}


class Node:
    """What an ingest node does between a request and a disk that can be made to stall."""

    def __init__(self, folder: DataFolder, disk: FaultyDisk) -> None:
        self.folder = folder
        self.disk = disk
        self.writer = EmbeddedLogWriter(folder)
        self.world = World(self.writer)

    def stall(self, topic: Topic) -> None:
        """The next fsync of the topic's partition 0 takes STALL_S."""
        self.disk.stalls_s[str(self.folder.log_file(topic.refs()[0]))] = STALL_S

    async def write(
        self, topic: Topic, *ids: str, timeout_s: float = 30.0, partition: int | None = None
    ) -> object:
        """Where each event stands, or where it may be found out."""
        key = None if partition is None else KEYS[partition]
        events = [Event(event_id, b"{}", key) for event_id in ids]
        try:
            results = await self.world.write(topic, events, timeout_s=timeout_s)
        except OutcomeUnknown as error:
            return error.details
        return [(result.partition, result.seq) for result in results]

    async def stored(self, topic: Topic) -> list[list[str]]:
        """The ids in each partition."""
        reader = EmbeddedLogReader(self.folder)
        found = [await reader.read(ref, after_seq=0, limit=100) for ref in topic.refs()]
        await reader.close()
        return [[record.event_id for record in records] for records in found]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    with faulty_disk() as disk:
        running = Node(DataFolder.open(tmp_path / "data"), disk)
        assert await running.world.adopt(topology(1, FLIGHTS, JOBS))
        yield running
        await running.world.writing.stop(timeout_s=10)
        running.world.writing.close()
        await running.writer.close()


async def test_a_stalled_fsync_is_waited_for_or_unknown_and_holds_nobody_else(node: Node) -> None:
    node.stall(FLIGHTS)
    node.stall(JOBS)
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    patient = asyncio.create_task(node.write(FLIGHTS, "patient", partition=0))
    hasty = asyncio.create_task(node.write(FLIGHTS, "hasty", partition=0, timeout_s=1))
    # Longer than the write timeout: it is being read back when its time is up.
    jobs = asyncio.create_task(node.write(JOBS, "a", "b", "c", "d", timeout_s=4))
    await asyncio.sleep(0)

    # Other partitions know nothing of it.
    assert [await node.write(FLIGHTS, f"f{n}", partition=1) for n in (1, 2)] == [
        [(1, 1)],
        [(1, 2)],
    ]
    assert [await node.write(JOBS, f"j{n}") for n in (1, 2)] == [[(1, 1)], [(1, 2)]]
    # Whose time is up is told where to look, and nothing goes to another partition meanwhile.
    assert await hasty == {"partition": 0}
    assert await jobs == {"partition": 0}
    assert not patient.done()
    assert await node.stored(JOBS) == [[], ["j1", "j2"]]

    # A retry is answered by the same place, once that can tell.
    again = asyncio.create_task(node.write(JOBS, "a", "b", "c", "d"))
    assert await patient == [(0, 1)]
    assert loop.time() - started_s >= STALL_S
    assert await again == [(0, seq) for seq in (1, 2, 3, 4)]
    assert await node.write(FLIGHTS, "hasty", partition=0) == [(0, 2)]
    assert await node.stored(FLIGHTS) == [["patient", "hasty"], ["f1", "f2"]]
    assert await node.stored(JOBS) == [["a", "b", "c", "d"], ["j1", "j2"]]
