"""Calls that come in company leave together; one that comes alone leaves at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.group_commit import QUIET_TURNS, TURNS_MAX, Gathering, Leaving
from headgate.adapters.embedded.log.partition_file import PartitionFile
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.adapters.log.appending import AppendRequest, Outcome
from headgate.model.event import Event, PartitionRef
from headgate.ports.log import Appended

SETTLED_TURNS = QUIET_TURNS + 2


class Thread:
    def __init__(self, *, in_company: bool) -> None:
        self.in_company = in_company
        self.handed_over = 0

    def hand_over(self) -> None:
        self.handed_over += 1


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_call_that_comes_alone_leaves_at_once() -> None:
    gathering, thread = Gathering(asyncio.get_running_loop()), Thread(in_company=False)
    gathering.add(thread)
    assert thread.handed_over == 1
    await turns(SETTLED_TURNS)
    assert thread.handed_over == 1


async def test_calls_in_company_leave_when_no_more_come() -> None:
    gathering, thread = Gathering(asyncio.get_running_loop()), Thread(in_company=True)
    for _ in range(5):
        gathering.add(thread)
        await turns(QUIET_TURNS - 1)
        assert thread.handed_over == 0
    await turns(SETTLED_TURNS)
    assert thread.handed_over == 1


async def test_what_is_gathered_leaves_even_if_the_loop_is_never_quiet() -> None:
    gathering, thread = Gathering(asyncio.get_running_loop()), Thread(in_company=True)
    for _ in range(3 * (TURNS_MAX + 1)):
        gathering.add(thread)
        await turns(1)
    assert thread.handed_over in (2, 3)


async def test_threads_leave_together_and_once() -> None:
    gathering = Gathering(asyncio.get_running_loop())
    threads = [Thread(in_company=True), Thread(in_company=False)]
    for thread in threads:
        gathering.add(thread)
        gathering.add(thread)
    await turns(SETTLED_TURNS)
    assert [thread.handed_over for thread in threads] == [1, 1]
    gathering.add(threads[0])
    await turns(SETTLED_TURNS)
    assert [thread.handed_over for thread in threads] == [2, 1]


async def test_an_append_is_in_company_when_the_last_commit_was_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, in_company, ref = list[int](), list[bool](), PartitionRef("flights", 0)
    committing, may_commit = threading.Event(), threading.Event()
    append_to_file, add = PartitionFile.append, Gathering.add

    def counted(file: PartitionFile, requests: Sequence[AppendRequest]) -> list[Outcome]:
        committing.set()
        assert may_commit.wait(30)
        commits.append(len(requests))
        return append_to_file(file, requests)

    def noted(gathering: Gathering, thread: Leaving) -> None:
        in_company.append(thread.in_company)
        add(gathering, thread)

    writer = EmbeddedLogWriter(DataFolder.open(tmp_path / "data"))
    await writer.open(ref, epoch=1)
    monkeypatch.setattr(PartitionFile, "append", counted)
    monkeypatch.setattr(Gathering, "add", noted)

    def append(name: str) -> asyncio.Future[list[Appended]]:
        return writer.append(ref, [Event(name, b"{}")], version=1, now_ms=0)

    first = append("a")
    assert await asyncio.to_thread(committing.wait, 10)
    behind_it = [append(name) for name in "bcd"]
    may_commit.set()
    await asyncio.gather(first, *behind_it)
    await asyncio.gather(append("e"), append("f"))
    await append("g")
    await append("h")
    assert commits == [1, 3, 2, 1, 1]
    assert in_company == [False, False, False, False, True, True, True, False]
    await writer.close()
