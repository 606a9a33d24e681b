"""Files of the embedded log that are deleted, moved or replaced under those who have them open.

What is acknowledged is in files that are at their paths then, and stays readable there: `crashed`
looks at nothing else. Not tested, because nothing notices it: a file whose content is overwritten
in place.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import apsw
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.adapters.embedded.sqlite import connect
from headgate.errors import DataFolderError, OutcomeUnknown, StorageFailed, StoreChanged
from headgate.model.event import Event, PartitionRef
from headgate.ports.log import Appended, Extent
from tests.contracts.faulty_disk import faulty_disk
from tests.waiting import until

REF = PartitionRef("flights", 0)


@pytest.fixture(autouse=True)
def no_look_is_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all that happens were far apart; then the embedded log refuses for sure."""
    monkeypatch.setattr("headgate.adapters.embedded.transactions.RECENT_S", -1.0)


class Log:
    """A writer that has acknowledged a and b, and a reader that has read them."""

    def __init__(self, path: Path) -> None:
        self.folder = DataFolder.open(path / "data")
        self.file = self.folder.log_file(REF)
        self.writer = EmbeddedLogWriter(self.folder)
        self.reader = EmbeddedLogReader(self.folder)

    async def start(self) -> None:
        await self.writer.open(REF, epoch=1)
        await self.append("a")
        await self.append("b")
        assert await self.read() == ["a", "b"]

    async def close(self) -> None:
        await self.reader.close()
        await self.writer.close()

    async def append(self, event_id: str) -> list[Appended]:
        return await self.writer.append(REF, [Event(event_id, b"{}")], version=1, now_ms=1)

    async def read(self) -> list[str]:
        return [one.event_id for one in await self.reader.read(REF, after_seq=0, limit=99)]

    async def refused(self) -> None:
        """Nothing is taken."""
        for _ in range(2):
            with pytest.raises(StoreChanged, match=r"was deleted, moved or replaced"):
                await self.append("refused")

    def beside(self, suffix: str) -> Path:
        return self.file.with_name(self.file.name + suffix)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    opened = Log(tmp_path)
    await opened.start()
    yield opened
    await opened.close()


def crashed(file: Path, copy: Path) -> list[str]:
    """The events that are there after a crash now, with whatever is at the paths."""
    copy.mkdir(parents=True)
    for one in file.parent.glob(f"{file.name}*"):
        if not one.name.endswith("-shm"):
            shutil.copy(one, copy)
    return stored(copy / file.name)


def stored(file: Path) -> list[str]:
    connection = apsw.Connection(str(file))
    found = [event_id for (event_id,) in connection.execute("SELECT event_id FROM records")]
    assert connection.pragma("integrity_check") == "ok"
    connection.close()
    return found


# --- the database itself -------------------------------------------------------------------------


def delete(log: Log) -> None:
    log.file.unlink()


def delete_all(log: Log) -> None:
    shutil.rmtree(log.folder.log_dir)


def move(log: Log) -> None:
    log.file.rename(log.folder.root / "moved.db")


def move_directory(log: Log) -> None:
    log.file.parent.rename(log.folder.root / "moved")


@pytest.mark.parametrize("fate", [delete, delete_all, move, move_directory])
async def test_a_file_that_is_gone_takes_nothing_until_it_is_opened_again(
    log: Log, tmp_path: Path, fate: Callable[[Log], None]
) -> None:
    fate(log)
    await log.refused()
    with pytest.raises(StoreChanged):
        await log.writer.find(REF, ["a"])
    assert await log.read() == []

    assert await log.writer.open(REF, epoch=1) == Extent(1, 0)
    with pytest.raises(StoreChanged, match="it ends at 0, and 2 was given out"):
        await log.append("too early")
    await log.writer.move_on(REF, from_head=0, to_head=90)
    assert await log.append("c") == [Appended(91)]
    assert await log.append("d") == [Appended(92)]
    assert await log.read() == ["c", "d"]
    assert crashed(log.file, tmp_path / "copy") == ["c", "d"]


async def test_one_of_many_appends_finds_out_after_its_commit_and_is_in_doubt(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.adapters.embedded.transactions.RECENT_S", 60.0)
    delete(log)
    with pytest.raises(OutcomeUnknown, match="was deleted, moved or replaced"):
        await log.append("c")
    for event_id in ("c", "d"):
        with pytest.raises(OutcomeUnknown):
            await log.append(event_id)
    with pytest.raises(StoreChanged):
        await log.writer.find(REF, ["c"])


async def test_a_file_that_was_moved_away_has_all_that_was_acknowledged(log: Log) -> None:
    """Also what was only in the write-ahead log, which stayed behind."""
    move(log)
    await log.refused()
    await log.writer.open(REF, epoch=1)
    assert stored(log.folder.root / "moved.db") == ["a", "b"]


async def test_a_file_that_comes_back_is_used_as_if_nothing_had_happened(
    log: Log, tmp_path: Path
) -> None:
    away = log.folder.root / "moved"
    log.file.parent.rename(away)
    await log.refused()
    away.rename(log.file.parent)
    assert await log.writer.open(REF, epoch=1) == Extent(1, 2)
    assert await log.append("c") == [Appended(3)]
    assert await log.read() == ["a", "b", "c"]
    assert crashed(log.file, tmp_path / "copy") == ["a", "b", "c"]


async def test_a_file_that_is_a_link_is_used_and_its_end_noticed(tmp_path: Path) -> None:
    log, disk = Log(tmp_path), tmp_path / "another disk"
    disk.mkdir()
    log.file.parent.mkdir(parents=True)
    log.file.symlink_to(disk / "log.db")
    await log.start()
    await log.append("c")
    (disk / "log.db-wal").unlink()
    await log.refused()
    await log.writer.open(REF, epoch=1)
    assert await log.append("d") == [Appended(4)]
    assert await log.read() == ["a", "b", "c", "d"]
    (disk / "log.db").unlink()
    await log.refused()
    await log.close()


async def test_no_data_folder_is_made_where_it_was_moved_away(log: Log) -> None:
    """Its disk may not be mounted: what is written below would be hidden by it later."""
    root, away = log.folder.root, log.folder.root.with_name("away")
    root.rename(away)
    await log.refused()
    for _ in range(2):
        with pytest.raises(DataFolderError, match="isn't there any more: bring it back"):
            await log.writer.open(REF, epoch=1)
        await log.refused()
    assert not root.exists()
    away.rename(root)
    await log.writer.open(REF, epoch=1)
    assert await log.append("c") == [Appended(3)]


async def backup(log: Log, path: Path) -> list[Path]:
    """A copy of a log that has just x and y, of which y is in its write-ahead log only."""
    other = DataFolder.open(path)
    file = other.log_file(REF)
    writer = EmbeddedLogWriter(other)
    await writer.open(REF, epoch=1)
    await writer.append(REF, [Event("x", b"{}")], version=1, now_ms=1)
    await writer.close()
    writer = EmbeddedLogWriter(other)
    await writer.open(REF, epoch=1)
    await writer.append(REF, [Event("y", b"{}")], version=1, now_ms=1)
    copies = [path / name for name in (file.name, f"{file.name}-wal")]
    for copy in copies:
        shutil.copy(file.with_name(copy.name), copy)
    await writer.close()
    return copies


@pytest.mark.parametrize("closes_first", [False, True], ids=["opens again", "stops"])
@pytest.mark.parametrize("with_its_log", [True, False], ids=["with its log", "without its log"])
async def test_what_a_file_was_replaced_by_is_left_as_it_is(
    log: Log, tmp_path: Path, closes_first: bool, with_its_log: bool
) -> None:
    """The log that came with it stays, and the former one isn't taken for its own."""
    restored, restored_wal = await backup(log, tmp_path / "backup")
    restored.rename(log.file)
    if with_its_log:
        restored_wal.rename(log.beside("-wal"))
    await log.refused()
    if closes_first:
        await log.writer.close()
    else:
        await log.writer.open(REF, epoch=1)
    assert crashed(log.file, tmp_path / "copy") == (["x", "y"] if with_its_log else ["x"])


# --- what is beside it ---------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [["-wal"], ["-shm"], ["-wal", "-shm"]])
async def test_a_log_or_shared_memory_that_is_deleted_loses_nothing(
    log: Log, tmp_path: Path, gone: list[str]
) -> None:
    """Commits would go on into the deleted log, or be invisible to whoever opens the file next."""
    if "-shm" in gone:
        await log.reader.close()  # SQLite shares that memory between all connections of a process.
    for suffix in gone:
        log.beside(suffix).unlink()
    await log.refused()
    if "-shm" not in gone:
        assert await log.read() == ["a", "b"], "it leaves making them again to the writer"
    assert await log.writer.open(REF, epoch=1) == Extent(1, 2)
    assert await log.append("c") == [Appended(3)]
    await log.append("d")
    assert await log.read() == ["a", "b", "c", "d"]
    assert crashed(log.file, tmp_path / "copy") == ["a", "b", "c", "d"]


WRITING = """
import os, sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute(
    "INSERT INTO records SELECT seq + 1, version, 'x', key, collection, op, document, earlier, "
    "source, time_ms, headers, checksum FROM records ORDER BY seq DESC LIMIT 1"
)
os._exit(0)
"""


async def test_a_log_that_others_have_written_to_meanwhile_is_left_to_an_operator(
    log: Log, tmp_path: Path
) -> None:
    """Theirs and ours can't be joined: each overwrites what the other doesn't see."""
    await log.reader.close()  # Whoever is the last to close a file tidies up beside it.
    log.beside("-shm").unlink()
    command = [sys.executable, "-c", WRITING, str(log.file)]
    await asyncio.to_thread(subprocess.run, command, check=True)
    await log.refused()
    with pytest.raises(StorageFailed, match="stop every node that uses the data folder"):
        await log.writer.open(REF, epoch=1)
    await log.refused()
    await log.writer.close()
    assert crashed(log.file, tmp_path / "copy") == ["a", "b", "x"]


# --- in the middle of a commit -------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_file_deleted_during_a_commit_makes_it_doubtful(
    tmp_path: Path, suffix: str
) -> None:
    with faulty_disk() as disk:
        log = Log(tmp_path)
        await log.start()
        disk.stalls_s[str(log.file)] = 0.3
        syncs = disk.syncs
        appending = asyncio.ensure_future(log.append("c"))
        await until(lambda: disk.syncs > syncs)
        log.beside(suffix).unlink()
        with pytest.raises(OutcomeUnknown, match=r"may or may not be on disk: .*was deleted"):
            await appending
        with pytest.raises(OutcomeUnknown, match="whether an earlier write is on disk isn't known"):
            await log.append("c")
        with pytest.raises(StoreChanged):
            await log.writer.find(REF, ["c"])
        await log.writer.open(REF, epoch=1)
        if suffix:
            assert await log.writer.find(REF, ["b", "c"]) == {"b": 2, "c": 3}
        else:
            await log.writer.move_on(REF, from_head=0, to_head=90)
            assert await log.writer.find(REF, ["b", "c"]) == {}
        await log.close()


async def test_a_file_replaced_while_it_is_being_opened_is_not_used(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time anybody can look at the path, SQLite has another file."""

    def slowly(path: Path, schema: str, *, version: int) -> apsw.Connection:
        connection = connect(path, schema, version=version)
        shutil.copy(path, tmp_path / "other")
        (tmp_path / "other").replace(path)
        return connection

    log.file.unlink()
    monkeypatch.setattr("headgate.adapters.embedded.log.file.connect", slowly)
    with pytest.raises(StoreChanged):
        await log.writer.open(REF, epoch=1)
    monkeypatch.undo()
    assert await log.writer.open(REF, epoch=1) == Extent(1, 0)
