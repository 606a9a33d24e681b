"""No reader of any log store hands out a record that isn't what was appended: ports/log.py."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import apsw
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.adapters.embedded.sqlite import storage_errors, transaction
from headgate.adapters.log.checksum import intact, verified, with_checksum
from headgate.decide.delivery.gaps import dense
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
    assert intact(REF, [stored], after_seq=6) == [stored]
    with pytest.raises(CorruptRecord, match=f"record {seq} of {topic}:{partition} is corrupt"):
        intact(PartitionRef(topic, partition), [(seq, *stored[1:])], after_seq=seq - 1)


def stored_rows(first: int, last: int) -> list[tuple[Any, ...]]:
    return [
        with_checksum(REF, (n, 1, f"e{n}", "k", "", "insert", b"{}", None, None, 1_000, None))
        for n in range(first, last + 1)
    ]


Placed = tuple[int, tuple[Any, ...]]
"""A row behind the seq by which a store finds it."""


def read_all(rows: list[Placed], *, after_seq: int) -> tuple[list[int], list[int]]:
    """What is handed out of `rows`, and what is said to be corrupt, by who passes that."""
    found: list[int] = []
    corrupt: list[int] = []
    while behind := [row for seq, row in rows if seq > after_seq]:
        try:
            found += [row[0] for row in intact(REF, behind, after_seq=after_seq)]
            after_seq = found[-1]
        except CorruptRecord as error:
            corrupt.append(error.seq)
            after_seq = error.seq
    return found, corrupt


@pytest.mark.parametrize("says", [-3, 1, 4, 5, 6, 7, 8, 633])
@pytest.mark.parametrize("at", [5, 6, 10])
def test_a_record_that_says_another_seq_is_named_by_its_place(at: int, says: int) -> None:
    """A store keeps rows in order of a seq that may be what is damaged."""
    rows = [(row[0], row) for row in stored_rows(5, 10)]
    _, true = rows.pop(at - 5)
    others = [seq for seq, _ in rows]
    if says == at:
        return
    for place in (at - 5, 5):  # in its place, or sorted to the end
        moved = [*rows[:place], (at, (says, *true[1:])), *rows[place:]]
        assert read_all(moved, after_seq=4) == (others, [at])
        told = verified(REF, [row for _, row in moved], after_seq=4)
        assert told == Verified(10, 5, 0, (at,))


def test_a_row_that_was_passed_and_is_found_again_hides_nothing() -> None:
    rows = stored_rows(5, 10)
    for says in (1, 7, 633):
        again = [(says, *rows[0][1:]), *rows]
        assert [row[0] for row in intact(REF, again, after_seq=7)] == [8, 9, 10]


def test_a_row_of_nothing_is_no_record_from_before_checksums() -> None:
    rows = [(row[0], row) for row in stored_rows(5, 7)]
    for says in (6, 6_000):
        rows[1] = (6, (says, *[None] * 11))
        assert read_all(rows, after_seq=4) == ([5, 7], [6])
        told = verified(REF, [row for _, row in rows], after_seq=4)
        assert told == Verified(7, 2, 0, (6,))


def test_a_place_where_nothing_is_in_order_says_nothing_of_what_is_there() -> None:
    with pytest.raises(StorageFailed, match="isn't found in its place"):
        intact(REF, stored_rows(5, 7), after_seq=7)


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
    file, true = await _written(tmp_path)
    whole, chance = file.read_bytes(), random.Random(7)
    told = 0
    for _ in range(400):
        at, bit = chance.randrange(100, len(whole)), 1 << chance.randrange(8)
        found, corrupt = await _read_with(file, whole, at, bit)
        assert all(true[one.seq] == one for one in found)
        told += corrupt is None or len(found) < len(true)
    assert told > 25, "a part of the file is records"


async def test_a_flipped_bit_of_a_seq_or_of_a_page_costs_no_more_than_that_page(
    tmp_path: Path,
) -> None:
    """By its seq a record is found, and by what heads a page all that is in it. All else comes,
    each once and in order."""
    file, true = await _written(tmp_path)
    whole = file.read_bytes()
    of_record = whole.index(b"e40k")
    page = of_record // PAGE * PAGE
    on_page = [seq for seq in true if page < whole.find(b"e%dk" % seq) < page + PAGE]
    assert 40 in on_page
    assert len(on_page) < len(true)
    for at in (*range(of_record - 16, of_record), *range(page + 1, page + 16)):
        for bit in (1 << n for n in range(8)):
            found, corrupt = await _read_with(file, whole, at, bit)
            assert all(true[one.seq] == one for one in found), (at, bit)
            if corrupt is None:
                continue  # refused as a whole
            seqs = [one.seq for one in found]
            assert seqs == sorted({*seqs}), (at, bit)
            assert {*true} - {*seqs} <= {*on_page}, (at, bit, corrupt)
            assert {*corrupt}.isdisjoint(seqs), (at, bit, corrupt)
            assert {*corrupt} <= {*on_page}, (at, bit, corrupt)


async def test_records_that_an_index_hides_are_no_hole(tmp_path: Path) -> None:
    """Nobody is sent past what a wrong key leads past: it is still there."""
    file, true = await _written(tmp_path)
    whole = file.read_bytes()
    connection = apsw.Connection(str(file))
    [(root,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'records'")
    connection.close()
    start = (root - 1) * PAGE
    assert whole[start] == INNER_PAGE
    refused = 0
    for at in (start + PAGE - 1, start + PAGE - 1 - INNER_CELL):
        for bit in (1 << n for n in range(7)):
            found, corrupt = await _read_with(file, whole, at, bit)
            assert all(true[one.seq] == one for one in found), (at, bit)
            refused += corrupt is None
            if corrupt is not None:
                assert sorted([one.seq for one in found] + corrupt) == list(true), (at, bit)
    assert refused


async def test_retention_goes_on_whatever_a_record_says_of_its_time(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path / "data")
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=1)
    await append(writer, 1, 4)
    connection = apsw.Connection(str(folder.log_file(REF)))
    connection.execute("UPDATE records SET time_ms = CAST(x'fffe' AS TEXT) WHERE seq = 1")
    connection.execute("UPDATE records SET document = CAST(x'fffe' AS TEXT) WHERE seq = 2")
    connection.close()
    extent = await writer.retain(REF, Retention(max_age_ms=1), settled=3, ids_ms=1, now_ms=9_000)
    assert extent.earliest == 4
    await writer.close()


def test_text_that_is_none_is_a_damaged_file() -> None:
    """Whatever is read, also within a transaction: its caller isn't told that it was their text."""
    connection = apsw.Connection(":memory:")
    for reading in (storage_errors("reading it"), transaction(connection, "reading it")):
        with pytest.raises(StorageFailed, match="reading it failed: the file is damaged"), reading:
            connection.execute("SELECT CAST(x'fffe' AS TEXT)").fetchall()
    assert not connection.in_transaction


async def test_an_index_that_lost_a_key_is_not_the_callers_mistake(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path / "data")
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=1)
    await append(writer, 1, 2)
    connection = apsw.Connection(str(folder.log_file(REF)))
    connection.execute("UPDATE partition SET head = 1")
    connection.close()
    await writer.close()
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=2)
    with pytest.raises(StorageFailed, match="the file is damaged"):
        await append(writer, 3, 3)
    await writer.close()


PAGE = 4096
INNER_PAGE = 5
INNER_CELL = 5
"""How SQLite marks one that leads to others, and what each of them takes there: where it is, and
the last seq in it."""


async def _written(tmp_path: Path) -> tuple[Path, dict[int, Record]]:
    folder = DataFolder.open(tmp_path / "data")
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=1)
    for number in range(1, 100):
        await append(writer, number, number)
    await writer.close()
    file = folder.log_file(REF)
    true = {one.seq: one for one in (await _read(file))[0]}
    assert len(true) == 99
    return file, true


async def _read_with(
    file: Path, whole: bytes, at: int, bit: int
) -> tuple[list[Record], list[int] | None]:
    """What is read of a file of which one bit is flipped, as `_read` says it."""
    with file.open("wb") as damaged:
        damaged.write(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
    return await _read(file)


async def _read(file: Path) -> tuple[list[Record], list[int] | None]:
    """All records, by somebody who passes those that are said to be corrupt, as readers do, and
    which those are; None where the store is refused."""
    reader = EmbeddedLogReader(DataFolder(file.parents[2]))
    found: list[Record] = []
    corrupt: list[int] = []
    try:
        while True:
            after_seq = max([one.seq for one in found[-1:]] + corrupt[-1:], default=0)
            try:
                some = dense(await reader.read(REF, after_seq=after_seq, limit=20))
            except CorruptRecord as error:
                corrupt.append(error.seq)
                if error.seq <= after_seq:
                    raise AssertionError("nobody would come to an end") from error
                continue
            if not some:
                return found, corrupt
            assert some[0].seq > after_seq
            found += some
    except (StorageFailed, DataFolderError):
        return found, None
    finally:
        await reader.close()
