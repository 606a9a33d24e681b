"""No reader of any log store hands out a record that isn't what was appended: ports/log.py."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.adapters.log.checksum import intact, with_checksum
from headgate.errors import CorruptRecord, DataFolderError, StorageFailed
from headgate.model.event import Event, PartitionRef, Record
from headgate.model.intake import IntakeMark
from headgate.ports.log import LogReader, LogWriter, Retention, Verified
from tests.contracts.stores import Opened
from tests.contracts.surgery import damage, log_file, put_back_format

REF = PartitionRef("flights", 0)
EVENT = Event("e", b'{"a":1}', "k", "update", "planes", b"{}", "lsn:7", b'{"trace":"7"}')
OTHERWISE: dict[str, object] = {
    "version": 2,
    "event_id": "f",
    "key": None,
    "collection": "",
    "op": "insert",
    "document": b'{"a":3}',
    "earlier": None,
    "source": "lsn:5",
    "time_ms": 1_001,
    "headers": b'{"trace":"5"}',
    "checksum": b"12345678",
}


def event(number: int) -> Event:
    return Event(f"e{number}", *[getattr(EVENT, name) for name in EVENT.__struct_fields__[1:]])


async def filled(logs: Opened, count: int) -> tuple[LogWriter, LogReader]:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await append(writer, 1, count)
    return writer, reader


async def append(writer: LogWriter, first: int, last: int, *, now_ms: int = 1_000) -> None:
    events = [event(number) for number in range(first, last + 1)]
    await writer.append(REF, events, version=1, now_ms=now_ms)


async def seqs(reader: LogReader, after_seq: int = 0) -> list[int]:
    return [one.seq for one in await reader.read(REF, after_seq=after_seq, limit=100)]


async def refused(reader: LogReader, after_seq: int) -> int:
    with pytest.raises(CorruptRecord) as caught:
        await reader.read(REF, after_seq=after_seq, limit=100)
    seq = caught.value.seq
    message = caught.value.message
    assert f"record {seq} of flights:0 is corrupt" in message
    assert f"`headgate partition reset flights:0 --to {seq + 1} --resync`" in message
    return seq


@pytest.mark.parametrize("field", OTHERWISE)
async def test_a_record_is_corrupt_whatever_was_changed_of_it(logs: Opened, field: str) -> None:
    _, reader = await filled(logs, 3)
    damage(logs, REF, 2, field, OTHERWISE[field])
    assert await seqs(reader) == [1]
    assert await refused(reader, 1) == 2
    assert await seqs(reader, 2) == [3]


@pytest.mark.parametrize(
    ("topic", "partition", "seq"), [("flights", 1, 7), ("trains", 0, 7), ("flights", 0, 8)]
)
def test_a_record_in_the_place_of_another_is_corrupt(topic: str, partition: int, seq: int) -> None:
    """Where it stands is a part of it, whatever file or table it is found in."""
    row = (7, 1, "e7", "k", "", "insert", b"{}", None, None, 1_000, None)
    stored = with_checksum(REF, row)
    assert intact(REF, [stored]) == [stored]
    with pytest.raises(CorruptRecord, match=f"record {seq} of {topic}:{partition} is corrupt"):
        intact(PartitionRef(topic, partition), [(seq, *stored[1:])])


@pytest.mark.parametrize("field", ["event_id", "key", "collection", "source"])
async def test_text_that_is_none_is_corrupt(logs: Opened, field: str) -> None:
    if logs.adapter == "memory":
        pytest.skip("text is text there")
    _, reader = await filled(logs, 3)
    if logs.adapter == "embedded":
        _damage_text(log_file(logs, REF), field)
    else:
        damage(logs, REF, 2, field, b"\xff\xfe")
    assert await seqs(reader) == [1]
    assert await refused(reader, 1) == 2
    assert await reader.verify(REF, after_seq=1, limit=10) == Verified(2, 0, 0, (2,))
    assert await seqs(reader, 2) == [3]


def _damage_text(file: Path, field: str) -> None:
    connection = apsw.Connection(str(file))
    connection.execute(f"UPDATE records SET {field} = CAST(x'fffe' AS TEXT) WHERE seq = 2")
    connection.close()


async def test_arrow_ends_before_a_corrupt_record_and_says_which_it_is(logs: Opened) -> None:
    _, reader = await filled(logs, 5)
    damage(logs, REF, 4, "document", b"{}")
    batches = reader.read_arrow(REF, after_seq=0, up_to_seq=5)
    assert batches.read_next_batch()["seq"].to_pylist() == [1, 2, 3]
    with pytest.raises(CorruptRecord, match="record 4 of flights:0"):
        batches.read_next_batch()
    behind = reader.read_arrow(REF, after_seq=4, up_to_seq=5).read_all()
    assert behind["seq"].to_pylist() == [5]
    assert behind["headers"].to_pylist() == [b'{"trace":"7"}']


async def test_what_a_connector_brought_has_checksums_too(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    mark = IntakeMark(connector="c", epoch=1, beginning=1, partitions=1, upto="2")
    taken = [Event(f"e{n}", b"{}", f"k{n}", source=str(n)) for n in (1, 2)]
    await writer.take_in(REF, mark, taken, version=1, now_ms=5)
    assert await reader.verify(REF, after_seq=0, limit=10) == Verified(2, 2, 0)
    damage(logs, REF, 2, "document", b"[]")
    assert await seqs(reader) == [1]


async def test_every_corrupt_record_is_found(logs: Opened) -> None:
    _, reader = await filled(logs, 10)
    for seq in (3, 4, 9):
        damage(logs, REF, seq, "document", b"{}")
    damage(logs, REF, 6, "checksum", None)
    found = await reader.verify(REF, after_seq=0, limit=5)
    assert found == Verified(5, 3, 0, (3, 4))
    assert await reader.verify(REF, after_seq=5, limit=100) == Verified(10, 3, 1, (9,))
    assert await reader.verify(REF, after_seq=10, limit=100) is None
    assert await reader.verify(PartitionRef("none", 0), after_seq=0, limit=1) is None


async def test_records_from_before_there_were_checksums_are_read_as_they_are(logs: Opened) -> None:
    writer, reader = await filled(logs, 2)
    damage(logs, REF, 1, "checksum", None)
    damage(logs, REF, 1, "document", b"[]")
    assert await seqs(reader) == [1, 2]
    await append(writer, 3, 3)
    assert await seqs(reader) == [1, 2, 3]


async def test_retention_takes_a_corrupt_record_like_any_other(logs: Opened) -> None:
    writer, reader = await filled(logs, 4)
    damage(logs, REF, 2, "document", b"")
    for kept, settled in ((1, 0), (4, 3)):
        extent = await writer.retain(
            REF, Retention(max_age_ms=1), settled=settled, ids_ms=1, now_ms=9_000
        )
        assert extent.earliest == kept
    assert await seqs(reader) == [4]


async def test_a_repeated_id_is_told_where_its_record_is_corrupt(logs: Opened) -> None:
    writer, reader = await filled(logs, 2)
    damage(logs, REF, 1, "event_id", "other")
    assert await writer.find(REF, ["e1"]) == {"e1": 1}
    [again] = await writer.append(REF, [event(1)], version=1, now_ms=2_000)
    assert (again.seq, again.repeated) == (1, True)
    assert await reader.find(REF, ["e1"]) == {"e1": 1}


# --- stores of an earlier format ------------------------------------------------------------------


async def test_a_store_of_the_former_format_is_read_and_goes_on(logs: Opened) -> None:
    if logs.adapter == "memory":
        pytest.skip("nothing of it outlives its process")
    writer, reader = await filled(logs, 2)
    await writer.close()
    known = await reader.read(REF, after_seq=0, limit=10)
    await reader.close()
    put_back_format(logs, REF)

    reader = logs.reader()
    former = [_without_headers(one) for one in known]
    assert await reader.read(REF, after_seq=0, limit=10) == former
    assert await reader.verify(REF, after_seq=0, limit=10) == Verified(2, 0, 2)
    assert reader.read_arrow(REF, after_seq=0, up_to_seq=2).read_all().num_rows == 2
    assert await reader.first_since(REF, 1_000) == 1
    assert await reader.first_since(REF, 1_001) == 3

    writer = logs.writer()
    await writer.open(REF, epoch=2)
    assert await reader.read(REF, after_seq=0, limit=10) == former, "it is still open here"
    await append(writer, 3, 4, now_ms=5_000)
    assert await seqs(reader) == [1, 2, 3, 4]
    assert await reader.verify(REF, after_seq=0, limit=10) == Verified(4, 2, 2)
    assert [await reader.first_since(REF, at) for at in (1_000, 1_001, 5_001)] == [1, 3, 5]
    damage(logs, REF, 3, "key", "x")
    assert await refused(reader, 2) == 3


async def test_a_topic_of_the_former_format_can_be_deleted(logs: Opened) -> None:
    if logs.adapter == "memory":
        pytest.skip("nothing of it outlives its process")
    writer, reader = await filled(logs, 2)
    await writer.close()
    await reader.close()
    put_back_format(logs, REF)
    writer, reader = logs.writer(), logs.reader()
    await writer.drop_records(REF, epoch=2)
    assert (await reader.extent(REF)).earliest == 3


def _without_headers(record: Record) -> Record:
    return Record(*[getattr(record, name) for name in Record.__struct_fields__[:-1]])


# --- flipped bits --------------------------------------------------------------------------------


async def test_whatever_bit_is_flipped_nobody_gets_another_record(tmp_path: Path) -> None:
    """In the file as it lies on the disk, which has more than records in it."""
    folder = DataFolder.open(tmp_path / "data")
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=1)
    for number in range(1, 60):
        await append(writer, number, number)
    await writer.close()
    file = folder.log_file(REF)
    true = {one.seq: one for one in await _read(folder)}
    assert len(true) == 59
    whole, chance = file.read_bytes(), random.Random(7)
    told = 0
    for _ in range(400):
        at, bit = chance.randrange(100, len(whole)), 1 << chance.randrange(8)
        file.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        try:
            found = await _read(folder)
        except (CorruptRecord, StorageFailed, DataFolderError):
            told += 1
            continue
        assert all(true[one.seq] == one for one in found)
        told += len(found) < len(true)
    assert told > 25, "a part of the file is records"


async def _read(folder: DataFolder) -> list[Record]:
    reader = EmbeddedLogReader(folder)
    try:
        return await reader.read(REF, after_seq=0, limit=100)
    finally:
        await reader.close()
