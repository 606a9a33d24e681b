"""One partition's file by itself: what it assumes between two commits, and what if it errs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log import partition_file
from headgate.adapters.embedded.log import wal_upkeep as upkeep
from headgate.adapters.embedded.log.partition_file import ROWS_MAX, PartitionFile
from headgate.adapters.embedded.log.wal_upkeep import CHECKPOINT_PAGES
from headgate.adapters.log.appending import AppendRequest, Outcome, record_bytes
from headgate.errors import Fenced, Sealed, StaleVersion
from headgate.model.event import Event, PartitionRef
from headgate.ports.log import Appended, Extent, Retention

REF = PartitionRef("flights", 0)
FIELDS = "seq, version, event_id, document, key, op, collection, earlier, source, time_ms"


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder.open(tmp_path)


@pytest.fixture
def path(folder: DataFolder) -> Path:
    return folder.log_file(REF)


@pytest.fixture
def file(folder: DataFolder) -> Iterator[PartitionFile]:
    opened = PartitionFile(folder, REF)
    opened.open(epoch=1, version=1)
    yield opened
    opened.close()


def request(*ids: str, version: int = 1) -> AppendRequest:
    return AppendRequest([Event(one, b"{}") for one in ids], version=version, now_ms=5)


def all_kinds(start: int, count: int) -> list[Event]:
    """Events that differ in every field."""
    return [
        Event(
            f"id{number}",
            b'{"n":%d}' % number,
            None if number % 2 else f"k{number}",
            ("insert", "update", "delete")[number % 3],
            "" if number % 5 else "air",
            b"{}" if number % 7 == 0 else None,
            f"s{number}" if number % 11 == 0 else None,
        )
        for number in range(start, start + count)
    ]


def stored(path: Path, statement: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = list(connection.execute(statement))
    connection.close()
    return found


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([1], id="one"),
        pytest.param([3, 2], id="below a power of two"),
        pytest.param([63, 1, 1], id="just above the round number"),
        pytest.param([100, 29], id="just above twice the round number"),
        pytest.param([ROWS_MAX], id="a whole statement"),
        pytest.param([ROWS_MAX, 1], id="one more than a statement"),
        pytest.param([1_000, 0, 170], id="several statements"),
        pytest.param([0], id="nothing"),
    ],
)
def test_every_field_of_every_event_is_stored_in_order(
    file: PartitionFile, path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionFile, "_known", no_look)  # New keys need none.
    requests, wanted, seq = list[AppendRequest](), list[tuple[object, ...]](), 0
    for number, size in enumerate(sizes):
        events = all_kinds(seq, size)
        requests.append(AppendRequest(events, version=1, now_ms=number))
        for one in events:
            seq += 1
            fields = (one.event_id, one.document, one.key, one.op, one.collection)
            wanted.append((seq, 1, *fields, one.earlier, one.source, number))
    outcomes = file.append(requests)
    assert [one for each in outcomes if isinstance(each, list) for one in each] == [
        Appended(number) for number in range(1, seq + 1)
    ]
    assert stored(path, f"SELECT {FIELDS} FROM records ORDER BY seq") == wanted
    ids = stored(path, "SELECT event_id, seq, time_ms FROM ids ORDER BY seq")
    assert ids == [(row[2], row[0], row[-1]) for row in wanted]
    size_bytes = sum(
        record_bytes(len(one.document), len(one.earlier or b""))
        for each in requests
        for one in each.events
    )
    assert stored(path, "SELECT head, size_bytes FROM partition") == [(seq, size_bytes)]


def test_what_another_writer_of_the_same_epoch_appended_is_seen(
    file: PartitionFile, folder: DataFolder, path: Path
) -> None:
    other = PartitionFile(folder, REF)
    other.open(epoch=1, version=1)
    assert file.append([request("a")]) == [[Appended(1)]]
    assert other.append([request("b", "a")]) == [[Appended(2), Appended(1, True)]]
    assert file.append([request("c"), request("b")]) == [[Appended(3)], [Appended(2, True)]]
    assert stored(path, "SELECT seq, event_id FROM records") == [(1, "a"), (2, "b"), (3, "c")]
    other.close()


def test_a_higher_epoch_is_noticed_in_the_very_next_append(
    file: PartitionFile, folder: DataFolder
) -> None:
    file.append([request("a")])
    newer = PartitionFile(folder, REF)
    newer.open(epoch=2, version=1)
    with pytest.raises(Fenced):
        file.append([request("b")])
    assert newer.append([request("c")]) == [[Appended(2)]]
    newer.close()


def test_appends_to_a_file_that_nobody_opened_are_refused(folder: DataFolder) -> None:
    unopened = PartitionFile(folder, REF)
    with pytest.raises(Fenced):
        unopened.append([request("a")])
    unopened.close()


def test_only_the_requests_of_another_version_are_refused(file: PartitionFile) -> None:
    outcomes = file.append([request("a"), request("b", version=2), request("c")])
    assert kinds(outcomes) == [list, StaleVersion, list]
    assert outcomes[2] == [Appended(2)]
    assert kinds(file.append([request("d", version=2)])) == [StaleVersion]


def test_a_seal_is_noticed_and_appends_go_on_after_it(file: PartitionFile) -> None:
    file.append([request("a")])
    assert file.open(1, 1, sealed=True).head == 1
    assert kinds(file.append([request("b")])) == [Sealed]
    file.open(1, 2)
    assert file.append([request("b", version=2)]) == [[Appended(2)]]


def test_the_write_ahead_log_is_moved_again_and_again(file: PartitionFile, path: Path) -> None:
    document = b'"' + b"x" * 100_000 + b'"'
    for number in range(120):
        file.append([AppendRequest([Event(f"id{number}", document)], version=1, now_ms=1)])
        file.upkeep.tidy()
    wal = path.with_name(path.name + "-wal")
    assert wal.stat().st_size < 2 * CHECKPOINT_PAGES * 4_096


def test_the_write_ahead_log_begins_anew_although_somebody_always_reads_it(
    file: PartitionFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four take turns, so that the writer hardly ever finds it unread."""
    monkeypatch.setattr(upkeep, "CHECKPOINT_PAGES", 50)
    monkeypatch.setattr(upkeep, "WAL_PAGES_MAX", 200)
    monkeypatch.setattr(upkeep, "RESTART_TIMEOUT_MS", 1_000)
    stop, reading = threading.Event(), threading.Semaphore(0)

    def read_on() -> None:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        while not stop.is_set():
            with connection:
                connection.execute("SELECT count(*) FROM records").fetchall()
                reading.release()
                stop.wait(0.005)
        connection.close()

    file.append([request("first")])
    readers = [threading.Thread(target=read_on) for _ in range(4)]
    for reader in readers:
        reader.start()
        reading.acquire()
    document = b'"' + b"x" * 100_000 + b'"'
    try:
        for number in range(100):
            file.append([AppendRequest([Event(f"id{number}", document)], version=1, now_ms=1)])
            file.upkeep.tidy()
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    wal = path.with_name(path.name + "-wal")
    assert wal.stat().st_size < 4 * 200 * 4_096


def no_look(_file: PartitionFile, _ids: list[str]) -> dict[str, int]:
    raise AssertionError("the keys were looked up")


def kinds(outcomes: list[Outcome]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


def test_a_turn_of_retention_drops_no_more_than_its_bytes(
    file: PartitionFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends wait for it."""
    monkeypatch.setattr(partition_file, "DROP_BYTES", 2_500)
    for number in range(5):
        event = Event(f"e{number}", b'"' + b"x" * 1_000 + b'"')
        file.append([AppendRequest([event], version=1, now_ms=1)])
    retention = Retention(max_bytes=0)
    turns = []
    while file.drop_expired(retention, up_to_seq=5, ids_ms=10**9, now_ms=2):
        turns.append(file.extent().earliest)
    assert turns == [3, 5]
    assert file.extent() == Extent(6, 5)
