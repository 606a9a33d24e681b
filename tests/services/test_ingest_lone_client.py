"""One client that sends one event after the other: written by a thread, with the same promises."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log_reader import EmbeddedLogReader
from headgate.adapters.embedded.log_writer import EmbeddedLogWriter
from headgate.adapters.http.http1_lending import LONE_AFTER
from headgate.client.http import HttpClient
from headgate.decide.history import next_head
from headgate.model.api import Health
from headgate.model.control import AckTopology
from headgate.model.event import PartitionRef
from headgate.model.position import Position
from headgate.model.topology import Owner, Topic, Topology
from headgate.services.ingest.node import Ingest, IngestOptions
from tests.adapters.http.wire import Wire
from tests.contracts.faulty_disk import FaultyDisk, faulty_disk
from tests.services.ingest_doubles import NODE, ScriptedCoordinator, topology
from tests.waiting import until

FLIGHTS = Topic("flights", 1)
REF = PartitionRef("flights", 0)


class CountingWriter(EmbeddedLogWriter):
    """Knows how often it was written to in the caller's thread."""

    def __init__(self, folder: DataFolder) -> None:
        super().__init__(folder)
        self.here = 0

    def append_here(self, *args: Any, **kwargs: Any) -> None:
        self.here += 1
        super().append_here(*args, **kwargs)


class Lone:
    """A node, and the one client it has."""

    def __init__(self, folder: DataFolder, disk: FaultyDisk) -> None:
        self.folder = folder
        self.disk = disk
        self.writer = CountingWriter(folder)
        self.coordinator = ScriptedCoordinator()
        self.node = Ingest(
            IngestOptions(NODE, "start", stop_timeout_s=5.0),
            writer=self.writer,
            open_session=self.coordinator.open,
            settled=self._nothing_settled,
            now_ms=lambda: 1,
        )
        self.port = 0
        self.fields = "content-type: application/json\r\n"
        self.wire: Wire

    async def _nothing_settled(self) -> dict[PartitionRef, Position]:
        return {}

    async def start(self) -> None:
        url = await self.node.start()
        await self.adopt(topology(1, FLIGHTS))
        self.port = int(url.rpartition(":")[2])
        self.wire = await Wire.dial(self.port)

    async def adopt(self, pushed: Topology) -> None:
        self.coordinator.push(pushed)
        await self.coordinator.heard(AckTopology(pushed.generation))

    def send(self, *ids: str, **rest: Any) -> None:
        events = [{"event_id": one, "key": "k", "document": {"id": one}} for one in ids]
        body = json.dumps({"events": events, "request_timeout": "10s", **rest}).encode()
        head = (
            "POST /v1/topics/flights/produce HTTP/1.1\r\nhost: x\r\n"
            f"{self.fields}content-length: {len(body)}\r\n\r\n"
        )
        self.wire.send(head.encode() + body)

    async def answer(self) -> tuple[int, Any]:
        status, _, body = await self.wire.answer()
        told = json.loads(body)
        if status == 200:
            return status, [event["seq"] for event in told["events"]]
        return status, told["error"]["code"]

    async def produce(self, *ids: str, **rest: Any) -> tuple[int, Any]:
        self.send(*ids, **rest)
        return await self.answer()

    async def warm_up(self) -> int:
        """Until it is alone: the last seq."""
        for number in range(1, LONE_AFTER + 2):
            assert await self.produce(f"warm-{number}") == (200, [number])
        assert self.writer.here > 0
        return LONE_AFTER + 1

    async def metrics(self) -> list[str]:
        onlooker = await Wire.dial(self.port)
        onlooker.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        lines = (await onlooker.answer())[2].decode().splitlines()
        await onlooker.close()
        return lines

    @property
    def file(self) -> Path:
        return self.folder.log_file(REF)

    def events_in_file(self) -> list[str]:
        connection = apsw.Connection(str(self.file), flags=apsw.SQLITE_OPEN_READONLY)
        found = [event_id for (event_id,) in connection.execute("SELECT event_id FROM records")]
        connection.close()
        return found

    async def stored(self) -> list[str]:
        reader = EmbeddedLogReader(self.folder)
        records = await reader.read(REF, after_seq=0, limit=100_000)
        await reader.close()
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        return [record.event_id for record in records]


@pytest.fixture
async def lone(tmp_path: Path) -> AsyncIterator[Lone]:
    with faulty_disk() as disk:
        running = Lone(DataFolder.open(tmp_path / "data"), disk)
        await running.start()
        yield running
        await running.wire.close()
        await running.node.stop()


async def test_its_events_are_written_in_order_and_counted(lone: Lone) -> None:
    last = await lone.warm_up()
    before = lone.writer.here
    for number in range(100):
        assert await lone.produce(f"e{number}") == (200, [last + number + 1])
    assert lone.writer.here == before + 100
    assert (await lone.stored())[last:] == [f"e{number}" for number in range(100)]
    total = last + 100
    assert f'headgate_log_head{{partition="0",topic="flights"}} {total}.0' in await lone.metrics()
    # These are counted after the answer.
    counted = [f'headgate_appends_total{{topic="flights"}} {total}.0']
    counted.append(f"headgate_produce_seconds_count {total}.0")
    async with asyncio.timeout(10):
        while not set(counted) <= set(await lone.metrics()):
            pass


async def test_the_same_ids_again_get_the_same_places(lone: Lone) -> None:
    last = await lone.warm_up()
    assert await lone.produce("a") == (200, [last + 1])
    assert await lone.produce("a", "b") == (200, [last + 1, last + 2])
    assert await lone.produce("b") == (200, [last + 2])
    assert (await lone.stored())[last:] == ["a", "b"]


LEFT_TO_THE_LOOP: dict[str, tuple[dict[str, Any], tuple[int, Any]]] = {
    "no-id": ({"events": [{"document": {}}]}, (200, [LONE_AFTER + 2])),
    "no-document": ({"events": [{"event_id": "x"}]}, (400, "invalid")),
    "old-version": ({"version": 0}, (409, "stale_version")),
    "little-time": ({"request_timeout": "1s"}, (200, [LONE_AFTER + 2])),
}


@pytest.mark.parametrize(("rest", "expected"), LEFT_TO_THE_LOOP.values(), ids=LEFT_TO_THE_LOOP)
async def test_what_isnt_plain_is_done_as_usual(
    lone: Lone, rest: dict[str, Any], expected: tuple[int, Any]
) -> None:
    last = await lone.warm_up()
    assert await lone.produce("x", **rest) == expected
    assert len(await lone.stored()) == last + (expected[0] == 200)


UNWANTED = {
    "a page": ("origin: https://evil.example\r\ncontent-type: application/json\r\n", 403),
    "text of a page": ("origin: https://evil.example\r\ncontent-type: text/plain\r\n", 403),
    "text": ("content-type: text/plain\r\n", 415),
    "of no kind": ("", 415),
}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "new"])
@pytest.mark.parametrize(("fields", "status"), UNWANTED.values(), ids=UNWANTED)
async def test_what_a_foreign_page_could_send_is_not_written(
    lone: Lone, fields: str, status: int, alone: bool
) -> None:
    last = await lone.warm_up() if alone else 0
    lone.fields = fields
    for number in range(3):
        assert (await lone.produce(f"unwanted-{number}"))[0] == status
    assert len(await lone.stored()) == last


async def test_a_disk_that_stalls_holds_neither_the_node_nor_the_promise(lone: Lone) -> None:
    last = await lone.warm_up()
    lone.disk.stalls_s[str(lone.folder.log_file(REF))] = 2.0
    lone.send("slow")
    await until(lambda: not lone.disk.stalls_s)
    async with HttpClient(lone.node.url) as client, asyncio.timeout(1.0):
        assert (await client.get("/health", Health)).role == "ingest"
    assert await lone.answer() == (200, [last + 1])
    assert await lone.produce("next") == (200, [last + 2])
    assert (await lone.stored())[last:] == ["slow", "next"]


async def test_a_stop_in_the_middle_of_a_write_says_that_nobody_knows(lone: Lone) -> None:
    last = await lone.warm_up()
    lone.disk.stalls_s[str(lone.folder.log_file(REF))] = 8.0
    lone.send("slow")
    await until(lambda: not lone.disk.stalls_s)
    stopping = asyncio.create_task(lone.node.stop())
    async with asyncio.timeout(20):
        assert await lone.answer() == (503, "outcome_unknown")
        await stopping
    assert (await lone.stored())[last:] == ["slow"]


async def test_a_write_of_which_nobody_knows_can_be_sent_again(lone: Lone) -> None:
    last = await lone.warm_up()
    lone.disk.sync_fails = True
    assert await lone.produce("a", request_timeout="5s") == (503, "outcome_unknown")
    lone.disk.sync_fails = False
    assert await lone.produce("a") == (200, [last + 1])
    assert (await lone.stored())[last:] == ["a"]


async def test_a_client_that_leaves_in_the_middle_leaves_the_log_whole(lone: Lone) -> None:
    last = await lone.warm_up()
    lone.disk.sync_s = 0.05
    syncs = lone.disk.syncs
    lone.send("a")
    await until(lambda: lone.disk.syncs > syncs)
    await lone.wire.close()
    lone.wire = await Wire.dial(lone.port)
    assert await lone.produce("b") == (200, [last + 2])
    assert (await lone.stored())[last:] == ["a", "b"]


async def test_a_partition_that_moved_away_is_written_by_nobody_here(lone: Lone) -> None:
    last = await lone.warm_up()
    other = EmbeddedLogWriter(lone.folder)
    await other.open(REF, epoch=2)
    assert await lone.produce("a") == (503, "unavailable")
    await lone.adopt(Topology(2, (FLIGHTS,), logs=(Owner(REF, "ingest-2", 2),)))
    assert (await lone.produce("b"))[0] == 503
    await other.close()
    assert len(await lone.stored()) == last


async def test_a_deleted_topic_is_written_by_nobody(lone: Lone) -> None:
    await lone.warm_up()
    await lone.adopt(topology(2, deleted=(FLIGHTS,)))
    assert await lone.produce("a") == (404, "unknown_topic")
    assert await lone.stored() == []


async def test_a_deleted_file_is_refused_and_made_again_behind_what_was_told(lone: Lone) -> None:
    last = await lone.warm_up()
    for file in lone.file.parent.glob("*"):
        file.unlink()
    assert (await lone.produce("a"))[0] == 503
    await until(lambda: lone.node._partitions.heads() == ((REF, next_head(last)),))
    assert await lone.produce("a") == (200, [next_head(last) + 1])
    assert lone.events_in_file() == ["a"]


async def test_a_file_deleted_while_it_is_written_to_is_told_to_nobody(lone: Lone) -> None:
    """The thread is in doubt, and leaves the request to the loop, which reads it back once the node
    has opened the file again."""
    await lone.warm_up()
    lone.disk.stalls_s[str(lone.file)] = 0.1
    lone.send("a")
    await until(lambda: not lone.disk.stalls_s)
    lone.file.unlink()
    assert await lone.answer() == (503, "storage_failed")
    assert lone.events_in_file() == []
