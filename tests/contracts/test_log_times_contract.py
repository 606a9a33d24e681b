"""Where a time begins in a log, on every store: ports/log.py, `first_since`."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from headgate.adapters.log.times import APART_MS, new_marks
from headgate.model.event import Event, PartitionRef
from headgate.ports.log import LogWriter, Retention
from tests.contracts.stores import Opened

REF = PartitionRef("flights", 0)


async def append(writer: LogWriter, seqs: range, *, now_ms: int) -> None:
    events = [Event(f"e{seq}", b"{}") for seq in seqs]
    await writer.append(REF, events, version=1, now_ms=now_ms)


async def test_a_time_begins_with_the_first_record_that_is_not_older(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    assert await reader.first_since(REF, 0) == 1, "nothing is there yet"
    await writer.open(REF, epoch=1)
    assert await reader.first_since(REF, 0) == 1
    for second in range(5):
        await append(writer, range(2 * second, 2 * second + 1), now_ms=1_000 * second)
        await append(writer, range(2 * second + 1, 2 * second + 2), now_ms=1_000 * second + 400)
    asked = {0: 1, 1: 2, 400: 2, 401: 3, 1_000: 3, 3_399: 8, 4_000: 9, 4_400: 10, 4_401: 11}
    assert {at: await reader.first_since(REF, at) for at in asked} == asked


async def test_who_opens_it_anew_goes_on_with_the_marks(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await append(writer, range(1, 2), now_ms=9_000)
    later = logs.writer()
    await later.open(REF, epoch=2)
    await append(later, range(2, 3), now_ms=3_000)
    await append(later, range(3, 4), now_ms=9_500)
    await append(later, range(4, 5), now_ms=20_000)
    asked = {3_000: 1, 9_001: 3, 9_500: 3, 9_501: 4, 20_001: 5}
    assert {at: await reader.first_since(REF, at) for at in asked} == asked


@pytest.mark.parametrize("seed", range(4))
async def test_it_is_what_a_look_at_every_record_finds(logs: Opened, seed: int) -> None:
    """However clocks jump, owners change and retention takes what is old."""
    chance = random.Random(seed)
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    epoch, settled, clock_ms, number = 1, 0, 50_000, 0
    for _ in range(60):
        clock_ms += chance.choice([0, 1, 300, 999, 1_000, 1_700, 40_000, -200, -5_000, -60_000])
        count = chance.randint(1, 3)
        await append(writer, range(number, number + count), now_ms=clock_ms)
        number += count
        if chance.random() < 0.15:
            epoch += 1
            writer = logs.writer() if chance.random() < 0.5 else writer
            await writer.open(REF, epoch=epoch)
        if chance.random() < 0.15:
            settled = chance.randint(settled, number)
            await writer.retain(
                REF, Retention(max_age_ms=20_000), settled=settled, ids_ms=1, now_ms=clock_ms
            )
    records = await reader.read(REF, after_seq=0, limit=1_000)
    times = {one.time_ms for one in records}
    for at in sorted(times | {one + 1 for one in times} | {0, 10**9}):
        naive = next((one.seq for one in records if one.time_ms >= at), number + 1)
        assert await reader.first_since(REF, at) == naive


async def test_a_topic_that_was_deleted_has_no_times(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await append(writer, range(3), now_ms=90_000)
    await writer.drop_records(REF, epoch=2)
    await writer.open(REF, epoch=3)
    await append(writer, range(3, 5), now_ms=5_000)
    assert await reader.first_since(REF, 1) == 4
    assert await reader.first_since(REF, 6_000) == 6


def test_marks_are_apart_and_in_order() -> None:
    appended = [(0, 1), (999, 2), (1_000, 3), (500, 4), (1_999, 5), (9_000, 6)]
    marks = new_marks(None, appended)
    assert marks == [(0, 1), (1_000, 3), (9_000, 6)]
    assert new_marks(0, appended) == marks[1:]
    assert all(after[0] - before[0] >= APART_MS for before, after in pairwise(marks))
