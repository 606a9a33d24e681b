"""`headgate log verify`: finds every record that isn't what was appended."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import apsw
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.model.event import Event, PartitionRef
from tests.cli.command import headgate


async def write(data: Path, *counts: int) -> None:
    writer = EmbeddedLogWriter(DataFolder.open(data))
    for partition, count in enumerate(counts):
        ref = PartitionRef("flights", partition)
        await writer.open(ref, epoch=1)
        events = [Event(f"e{number}", b'{"n":1}') for number in range(count)]
        await writer.append(ref, events, version=1, now_ms=1)
    await writer.close()


def change(data: Path, partition: int, what: str, *seqs: int) -> None:
    connection = apsw.Connection(str(data / "log" / "flights" / f"{partition}.db"))
    for seq in seqs:
        connection.execute(f"UPDATE records SET {what} WHERE seq = {seq}")
    connection.close()


async def test_a_topic_that_is_well_is_said_to_be(tmp_path: Path) -> None:
    await write(tmp_path / "data", 300, 450)
    ran = await headgate("log", "verify", "flights", "--data", str(tmp_path / "data"))
    assert ran.code == 0, ran.err
    assert ran.out == "flights: 750 records, 750 verified, 0 corrupt\n"


async def test_every_corrupt_record_is_named_with_the_way_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await write(data, 300, 450)
    change(data, 1, "document = x'7b7d'", 7, 201, 450)
    change(data, 0, "checksum = NULL", 1, 2)
    ran = await headgate("log", "verify", "flights", "--data", str(data))
    assert ran.code == 1
    assert ran.out == ("flights: 750 records, 745 verified, 2 from before checksums, 3 corrupt\n")
    assert [line.split(";")[0] for line in ran.err.splitlines()] == [
        f"record {seq} of flights:1 is corrupt" for seq in (7, 201, 450)
    ]
    assert "`headgate partition reset flights:1 --to 202 --resync`" in ran.err
    told = await headgate("log", "verify", "flights", "--data", str(data), "--json")
    assert told.code == 1
    found = json.loads(told.out)
    assert (found["records"], found["verified"], found["unverified"]) == (750, 745, 2)
    assert found["partitions"][1]["corrupt"] == [7, 201, 450]


async def test_a_file_that_is_damaged_as_a_whole_is_said_and_the_others_are_looked_at(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    await write(data, 300, 450)
    file = data / "log" / "flights" / "0.db"
    whole = file.read_bytes()
    file.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    ran = await headgate("log", "verify", "flights", "--data", str(data))
    assert ran.code == 1
    assert "flights:0 can't be read further" in ran.err
    assert "restore it from a copy" in ran.err
    assert "450 verified" in ran.out


@pytest.mark.parametrize(
    ("topic", "there", "sentence"),
    [("ships", True, "the log has no topic ships: it has flights"), ("flights", False, "is not a")],
)
async def test_what_is_not_there_is_said_and_nothing_is_made(
    tmp_path: Path, topic: str, there: bool, sentence: str
) -> None:
    data = tmp_path / "data"
    if there:
        await write(data, 1)
    ran = await headgate("log", "verify", topic, "--data", str(data))
    assert ran.code == 2
    assert sentence in ran.err
    assert await asyncio.to_thread(data.exists) is there
