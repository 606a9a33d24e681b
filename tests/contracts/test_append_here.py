"""Appending in the caller's thread: the embedded store's short way, next to its usual one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log_reader import EmbeddedLogReader
from headgate.adapters.embedded.log_writer import EmbeddedLogWriter
from headgate.errors import Fenced, InvalidRequest, OutcomeUnknown, Sealed, StaleVersion
from headgate.model.event import Event, PartitionRef
from headgate.ports.log import Appended
from tests.contracts.faulty_disk import faulty_disk
from tests.waiting import until

REF = PartitionRef("flights", 0)


class Log:
    def __init__(self, path: Path) -> None:
        self.folder = DataFolder.open(path / "data")
        self.writer = EmbeddedLogWriter(self.folder)
        self.reader = EmbeddedLogReader(self.folder)

    async def here(self, *ids: str, epoch: int = 1, version: int = 1) -> list[Appended] | None:
        """What was told, by a thread that isn't the loop's; None when nothing was."""
        told: list[list[Appended]] = []
        events = [Event(event_id, b"{}") for event_id in ids]
        await asyncio.to_thread(
            self.writer.append_here,
            REF,
            events,
            epoch=epoch,
            version=version,
            now_ms=1,
            prepare=lambda appended: lambda: told.append(appended),
        )
        return told[0] if told else None

    async def usual(self, *ids: str) -> list[Appended]:
        events = [Event(event_id, b"{}") for event_id in ids]
        return await self.writer.append(REF, events, version=1, now_ms=1)

    async def stored(self) -> list[tuple[int, str]]:
        records = await self.reader.read(REF, after_seq=0, limit=100_000)
        return [(record.seq, record.event_id) for record in records]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """By somebody else, for as long as it takes."""
    intruder = apsw.Connection(str(path))
    intruder.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        intruder.execute("ROLLBACK")
        intruder.close()


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    log = Log(tmp_path)
    yield log
    await log.reader.close()
    await log.writer.close()


async def test_it_is_told_what_is_on_disk_then(log: Log) -> None:
    await log.writer.open(REF, epoch=1)
    seen: list[list[tuple[int, str]]] = []
    loop = asyncio.get_running_loop()

    def told(_appended: list[Appended]) -> None:
        seen.append(asyncio.run_coroutine_threadsafe(log.stored(), loop).result(10))

    await asyncio.to_thread(
        log.writer.append_here,
        REF,
        [Event("a", b"{}")],
        epoch=1,
        version=1,
        now_ms=1,
        prepare=lambda appended: lambda: told(appended),
    )
    assert seen == [[(1, "a")]]


async def test_both_ways_share_one_log_and_its_ids(log: Log) -> None:
    await log.writer.open(REF, epoch=1)
    assert await log.here("a") == [Appended(1)]
    assert await log.usual("b", "a") == [Appended(2), Appended(1, True)]
    assert await log.here("b", "c") == [Appended(2, True), Appended(3)]
    assert await log.stored() == [(1, "a"), (2, "b"), (3, "c")]


async def test_both_ways_at_once_keep_the_log_dense(log: Log) -> None:
    await log.writer.open(REF, epoch=1)

    async def one_way(name: str, *, here: bool) -> list[tuple[int, str]]:
        mine: list[tuple[int, str]] = []
        for number in range(100):
            event_id = f"{name}-{number}"
            appended = await (log.here(event_id) if here else log.usual(event_id))
            if appended is not None:
                mine.append((appended[0].seq, event_id))
        return mine

    ways = [one_way("a", here=True), one_way("b", here=True), one_way("c", here=False)]
    answered = sorted(pair for mine in await asyncio.gather(*ways) for pair in mine)
    assert await log.stored() == answered
    assert [seq for seq, _ in answered] == list(range(1, len(answered) + 1))


async def test_a_follower_is_woken_up(log: Log) -> None:
    await log.writer.open(REF, epoch=1)
    async with log.reader.follow([REF]) as wake_ups:
        assert await anext(wake_ups)  # Whoever begins to follow looks first.
        waiting = asyncio.ensure_future(anext(wake_ups))
        assert await log.here("a") == [Appended(1)]
        async with asyncio.timeout(0.9):  # It looks by itself after a second.
            assert await waiting == {REF}


async def test_nothing_is_written_where_it_isnt_open_under_that_epoch(log: Log) -> None:
    assert await log.here("a") is None
    await log.writer.open(REF, epoch=2)
    assert await log.here("a", epoch=1) is None
    await log.writer.drop_records(REF, epoch=3)
    assert await log.here("a", epoch=2) is None
    assert await log.here("a", epoch=3) is None
    await log.writer.open(REF, epoch=4)
    assert await log.here("a", epoch=4) == [Appended(1)]
    await log.writer.close()
    assert await log.here("b", epoch=4) is None
    assert await log.stored() == [(1, "a")]


async def test_what_must_not_be_written_is_refused_as_usual(log: Log) -> None:
    await log.writer.open(REF, epoch=1, version=2)
    with pytest.raises(StaleVersion):
        await log.here("a", version=1)
    with pytest.raises(InvalidRequest):
        await log.here("\ud800", version=2)
    await log.writer.seal(REF)
    with pytest.raises(Sealed):
        await log.here("a", version=2)
    other = EmbeddedLogWriter(log.folder)
    await other.open(REF, epoch=2, version=2)
    with pytest.raises(Fenced):
        await log.here("a", version=2)
    await other.close()
    assert await log.stored() == []


async def test_whoever_finds_the_file_in_use_for_long_writes_nothing(tmp_path: Path) -> None:
    with faulty_disk() as disk:
        log = Log(tmp_path)
        await log.writer.open(REF, epoch=1)
        disk.stalls_s[str(log.folder.log_file(REF))] = 0.5
        syncs = disk.syncs
        slow = asyncio.ensure_future(log.usual("slow"))
        await until(lambda: disk.syncs > syncs)
        assert await log.here("a") is None
        assert await slow == [Appended(1)]
        assert await log.here("a") == [Appended(2)]
        await log.reader.close()
        await log.writer.close()


async def test_a_second_try_of_what_is_in_doubt_is_in_doubt_too(tmp_path: Path) -> None:
    with faulty_disk() as disk:
        log = Log(tmp_path)
        await log.writer.open(REF, epoch=1)
        disk.sync_fails = True
        with pytest.raises(OutcomeUnknown):
            await log.here("a")
        disk.sync_fails = False
        with (
            locked(log.folder.log_file(REF)),
            pytest.raises(OutcomeUnknown, match="isn't known either"),
        ):
            await log.usual("a")
        assert await log.usual("a") == [Appended(1)]
        assert await log.stored() == [(1, "a")]
        await log.reader.close()
        await log.writer.close()
