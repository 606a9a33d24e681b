"""What only the embedded store can go through: full disks, locks, damaged files, forks, bells."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from headgate.adapters.embedded import sqlite
from headgate.adapters.embedded.checkpoints import EmbeddedCheckpointStore
from headgate.adapters.embedded.coordination import EmbeddedCoordinationStore
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.doorbell import Bell, Follower, _digest, bell_directory
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.errors import DataFolderError, Fenced, OutcomeUnknown, Overloaded, StorageFailed
from headgate.model.event import Event, Fence, PartitionRef
from headgate.model.stored import StoredState
from headgate.ports.log import Appended, Extent, Retention
from tests.contracts.faulty_disk import faulty_disk, fill_up, mount_tiny_disk

REF = PartitionRef("flights", 0)
WAIT_S = 30.0
NOT_BY_ITSELF_S = 2 * WAIT_S
"""A follower that looks by itself so rarely hears of nothing but by its bell."""
BIG = b'"' + b"x" * 100_000 + b'"'


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder.open(tmp_path / "data")


@contextmanager
def files_at_most(size_bytes: int) -> Iterator[None]:
    """Every write beyond `size_bytes` of a file fails, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def append(writer: EmbeddedLogWriter, *ids: str, document: bytes = b"{}") -> list[Appended]:
    events = [Event(event_id, document) for event_id in ids]
    return await writer.append(REF, events, version=1, now_ms=1)


async def test_a_write_that_the_disk_refuses_leaves_nothing_and_the_next_one_works(
    folder: DataFolder,
) -> None:
    writer, reader = EmbeddedLogWriter(folder), EmbeddedLogReader(folder)
    await writer.open(REF, epoch=1)
    await append(writer, "a")
    with files_at_most(200_000):
        for _ in range(2):
            with pytest.raises(StorageFailed):
                await append(writer, "b", "c", "d", document=BIG)
        assert await writer.find(REF, ["b", "c", "d"]) == {}
    assert await reader.extent(REF) == Extent(1, 1)
    assert await append(writer, "d", "e") == [Appended(2), Appended(3)]
    await writer.close()
    assert [r.event_id for r in await reader.read(REF, after_seq=0, limit=9)] == ["a", "d", "e"]
    await reader.close()


async def test_a_file_locked_for_too_long_is_a_failure_and_not_a_hang(
    folder: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sqlite.connect, "__kwdefaults__", {"busy_timeout_ms": 50, "page_size": 4096}
    )
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=1)
    intruder = apsw.Connection(str(folder.log_file(REF)))
    intruder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageFailed, match="another process has locked the file"):
        await append(writer, "a")
    intruder.execute("ROLLBACK")
    intruder.close()
    assert await append(writer, "a") == [Appended(1)]
    await writer.close()


async def test_a_call_behind_waiting_appends_is_served(folder: DataFolder) -> None:
    """The lock holds the first append back until all the others, and the close, have queued."""
    writer, reader = EmbeddedLogWriter(folder), EmbeddedLogReader(folder)
    await writer.open(REF, epoch=1)
    intruder = apsw.Connection(str(folder.log_file(REF)))
    intruder.execute("BEGIN IMMEDIATE")
    waiting = [asyncio.ensure_future(append(writer, f"e{number}")) for number in range(5)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(writer.close())
    await asyncio.sleep(0)
    intruder.execute("ROLLBACK")
    intruder.close()
    async with asyncio.timeout(30):
        assert len(await asyncio.gather(*waiting)) == 5
        await closing
    assert await reader.extent(REF) == Extent(1, 5)
    await reader.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (apsw.FullError, StorageFailed),
        (apsw.BusyError, StorageFailed),
        (apsw.IOError, OutcomeUnknown),
    ],
    ids=["full", "busy", "sync"],
)
def test_only_a_commit_that_fails_after_its_last_byte_is_unknown(
    error: type[apsw.Error], expected: type[Exception]
) -> None:
    class Failing:
        in_transaction = False

        def execute(self, statement: str, _values: tuple[object, ...] = ()) -> None:
            if statement == "COMMIT":
                raise error("injected")

    with pytest.raises(expected), sqlite.transaction(Failing(), "it"):  # type: ignore[arg-type]
        pass


async def test_what_find_says_of_an_unconfirmed_write_holds_after_a_crash(
    folder: DataFolder, tmp_path: Path
) -> None:
    """The write isn't seen here, but its pages lie in the log, where a recovery would find them."""
    with faulty_disk() as disk:
        writer = EmbeddedLogWriter(folder)
        await writer.open(REF, epoch=1)
        await append(writer, "a")
        disk.sync_fails = True
        with pytest.raises(OutcomeUnknown):
            await append(writer, "b", "c")
        disk.sync_fails = False
        assert await _after_a_crash(folder, tmp_path / "before") == ["a", "b", "c"]
        disk.sync_fails = True
        with pytest.raises(StorageFailed):
            await writer.find(REF, ["a", "b", "c"])
        disk.sync_fails = False
        assert await writer.find(REF, ["a", "b", "c"]) == {"a": 1}
        assert await _after_a_crash(folder, tmp_path / "after") == ["a"]
        assert await append(writer, "b", "c") == [Appended(2), Appended(3)]
        await writer.close()


async def _after_a_crash(folder: DataFolder, copy: Path) -> list[str]:
    """The events that are there when everything in memory is gone."""
    shutil.copytree(folder.root, copy, ignore=shutil.ignore_patterns("*-shm"))
    revived = DataFolder.open(copy)
    writer, reader = EmbeddedLogWriter(revived), EmbeddedLogReader(revived)
    await writer.open(REF, epoch=9)
    found = [record.event_id for record in await reader.read(REF, after_seq=0, limit=9)]
    await reader.close()
    await writer.close()
    return found


async def test_appends_share_a_slow_sync_and_the_loop_goes_on_meanwhile(folder: DataFolder) -> None:
    with faulty_disk() as disk:
        writer = EmbeddedLogWriter(folder)
        await writer.open(REF, epoch=1)
        disk.sync_s, disk.syncs = 0.3, 0
        appends = asyncio.gather(*(append(writer, f"e{number}") for number in range(200)))
        turns = 0
        while not appends.done():
            turns += 1
            await asyncio.sleep(0.01)
        assert sorted([one.seq for [one] in await appends]) == list(range(1, 201))
        assert disk.syncs <= 3, "the first alone, the rest together"
        assert turns >= 5
        disk.sync_s = 0
        await writer.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mount_tiny_disk(tmp_path / "tiny", "1m")


async def test_a_full_disk_refuses_whole_requests_until_there_is_room(tiny_disk: Path) -> None:
    folder = DataFolder.open(tiny_disk / "data")
    writer, reader = EmbeddedLogWriter(folder), EmbeddedLogReader(folder)
    await writer.open(REF, epoch=1)
    await append(writer, "a")
    ballast = fill_up(tiny_disk)
    for _ in range(2):
        with pytest.raises(StorageFailed, match="the disk is full; free some space"):
            await append(writer, "b", "c", "d", document=BIG)
    assert await reader.extent(REF) == Extent(1, 1)
    assert await writer.find(REF, ["b", "c", "d"]) == {}
    ballast.unlink()
    assert await append(writer, "b", "c", document=BIG) == [Appended(2), Appended(3)]
    assert await reader.extent(REF) == Extent(1, 3)
    await writer.close()
    await reader.close()


async def test_what_retention_drops_gives_its_space_back(folder: DataFolder) -> None:
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=1)
    for number in range(100):
        await append(writer, f"e{number}", document=BIG)
    kept = Retention(max_bytes=1_000_000)
    assert await writer.retain(REF, kept, settled=100, ids_ms=1_000, now_ms=1) == Extent(92, 100)
    assert folder.log_file(REF).stat().st_size < 3_000_000
    await writer.drop_records(REF, epoch=2)
    assert folder.log_file(REF).stat().st_size < 1_500_000
    await writer.close()


async def test_what_deleted_topics_left_holds_no_threads(folder: DataFolder) -> None:
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=1)
    before = threading.active_count()
    for partition in range(20):
        ref = PartitionRef("deleted", partition)
        await writer.drop_records(ref, epoch=3)
        with pytest.raises(Fenced):
            await writer.drop_records(ref, epoch=2)
    assert threading.active_count() < before + 10, "the last one may be about to end"
    assert await append(writer, "a") == [Appended(1)]
    await writer.close()


async def test_topics_that_come_and_go_leave_no_threads_and_no_open_files(
    folder: DataFolder,
) -> None:
    writer, reader = EmbeddedLogWriter(folder), EmbeddedLogReader(folder, idle_s=0.0)
    threads, files = threading.active_count(), open_files()
    for number in range(20):
        ref = PartitionRef(f"topic-{number}", 0)
        await writer.open(ref, epoch=1)
        await writer.append(ref, [Event("a", b"{}")], version=1, now_ms=1)
        assert len(await reader.read(ref, after_seq=0, limit=9)) == 1
        await writer.drop_records(ref, epoch=2)
    assert threading.active_count() < threads + 5, "the last one may be about to end"
    assert open_files() < files + 10, "the reader has the last one"
    await writer.close()
    await reader.close()


async def test_what_waits_is_bounded(folder: DataFolder) -> None:
    writer = EmbeddedLogWriter(folder, max_waiting_bytes=250_000)
    await writer.open(REF, epoch=1)
    outcomes = await asyncio.gather(
        *(append(writer, f"e{number}", document=BIG) for number in range(4)),
        return_exceptions=True,
    )
    assert [type(one) for one in outcomes] == [list, list, Overloaded, Overloaded]
    assert await append(writer, "later", document=BIG * 4) == [Appended(3)]
    await writer.close()


async def test_a_file_of_a_newer_format_is_refused(folder: DataFolder) -> None:
    writer, reader = EmbeddedLogWriter(folder), EmbeddedLogReader(folder)
    await writer.open(REF, epoch=1)
    await writer.close()
    connection = apsw.Connection(str(folder.log_file(REF)))
    connection.pragma("user_version", 9)
    connection.close()
    writer = EmbeddedLogWriter(folder)
    for attempt in (writer.open(REF, epoch=1), reader.extent(REF)):
        with pytest.raises(DataFolderError, match="was written by a newer Headgate"):
            await attempt
    await writer.close()


async def test_a_damaged_file_is_one_sentence(folder: DataFolder) -> None:
    folder.log_file(REF).parent.mkdir(parents=True)
    folder.log_file(REF).write_bytes(b"this is no database, for sure " * 200)
    folder.checkpoints_file.write_bytes(b"this is no database, for sure " * 200)
    folder.coordinator_file.write_bytes(b'{"boot": ')
    writer, reader = EmbeddedLogWriter(folder), EmbeddedLogReader(folder)
    checkpoints = EmbeddedCheckpointStore(folder)
    coordination = EmbeddedCoordinationStore(folder)
    for attempt in (
        writer.open(REF, epoch=1),
        reader.extent(REF),
        reader.read(REF, after_seq=0, limit=1),
        checkpoints.claim(REF, Fence(1)),
        coordination.load(),
    ):
        with pytest.raises((StorageFailed, DataFolderError), match="damaged"):
            await attempt
    for store in (writer, reader, checkpoints, coordination):
        await store.close()


async def test_a_damaged_log_is_read_again_once_it_is_restored(folder: DataFolder) -> None:
    """Also in place, while its reader goes on: nothing of the damaged one is remembered."""
    writer, reader = EmbeddedLogWriter(folder), EmbeddedLogReader(folder)
    await writer.open(REF, epoch=1)
    for number in range(20):
        event = Event(f"e{number}", b'"' + b"x" * 3_000 + b'"')
        await writer.append(REF, [event], version=1, now_ms=1)
    await writer.close()
    path = folder.log_file(REF)
    whole = path.read_bytes()
    header = 2 * 4_096
    path.write_bytes(whole[:header] + b"\xff" * (len(whole) - header))
    for _ in range(2):
        with pytest.raises(StorageFailed, match="damaged"):
            await reader.read(REF, after_seq=0, limit=100)
    path.write_bytes(whole)
    assert len(await reader.read(REF, after_seq=0, limit=100)) == 20
    await reader.close()


async def test_a_state_that_cant_be_written_leaves_the_old_one(folder: DataFolder) -> None:
    store = EmbeddedCoordinationStore(folder)
    await store.save(StoredState(boot=1))
    with files_at_most(4), pytest.raises(StorageFailed):
        await store.save(StoredState(boot=2, gateways=("g" * 100,)))
    assert await store.load() == StoredState(boot=1)
    assert [path.name for path in folder.root.glob("coordinator*")] == ["coordinator.json"]
    await store.close()


# --- readers -------------------------------------------------------------------------------------


async def test_a_reader_sees_a_file_that_was_deleted_and_made_again(folder: DataFolder) -> None:
    reader = EmbeddedLogReader(folder)
    for name in ("first", "second"):
        writer = EmbeddedLogWriter(folder)
        await writer.open(REF, epoch=1)
        await append(writer, name)
        assert [r.event_id for r in await reader.read(REF, after_seq=0, limit=9)] == [name]
        await writer.close()
        shutil.rmtree(folder.log_dir)
    assert await reader.extent(REF) == Extent(1, 0)
    await reader.close()


async def test_a_file_that_is_being_made_reads_as_empty(folder: DataFolder) -> None:
    folder.log_file(REF).parent.mkdir(parents=True)
    folder.log_file(REF).touch()
    reader = EmbeddedLogReader(folder)
    assert await reader.extent(REF) == Extent(1, 0)
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=1)
    await append(writer, "a")
    assert await reader.extent(REF) == Extent(1, 1)
    await writer.close()
    await reader.close()


FORKING = """
import asyncio, os, sys
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.model.event import PartitionRef

ref = PartitionRef("flights", 0)
reader = EmbeddedLogReader(DataFolder(__import__("pathlib").Path(sys.argv[1])))

def look():
    return asyncio.run(reader.extent(ref)).head

parents = look(), id(reader._opened[ref].connection)
child = os.fork()
if child == 0:
    assert look() == parents[0]
    os._exit(0 if id(reader._opened[ref].connection) != parents[1] else 3)
_, status = os.waitpid(child, 0)
assert look() == parents[0]
sys.exit(os.waitstatus_to_exitcode(status))
"""


async def test_a_connection_never_crosses_a_fork(folder: DataFolder) -> None:
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=1)
    await append(writer, "a")
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", FORKING, str(folder.root)], timeout=30
    )
    assert done.returncode == 0
    await writer.close()


# --- the doorbell --------------------------------------------------------------------------------


async def test_a_followers_socket_is_private_short_and_gone_afterwards(folder: DataFolder) -> None:
    deep = DataFolder.open(folder.root / ("d" * 120) / ("e" * 120))
    reader, base = EmbeddedLogReader(deep), bell_directory(deep.root)
    refs = [REF, PartitionRef("t" * 128, 1_023)]
    async with reader.follow(refs), reader.follow(refs[:1]):
        assert base.stat().st_mode & 0o777 == 0o700
        links = [link for link in base.rglob("*") if link.is_symlink()]
        assert len(links) == 3
        assert max(len(str(link)) for link in links) < 100
    assert not base.exists()


async def test_a_follower_that_died_is_forgotten(folder: DataFolder) -> None:
    reader = EmbeddedLogReader(folder, safety_s=NOT_BY_ITSELF_S)
    writer = EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=1)
    async with reader.follow([REF]) as wakes:
        base = bell_directory(folder.root)
        [link] = [link for link in base.rglob("*") if link.is_symlink()]
        dead = link.with_name("dead")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as gone:
            gone.bind(str(base / "dead"))
            dead.symlink_to(Path("..") / "dead")
        await append(writer, "a")
        async with asyncio.timeout(WAIT_S):
            assert await anext(wakes) == {REF}
        await append(writer, "b")
        await writer.close()
        assert not dead.is_symlink()
        assert not (base / "dead").exists()
        assert link.exists()


async def test_a_hint_turned_away_by_a_full_queue_still_wakes_its_partition(
    folder: DataFolder,
) -> None:
    other = PartitionRef("flights", 1)
    busy, quiet = Bell(folder.root, REF), Bell(folder.root, other)
    refs = [REF, other]
    following = Follower(folder.root, refs, safety_s=NOT_BY_ITSELF_S)
    async with following as wakes, asyncio.timeout(WAIT_S):
        for _ in range(2_000):  # No await, so nobody drains: more than any kernel queues.
            busy.ring()
        quiet.ring()
        assert await anext(wakes) == {REF, other}
    busy.close()
    quiet.close()


async def test_a_follower_that_joins_within_the_clocks_grain_is_found(folder: DataFolder) -> None:
    """File times move in steps of milliseconds: a second change may leave the same time."""
    bell, links = Bell(folder.root, REF), bell_directory(folder.root) / _digest(str(REF))
    async with Follower(folder.root, [REF]), asyncio.timeout(WAIT_S):
        same_ns = time.time_ns()
        os.utime(links, ns=(same_ns, same_ns))
        bell.ring()
        async with Follower(folder.root, [REF], safety_s=NOT_BY_ITSELF_S) as late:
            os.utime(links, ns=(same_ns, same_ns))
            bell.ring()
            assert await anext(late) == {REF}
    bell.close()


async def test_a_directory_that_others_can_write_is_not_trusted(folder: DataFolder) -> None:
    base = bell_directory(folder.root)
    base.mkdir(mode=0o700)
    base.chmod(0o777)
    try:
        with pytest.raises(DataFolderError, match="open to others; remove it"):
            async with EmbeddedLogReader(folder).follow([REF]):
                pass
        assert list(base.iterdir()) == []
    finally:
        base.rmdir()


async def test_a_follower_that_never_listens_doesnt_hold_the_writer(folder: DataFolder) -> None:
    reader, writer = EmbeddedLogReader(folder), EmbeddedLogWriter(folder)
    await writer.open(REF, epoch=1)
    script = (
        "import asyncio, sys, pathlib\n"
        "from headgate.adapters.embedded.log.doorbell import Follower\n"
        "from headgate.model.event import PartitionRef\n"
        "async def main():\n"
        "    async with Follower(pathlib.Path(sys.argv[1]), [PartitionRef('flights', 0)]):\n"
        "        print('linked', flush=True)\n"
        "        sys.stdin.read()\n"
        "asyncio.run(main())\n"
    )
    deaf = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", script, str(folder.root)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert deaf.stdout is not None
    assert await deaf.stdout.readline() == b"linked\n"
    async with reader.follow([REF]) as wakes, asyncio.timeout(30):
        for number in range(100):
            await append(writer, f"e{number}")
            while (await reader.extent(REF)).head <= number:
                await anext(wakes)
    assert deaf.stdin is not None
    deaf.stdin.close()
    assert await deaf.wait() == 0
    await writer.close()
