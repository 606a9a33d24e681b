"""What every log store promises: ports/log.py, word for word."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.errors import Fenced, InvalidRequest, NotNow
from headgate.model.event import Event, PartitionRef, Record
from headgate.ports.log import (
    READ_BYTES,
    Appended,
    Extent,
    LogReader,
    LogWriter,
    Retention,
    may_have_more,
)
from tests.contracts.stores import SAFETY_S, Opened

REF = PartitionRef("flights", 0)
OTHER = PartitionRef("flights", 1)


def events(*ids: str) -> list[Event]:
    return [Event(event_id, f'{{"id":"{event_id}"}}'.encode()) for event_id in ids]


async def append(writer: LogWriter, *ids: str, ref: PartitionRef = REF) -> list[Appended]:
    return await writer.append(ref, events(*ids), version=1, now_ms=1_000)


async def everything(reader: LogReader, ref: PartitionRef = REF) -> list[Record]:
    return await reader.read(ref, after_seq=0, limit=1_000_000)


def names(records: Sequence[Record]) -> list[tuple[int, str]]:
    return [(record.seq, record.event_id) for record in records]


async def test_a_record_comes_back_with_every_field(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=3, version=4)
    full = Event("e1", b'{"a": "\xc3\xa4"}', "k\u00e4y", "update", "planes", b"{}", "lsn:7")
    bare = Event("e2", b"null")
    await writer.append(REF, [full, bare], version=4, now_ms=99)
    assert await everything(reader) == [
        Record(
            "flights",
            0,
            1,
            4,
            "e1",
            "k\u00e4y",
            "planes",
            "update",
            full.document,
            b"{}",
            "lsn:7",
            99,
        ),
        Record("flights", 0, 2, 4, "e2", None, "", "insert", b"null", None, None, 99),
    ]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({}, id="all alike"),
        pytest.param({"op": "delete"}, id="another op"),
        pytest.param({"collection": "trains"}, id="another collection"),
        pytest.param({"earlier": b"{}"}, id="the document before"),
        pytest.param({"source": "lsn:7"}, id="a source"),
        pytest.param({"headers": b'{"a":"b"}'}, id="headers"),
        pytest.param({"key": None}, id="no key"),
    ],
)
@pytest.mark.parametrize("count", [1, 3, 700])
async def test_records_come_back_whatever_they_have_in_common(
    logs: Opened, count: int, odd: dict[str, Any]
) -> None:
    """A store may write what all share once: one that differs, the last, shares nothing."""
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    alike = [Event(f"e{n}", b"{}", f"k{n}", "update", "planes") for n in range(count)]
    handed_in = [*alike[:-1], replace(alike[-1], **odd)]
    await writer.append(REF, handed_in, version=1, now_ms=5)
    await writer.append(REF, events("next"), version=1, now_ms=6)
    fields = Event.__struct_fields__
    found = [Event(**{one: getattr(r, one) for one in fields}) for r in await everything(reader)]
    assert found == [*handed_in, *events("next")]


async def test_a_record_is_the_same_however_often_it_is_read(logs: Opened) -> None:
    """Who has read it knows the log by it, also after it was opened anew."""
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    event = Event("a", b'{"x":1.50}', "k", "update", "c", earlier=b"{}", source="s")
    await writer.append(REF, [event, Event("b", b"{}")], version=1, now_ms=5)
    known = await everything(reader)
    await writer.open(REF, epoch=2, version=2)
    await writer.append(REF, [Event("c", b"{}")], version=2, now_ms=6)
    for record in known:
        for other in (reader, logs.reader()):
            assert await other.read(REF, after_seq=record.seq - 1, limit=1) == [record]


async def test_seq_is_dense_from_1_however_many_append_at_once(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)

    async def caller(number: int) -> list[tuple[int, str]]:
        mine: list[tuple[int, str]] = []
        for turn in range(10):
            ids = [f"{number}-{turn}-{part}" for part in range(1 + turn * 9)]
            answers = await append(writer, *ids)
            seqs = [answer.seq for answer in answers]
            assert seqs == list(range(seqs[0], seqs[0] + len(ids))), "a request stays together"
            mine += zip(seqs, ids, strict=True)
        return mine

    answered = [pair for mine in await asyncio.gather(*map(caller, range(8))) for pair in mine]
    assert names(await everything(reader)) == sorted(answered)
    assert [seq for seq, _ in sorted(answered)] == list(range(1, len(answered) + 1))


async def test_partitions_count_for_themselves(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await asyncio.gather(writer.open(REF, epoch=1), writer.open(OTHER, epoch=1))
    await asyncio.gather(append(writer, "a"), append(writer, "a", ref=OTHER))
    assert names(await everything(reader, REF)) == [(1, "a")]
    assert names(await everything(reader, OTHER)) == [(1, "a")]


@pytest.mark.parametrize(
    ("requests", "answers"),
    [
        pytest.param([["a", "a"]], [[(1, False), (1, True)]], id="inside one request"),
        pytest.param([["a"], ["a"]], [[(1, False)], [(1, True)]], id="the same request again"),
        pytest.param(
            [["a", "b"], ["c", "b", "d"]],
            [[(1, False), (2, False)], [(3, False), (2, True), (4, False)]],
            id="one old among new",
        ),
        pytest.param([["a"], []], [[(1, False)], []], id="nothing asked"),
        pytest.param(
            [["a\0b"], ["a"], ["a\0b"]], [[(1, False)], [(2, False)], [(1, True)]], id="zero"
        ),
    ],
)
async def test_an_event_id_keeps_its_first_seq(
    logs: Opened, requests: list[list[str]], answers: list[list[tuple[int, bool]]]
) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    got = [await append(writer, *ids) for ids in requests]
    assert got == [[Appended(*answer) for answer in answer_list] for answer_list in answers]
    seqs = [record.seq for record in await everything(reader)]
    assert seqs == sorted({seq for answer_list in answers for seq, _ in answer_list})


async def test_the_same_request_many_times_at_once_is_written_once(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    ids = [f"e{number}" for number in range(150)]
    answers = await asyncio.gather(*(append(writer, *ids) for _ in range(8)))
    assert [record.event_id for record in await everything(reader)] == ids
    assert all([one.seq for one in answer] == list(range(1, 151)) for answer in answers)
    assert sum(not one.repeated for answer in answers for one in answer) == 150


@pytest.mark.parametrize("epoch", [1, 2], ids=("the same owner", "the next owner"))
async def test_a_reopened_log_goes_on_and_knows_its_ids(logs: Opened, epoch: int) -> None:
    first = logs.writer()
    assert await first.open(REF, epoch=1) == Extent(1, 0)
    await append(first, "a", "b")
    await first.close()
    second = logs.writer()
    assert await second.open(REF, epoch=epoch) == Extent(1, 2)
    assert await append(second, "b", "c") == [Appended(2, True), Appended(3)]


async def test_a_request_with_one_bad_value_leaves_nothing_and_harms_no_other(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    bad = [*events("x", "y"), Event("lone surrogate \ud800", b"{}")]
    outcomes = await asyncio.gather(
        append(writer, "a"),
        writer.append(REF, bad, version=1, now_ms=1),
        append(writer, "b"),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], InvalidRequest)
    assert outcomes[0] == [Appended(1)]
    assert outcomes[2] == [Appended(2)]
    assert names(await everything(reader)) == [(1, "a"), (2, "b")]
    assert await append(writer, "x") == [Appended(3)]


async def test_a_higher_epoch_fences_the_writer_before_it(logs: Opened) -> None:
    old, new, reader = logs.writer(), logs.writer(), logs.reader()
    await old.open(REF, epoch=4)
    await append(old, "a")
    assert await new.open(REF, epoch=5) == Extent(1, 1)
    for _ in range(2):
        with pytest.raises(Fenced):
            await append(old, "b")
    with pytest.raises(Fenced):
        await old.open(REF, epoch=4)
    assert await append(new, "c") == [Appended(2)]
    assert names(await everything(reader)) == [(1, "a"), (2, "c")]


async def test_the_same_writer_may_open_again_under_a_higher_epoch(logs: Opened) -> None:
    writer = logs.writer()
    await writer.open(REF, epoch=1)
    await writer.open(REF, epoch=7)
    assert await append(writer, "a") == [Appended(1)]


async def test_what_was_never_opened_is_not_appended_to(logs: Opened) -> None:
    writer = logs.writer()
    with pytest.raises(Fenced):
        await append(writer, "a")


async def test_dropped_records_are_gone_and_seq_goes_on(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await append(writer, "a", "b", "c")
    for _ in range(2):
        await writer.drop_records(REF, epoch=2)
        assert await everything(reader) == []
        assert await reader.extent(REF) == Extent(4, 3)
    assert await writer.open(REF, epoch=3) == Extent(4, 3)
    assert await append(writer, "a") == [Appended(4)]
    assert await reader.extent(REF) == Extent(4, 4)


async def test_nothing_is_held_for_what_was_dropped_and_nobody_waits_for_it(logs: Opened) -> None:
    writer = logs.writer()
    await writer.open(OTHER, epoch=1)
    await append(writer, "a", ref=OTHER)
    tasks = len(asyncio.all_tasks())
    for epoch in range(1, 9, 2):
        await writer.open(REF, epoch=epoch)
        await append(writer, "a")
        retaining = asyncio.ensure_future(
            writer.retain(REF, Retention(), settled=0, ids_ms=1, now_ms=1)
        )
        await writer.drop_records(REF, epoch=epoch + 1)
        async with asyncio.timeout(SAFETY_S / 2):
            await asyncio.gather(retaining, return_exceptions=True)
        with pytest.raises(Fenced):
            await writer.retain(REF, Retention(), settled=0, ids_ms=1, now_ms=1)
    assert len(asyncio.all_tasks()) == tasks


async def test_a_drop_fences_whoever_has_the_partition_open(logs: Opened) -> None:
    """Whatever its own writer has had open: that one was overtaken before."""
    deleting, owner, reader = logs.writer(), logs.writer(), logs.reader()
    await deleting.open(REF, epoch=1)
    await owner.open(REF, epoch=2)
    await append(owner, "a")
    await deleting.drop_records(REF, epoch=3)
    for former in (owner, deleting):
        with pytest.raises(Fenced):
            await append(former, "b")
        with pytest.raises(Fenced):
            await former.open(REF, epoch=2)
    assert await everything(reader) == []


async def test_a_drop_that_comes_late_takes_nothing_from_a_topic_that_is_back(
    logs: Opened,
) -> None:
    late, owner, reader = logs.writer(), logs.writer(), logs.reader()
    await owner.open(REF, epoch=4)
    await append(owner, "a")
    with pytest.raises(Fenced) as refused:
        await late.drop_records(REF, epoch=3)
    assert refused.value.epoch == 4
    assert await append(owner, "a", "b") == [Appended(1, repeated=True), Appended(2)]
    assert names(await everything(reader)) == [(1, "a"), (2, "b")]


async def test_what_was_dropped_before_anybody_opened_it_is_not_opened_under_a_lower_epoch(
    logs: Opened,
) -> None:
    """Its owner may have been slow; a topic of the same name would find what it writes then."""
    deleting, slow, reader = logs.writer(), logs.writer(), logs.reader()
    await deleting.drop_records(REF, epoch=2)
    with pytest.raises(Fenced):
        await slow.open(REF, epoch=1)
    assert await reader.extent(REF) == Extent(1, 0)
    assert await slow.open(REF, epoch=3) == Extent(1, 0)
    assert await append(slow, "a") == [Appended(1)]


async def test_records_can_be_dropped_without_opening_the_partition(logs: Opened) -> None:
    first, reader = logs.writer(), logs.reader()
    await first.open(REF, epoch=6)
    await append(first, "a")
    await first.close()
    second = logs.writer()
    await second.drop_records(REF, epoch=7)
    await second.drop_records(OTHER, epoch=7)
    assert await reader.extent(REF) == Extent(2, 1)
    assert await reader.extent(OTHER) == Extent(1, 0)
    with pytest.raises(Fenced):
        await append(second, "b")
    with pytest.raises(Fenced):
        await second.open(REF, epoch=6)


async def test_close_finishes_what_is_queued_and_refuses_what_comes_later(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    queued = [asyncio.ensure_future(append(writer, f"e{number}")) for number in range(50)]
    await asyncio.sleep(0)
    await writer.close()
    assert sorted([one.seq for answer in await asyncio.gather(*queued) for one in answer]) == list(
        range(1, 51)
    )
    assert (await reader.extent(REF)).head == 50
    with pytest.raises(NotNow):
        await append(writer, "late")


async def test_a_caller_that_goes_away_disturbs_nobody(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    gone = asyncio.ensure_future(append(writer, "gone"))
    await asyncio.sleep(0)
    gone.cancel()
    await append(writer, "a")
    found = [record.event_id for record in await everything(reader)]
    assert found in (["gone", "a"], ["a"])


# --- reading -------------------------------------------------------------------------------------


async def test_a_partition_that_nobody_opened_is_empty_and_appears_later(logs: Opened) -> None:
    reader = logs.reader()
    assert await reader.extent(REF) == Extent(1, 0)
    assert await everything(reader) == []
    assert reader.read_arrow(REF, after_seq=0, up_to_seq=9).read_all().num_rows == 0
    writer = logs.writer()
    await writer.open(REF, epoch=1)
    assert await reader.extent(REF) == Extent(1, 0)
    await append(writer, "a")
    assert names(await everything(reader)) == [(1, "a")]


@pytest.mark.parametrize(
    ("after_seq", "limit", "expected"),
    [(0, 3, [1, 2, 3]), (7, 5, [8, 9, 10]), (10, 5, []), (99, 5, []), (0, 0, [])],
)
async def test_read_gives_the_next_records_in_order(
    logs: Opened, after_seq: int, limit: int, expected: list[int]
) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await append(writer, *(f"e{number}" for number in range(10)))
    found = await reader.read(REF, after_seq=after_seq, limit=limit)
    assert [record.seq for record in found] == expected


async def test_a_read_stops_behind_the_record_with_which_it_has_enough_bytes(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    large = READ_BYTES // 4 + 1
    sizes = [10, large, large, large, large, 10, READ_BYTES + 5, 10]
    for number, size in enumerate(sizes):
        event = Event(f"e{number}", b'"' + b"x" * (size - 2) + b'"')
        await writer.append(REF, [event], version=1, now_ms=1_000)
    await writer.append(
        REF, [Event("e8", b"{}", earlier=b'"' + b"x" * READ_BYTES + b'"')], version=1, now_ms=1_000
    )
    await append(writer, "e9")
    found, at = [], 0
    while records := await reader.read(REF, after_seq=at, limit=100):
        at = records[-1].seq
        found.append((len(records), may_have_more(records, 100)))
    assert found == [(5, True), (2, True), (2, True), (1, False)]
    table = reader.read_arrow(REF, after_seq=0, up_to_seq=10).read_all()
    assert table.column("seq").to_pylist() == list(range(1, 11))
    assert len(table.to_batches()) == 4


async def test_arrow_has_the_same_records(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    for start in range(0, 12_000, 1_000):
        await append(writer, *(f"e{number}" for number in range(start, start + 1_000)))
    table = reader.read_arrow(REF, after_seq=5, up_to_seq=11_000).read_all()
    assert table.schema.names == list(Record.__struct_fields__)
    assert max(batch.num_rows for batch in table.to_batches()) <= 10_000
    records = await reader.read(REF, after_seq=5, limit=11_000 - 5)
    assert [Record(**row) for row in table.to_pylist()] == records


async def test_a_reader_never_sees_part_of_a_request(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)

    async def produce() -> None:
        for turn in range(60):
            await append(writer, *(f"{turn}-{part}" for part in range(70)))

    producing = asyncio.ensure_future(produce())
    heads = set()
    while not producing.done():
        head = (await reader.extent(REF)).head
        assert len(await everything(reader)) >= head
        heads.add(head)
        await asyncio.sleep(0)
    await producing
    assert all(head % 70 == 0 for head in heads)
    assert len(heads) > 2


# --- following -----------------------------------------------------------------------------------


async def test_follow_misses_nothing_however_append_and_follow_meet(logs: Opened) -> None:
    """Followers don't look by themselves here: a wake-up that was missed makes the test hang."""
    writer, reader = logs.writer(), logs.reader(safety_s=SAFETY_S)
    await writer.open(REF, epoch=1)
    for turn in range(500):
        async with asyncio.timeout(SAFETY_S / 2):
            appending = asyncio.ensure_future(append(writer, f"e{turn}"))
            if turn % 2:
                await asyncio.sleep(0)
            async with reader.follow([REF, OTHER]) as wakes:
                while not await reader.read(REF, after_seq=turn, limit=1):
                    assert REF in await anext(wakes)
            await appending


async def test_a_follower_is_woken_for_the_partition_that_grew(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader(safety_s=SAFETY_S)
    await asyncio.gather(writer.open(REF, epoch=1), writer.open(OTHER, epoch=1))
    async with reader.follow([REF, OTHER]) as wakes:
        await append(writer, "a", ref=OTHER)
        assert await anext(wakes) == {OTHER}
        await append(writer, "a")
        assert await anext(wakes) == {REF}


async def test_a_follower_that_lags_hears_of_every_partition_that_grew(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader(safety_s=SAFETY_S)
    await asyncio.gather(writer.open(REF, epoch=1), writer.open(OTHER, epoch=1))
    async with reader.follow([REF, OTHER]) as wakes:
        for number in range(50):
            await append(writer, f"e{number}")
        await append(writer, "a", ref=OTHER)
        heard: set[PartitionRef] = set()
        async with asyncio.timeout(SAFETY_S / 2):
            while heard != {REF, OTHER}:
                heard |= await anext(wakes)


async def test_every_partition_is_woken_now_and_then_without_any_append(logs: Opened) -> None:
    reader = logs.reader(safety_s=0.2)
    async with reader.follow([REF, OTHER]) as wakes, asyncio.timeout(SAFETY_S / 2):
        assert await anext(wakes) == {REF, OTHER}


async def test_a_wait_for_a_wake_up_that_is_given_up_loses_none(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader(safety_s=SAFETY_S)
    await writer.open(REF, epoch=1)
    async with reader.follow([REF]) as wakes:
        for number in range(20):
            waiting = asyncio.ensure_future(anext(wakes))
            await append(writer, f"e{number}")
            if waiting.cancel():
                await asyncio.wait([waiting])
                if not waiting.cancelled():
                    continue
                async with asyncio.timeout(SAFETY_S / 2):
                    assert await anext(wakes) == {REF}


async def test_iteration_ends_with_the_follow(logs: Opened) -> None:
    reader = logs.reader()
    async with reader.follow([REF]) as wakes:
        waiting = asyncio.ensure_future(anext(wakes, None))
        await asyncio.sleep(0)
    assert await waiting is None
