"""What every log store promises to connectors: `take_in` and `taken_in` of ports/log.py."""

from __future__ import annotations

import asyncio

import pytest

from headgate.errors import ConnectorFenced, Fenced, IntakeGap, InvalidRequest, Sealed, StaleVersion
from headgate.model.event import Event, PartitionRef
from headgate.model.intake import IntakeMark, IntakePosition
from headgate.ports.log import LogReader, LogWriter, Taken
from tests.contracts.stores import Opened

REF = PartitionRef("orders", 0)
OTHER = PartitionRef("orders", 1)


def mark(after: str = "", upto: str = "", *, epoch: int = 1, **more: object) -> IntakeMark:
    values = {"connector": "shop", "epoch": epoch, "beginning": 1, "partitions": 1} | more
    return IntakeMark(after=after, upto=upto, **values)  # type: ignore[arg-type]


def changes(*positions: str) -> list[Event]:
    return [
        Event(f"e{at}", b'{"at":"%s"}' % at.encode(), "k", "update", "orders", b"{}", at)
        for at in positions
    ]


async def take_in(
    writer: LogWriter, of: IntakeMark, *positions: str, version: int = 1, ref: PartitionRef = REF
) -> Taken:
    return await writer.take_in(ref, of, changes(*positions), version=version, now_ms=7)


async def sources(reader: LogReader, ref: PartitionRef = REF) -> list[tuple[int, str | None]]:
    records = await reader.read(ref, after_seq=0, limit=1_000)
    return [(record.seq, record.source) for record in records]


async def test_records_and_position_come_together(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=3)
    assert await reader.taken_in(REF, "shop") == []
    await take_in(writer, mark(upto="a"))
    assert await take_in(writer, mark("a", "c"), "b", "c") == Taken(2, 2, "c")
    assert await sources(reader) == [(1, "b"), (2, "c")]
    assert await reader.taken_in(REF, "shop") == [IntakePosition(1, 1, 1, 1, "c")]
    assert await reader.taken_in(REF, "another") == []
    assert await reader.taken_in(OTHER, "shop") == []


async def test_a_record_keeps_every_field(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    event = Event("\u00e4", b"{}", None, "drop", "c\u00e4", None, "b\x00c")
    await writer.take_in(REF, mark(upto="c"), [event], version=1, now_ms=9)
    [record] = await reader.read(REF, after_seq=0, limit=2)
    assert (record.event_id, record.key, record.op, record.collection) == (
        "\u00e4",
        None,
        "drop",
        "c\u00e4",
    )
    assert (record.source, record.time_ms, record.version) == ("b\x00c", 9, 1)


async def test_handing_in_the_same_again_changes_nothing(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await take_in(writer, mark(upto="a"))
    await take_in(writer, mark("a", "c"), "b", "c")
    assert await take_in(writer, mark("a", "c"), "b", "c") == Taken(0, 2, "c")
    assert await take_in(writer, mark("a", "b"), "b") == Taken(0, 2, "c")
    assert await sources(reader) == [(1, "b"), (2, "c")]


async def test_what_overlaps_is_left_out(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await take_in(writer, mark(upto="b"), "b")
    assert await take_in(writer, mark("", "d"), "a", "b", "c", "d") == Taken(2, 3, "d")
    assert await sources(reader) == [(1, "b"), (2, "c"), (3, "d")]


async def test_a_batch_that_leaves_something_out_is_refused(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    with pytest.raises(IntakeGap) as first:
        await take_in(writer, mark("a", "b"), "b")
    assert first.value.details["position"] == ""
    await take_in(writer, mark(upto="b"), "b")
    with pytest.raises(IntakeGap) as second:
        await take_in(writer, mark("c", "d"), "d")
    assert second.value.details["position"] == "b"
    assert await sources(reader) == [(1, "b")]


async def test_a_change_behind_the_end_of_its_batch_is_refused(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    with pytest.raises(InvalidRequest):
        await take_in(writer, mark(upto="b"), "b", "c")
    assert await sources(reader) == []


async def test_a_claim_fences_lower_epochs_and_says_nothing_of_positions(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await take_in(writer, mark(upto="b", epoch=1), "b")
    assert await take_in(writer, mark(epoch=2)) == Taken(0, 1, "b")
    with pytest.raises(ConnectorFenced) as refused:
        await take_in(writer, mark("b", "c", epoch=1), "c")
    assert refused.value.epoch == 2
    with pytest.raises(ConnectorFenced):
        await take_in(writer, mark(epoch=1))
    assert await reader.taken_in(REF, "shop") == [IntakePosition(1, 1, 2, 1, "b")]
    await take_in(writer, mark("b", "c", epoch=2), "c")


async def test_another_beginning_begins_anew(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await take_in(writer, mark(upto="m"), "m")
    with pytest.raises(IntakeGap):
        await take_in(writer, mark("m", "n", epoch=2, beginning=2), "n")
    await take_in(writer, mark(upto="c", epoch=2, beginning=2), "b", "c")
    with pytest.raises(ConnectorFenced):
        await take_in(writer, mark("m", "n", epoch=2, beginning=1), "n")
    assert await sources(reader) == [(1, "m"), (2, "b"), (3, "c")]
    assert await reader.taken_in(REF, "shop") == [IntakePosition(1, 1, 2, 2, "c")]


async def test_where_a_former_beginning_ended_is_known_until_the_next_has_begun(
    logs: Opened,
) -> None:
    """Its reader may die before that, and the next one has to tell what is left out."""
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await take_in(writer, mark(upto="m"), "m")
    await take_in(writer, mark(epoch=2, beginning=2))
    assert await reader.taken_in(REF, "shop") == [IntakePosition(1, 1, 2, 1, "m")]
    with pytest.raises(ConnectorFenced):
        await take_in(writer, mark("m", "n"), "n")
    await take_in(writer, mark(upto="c", epoch=2, beginning=2), "b")
    assert await reader.taken_in(REF, "shop") == [IntakePosition(1, 1, 2, 2, "c")]


async def test_where_history_is_lost_nothing_of_that_beginning_follows(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await take_in(writer, mark(upto="b"), "b")
    lost = Event("lost", b"null", None, "lost", "", None, "b")
    for added in (1, 0):
        ends = mark("b", "b", ends=True)
        taken = await writer.take_in(REF, ends, [lost], version=1, now_ms=7)
        assert taken == Taken(added, 2, "b")
    with pytest.raises(IntakeGap):
        await take_in(writer, mark("b", "c"), "c")
    assert await reader.taken_in(REF, "shop") == [IntakePosition(1, 1, 1, 1, "b", True)]
    await take_in(writer, mark(upto="x", epoch=2, beginning=2), "x")
    assert await sources(reader) == [(1, "b"), (2, "b"), (3, "x")]


async def test_positions_are_kept_by_version_until_they_are_forgotten(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await take_in(writer, mark(upto="b"), "b")
    await writer.open(REF, epoch=1, version=2)
    with pytest.raises(StaleVersion):
        await take_in(writer, mark("b", "c"), "c")
    await take_in(writer, mark(upto="d", partitions=3), "d", version=2)
    former, present = IntakePosition(1, 1, 1, 1, "b"), IntakePosition(2, 3, 1, 1, "d")
    assert await reader.taken_in(REF, "shop") == [former, present]
    await take_in(writer, mark("d", "d", partitions=3, forgets_below=2), version=2)
    assert await reader.taken_in(REF, "shop") == [present]


async def test_what_refuses_appends_refuses_connectors(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    with pytest.raises(Fenced):
        await take_in(writer, mark(upto="a"), "a")
    await writer.open(REF, epoch=1)
    await writer.open(REF, epoch=1, sealed=True)
    with pytest.raises(Sealed):
        await take_in(writer, mark(upto="a"), "a")
    await logs.writer().open(REF, epoch=2)
    with pytest.raises(Fenced):
        await take_in(writer, mark(upto="a"), "a")
    assert await sources(reader) == []


async def test_what_a_deleted_topic_had_taken_in_is_forgotten(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await take_in(writer, mark(upto="b"), "b")
    await writer.drop_records(REF, epoch=2)
    assert await reader.taken_in(REF, "shop") == []
    await writer.open(REF, epoch=3)
    assert await take_in(writer, mark(upto="a"), "a") == Taken(1, 2, "a")


async def test_others_append_in_between(logs: Opened) -> None:
    """Ids of producers and those of changes know nothing of each other."""
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    produced = Event("ea", b"{}", "k")
    await take_in(writer, mark(upto="0"))
    appended, taken = await asyncio.gather(
        writer.append(REF, [produced], version=1, now_ms=1),
        take_in(writer, mark("0", "b"), "a", "b"),
    )
    again = await writer.append(REF, [produced], version=1, now_ms=1)
    assert [one.seq for one in again] == [one.seq for one in appended]
    assert taken.added == 2
    seqs = [seq for seq, _ in await sources(reader)]
    assert seqs == [1, 2, 3]


async def test_followers_hear_of_it(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    async with reader.follow([REF]) as wake_ups, asyncio.timeout(30):
        await take_in(writer, mark(upto="a"), "a")
        assert REF in await anext(wake_ups)


async def test_many_at_once_are_all_written(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    positions = [f"{number:06d}" for number in range(1, 3_001)]
    taken = await take_in(writer, mark(upto=positions[-1]), *positions)
    assert taken == Taken(3_000, 3_000, "003000")
    records = await reader.read(REF, after_seq=2_998, limit=10)
    assert [record.source for record in records] == ["002999", "003000"]
