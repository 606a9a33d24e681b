"""What every log store promises about versions, seals, idempotency keys and retention."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headgate.errors import Fenced, Sealed, StaleVersion
from headgate.model.event import Event, PartitionRef
from headgate.ports.log import Appended, Extent, LogReader, LogWriter, Retention
from tests.contracts.stores import Opened

REF = PartitionRef("flights", 0)
DAY_MS = 86_400_000
FOR_EVER_MS = 365 * DAY_MS


async def append(
    writer: LogWriter, *ids: str, version: int = 1, now_ms: int = 0, size: int = 2
) -> list[Appended]:
    events = [Event(event_id, b'"' + b"x" * (size - 2) + b'"') for event_id in ids]
    return await writer.append(REF, events, version=version, now_ms=now_ms)


async def found(reader: LogReader) -> list[str]:
    return [record.event_id for record in await reader.read(REF, after_seq=0, limit=1_000_000)]


async def retained(
    writer: LogWriter,
    *,
    settled: int,
    now_ms: int = 0,
    ids_ms: int = FOR_EVER_MS,
    max_age_ms: int | None = None,
    max_bytes: int | None = None,
    past_settled: bool = False,
) -> Extent:
    kept = Retention(max_age_ms=max_age_ms, max_bytes=max_bytes, past_settled=past_settled)
    return await writer.retain(REF, kept, settled=settled, ids_ms=ids_ms, now_ms=now_ms)


# --- versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("came", [1, 3], ids=["older", "newer"])
async def test_only_the_stored_version_appends(logs: Opened, came: int) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1, version=2)
    with pytest.raises(StaleVersion) as refused:
        await append(writer, "a", version=came)
    assert refused.value.details["version"] == 2
    assert await append(writer, "b", version=2) == [Appended(1)]
    assert await found(reader) == ["b"]


async def test_a_stale_request_harms_no_other_of_its_group(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1, version=2)
    outcomes = await asyncio.gather(
        append(writer, "a", version=2),
        append(writer, "x", "y", version=1),
        append(writer, "b", version=2),
        return_exceptions=True,
    )
    assert list(outcomes[::2]) == [[Appended(1)], [Appended(2)]]
    assert isinstance(outcomes[1], StaleVersion)
    assert await found(reader) == ["a", "b"]


async def test_opening_raises_the_version_and_never_lowers_it(logs: Opened) -> None:
    writer = logs.writer()
    for opened, stored in [(1, 1), (4, 4), (2, 4)]:
        await writer.open(REF, epoch=1, version=opened)
        with pytest.raises(StaleVersion) as refused:
            await append(writer, "a", version=99)
        assert refused.value.details["version"] == stored


# --- seals ---------------------------------------------------------------------------------------


async def test_a_sealed_partition_takes_nothing_until_it_is_unsealed(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await append(writer, "a", "b")
    assert await writer.open(REF, epoch=1, sealed=True) == Extent(1, 2)
    assert await writer.open(REF, epoch=1, sealed=True) == Extent(1, 2)
    with pytest.raises(Sealed):
        await append(writer, "c")
    assert await reader.extent(REF) == Extent(1, 2)
    await writer.open(REF, epoch=1, version=2)
    with pytest.raises(StaleVersion):
        await append(writer, "c", version=1)
    assert await append(writer, "c", version=2) == [Appended(3)]


async def test_nothing_is_appended_behind_the_head_it_was_sealed_at(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    appends = [asyncio.ensure_future(append(writer, f"e{number}")) for number in range(40)]
    await asyncio.sleep(0)
    sealing = asyncio.ensure_future(writer.open(REF, epoch=1, sealed=True))
    late = [asyncio.ensure_future(append(writer, f"late{number}")) for number in range(40)]
    outcomes = await asyncio.gather(*appends, *late, return_exceptions=True)
    head = (await sealing).head
    seqs = [one.seq for outcome in outcomes if isinstance(outcome, list) for one in outcome]
    assert max(seqs) == len(seqs) == head == (await reader.extent(REF)).head
    assert {type(outcome) for outcome in outcomes} == {list, Sealed}


async def test_a_seal_outlives_its_writer_and_the_next_epoch(logs: Opened) -> None:
    first = logs.writer()
    await first.open(REF, epoch=1, sealed=True)
    await first.close()
    second = logs.writer()
    await second.open(REF, epoch=2, sealed=True)
    with pytest.raises(Sealed):
        await append(second, "a")
    await second.open(REF, epoch=2)
    assert await append(second, "a") == [Appended(1)]


async def test_dropped_records_take_seal_and_version_with_them(logs: Opened) -> None:
    writer = logs.writer()
    await writer.open(REF, epoch=1, version=3)
    await append(writer, "a", version=3)
    await writer.open(REF, epoch=1, version=3, sealed=True)
    await writer.drop_records(REF, epoch=2)
    await writer.open(REF, epoch=3, version=1)
    assert await append(writer, "a") == [Appended(2)]


OWNERS_WORK: dict[str, Callable[[LogWriter], Awaitable[object]]] = {
    "append": lambda writer: append(writer, "x"),
    "seal": lambda writer: writer.open(REF, epoch=1, sealed=True),
    "retain": lambda writer: retained(writer, settled=9, max_bytes=1),
    "move on": lambda writer: writer.move_on(REF, from_head=2, to_head=9),
}


@pytest.mark.parametrize("work", OWNERS_WORK.values(), ids=OWNERS_WORK)
async def test_a_former_owner_changes_nothing(
    logs: Opened, work: Callable[[LogWriter], Awaitable[object]]
) -> None:
    former, owner, reader = logs.writer(), logs.writer(), logs.reader()
    await former.open(REF, epoch=1)
    await append(former, "a", "b")
    await owner.open(REF, epoch=2)
    with pytest.raises(Fenced):
        await work(former)
    with pytest.raises(Fenced):
        await work(logs.writer())
    assert await append(owner, "c") == [Appended(3)]
    assert await found(reader) == ["a", "b", "c"]


# --- what became of a write ----------------------------------------------------------------------


async def test_find_tells_the_seqs_of_those_that_are_there(logs: Opened) -> None:
    writer = logs.writer()
    assert await writer.find(REF, ["a"]) == {}
    await writer.open(REF, epoch=1)
    many = [f"e{number}" for number in range(300)]
    await append(writer, "a\0b", *many)
    asked = ["a\0b", "missing", *many[::2]]
    assert await writer.find(REF, asked) == {"a\0b": 1} | {
        event_id: number for number, event_id in enumerate(many, start=2) if number % 2 == 0
    }
    assert await writer.find(REF, []) == {}


async def test_find_waits_for_the_writes_before_it(logs: Opened) -> None:
    writer = logs.writer()
    await writer.open(REF, epoch=1)
    appends = [asyncio.ensure_future(append(writer, f"e{number}")) for number in range(30)]
    await asyncio.sleep(0)
    there = await writer.find(REF, [f"e{number}" for number in range(30)])
    assert sorted(there.values()) == list(range(1, 31))
    await asyncio.gather(*appends)


# --- a log whose history is lost -----------------------------------------------------------------


async def test_a_log_that_is_moved_on_gives_out_no_seq_up_to_there(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    assert await writer.move_on(REF, from_head=0, to_head=90) == Extent(91, 90)
    assert await reader.extent(REF) == Extent(91, 90)
    assert await append(writer, "a", "b") == [Appended(91), Appended(92)]
    assert await reader.extent(REF) == Extent(91, 92)
    await writer.close()
    assert await logs.writer().open(REF, epoch=2) == Extent(91, 92)


async def test_what_is_left_of_a_log_that_is_moved_on_stays(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await append(writer, "a", "b")
    assert await writer.move_on(REF, from_head=2, to_head=90) == Extent(1, 90)
    assert await append(writer, "a", "c") == [Appended(1, repeated=True), Appended(91)]
    records = await reader.read(REF, after_seq=0, limit=10)
    assert [(one.seq, one.event_id) for one in records] == [(1, "a"), (2, "b"), (91, "c")]
    assert (await retained(writer, settled=90, max_age_ms=0, now_ms=1)).earliest == 91


@pytest.mark.parametrize(
    ("from_head", "to_head"),
    [pytest.param(1, 90, id="it has grown meanwhile"), pytest.param(2, 1, id="never back")],
)
async def test_a_log_that_is_not_where_it_is_thought_to_be_stays(
    logs: Opened, from_head: int, to_head: int
) -> None:
    writer = logs.writer()
    await writer.open(REF, epoch=1)
    await append(writer, "a", "b")
    assert await writer.move_on(REF, from_head=from_head, to_head=to_head) == Extent(1, 2)
    assert await append(writer, "c") == [Appended(3)]


# --- retention -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_age_ms", "settled", "past_settled", "earliest"),
    [
        pytest.param(None, 9, False, 1, id="no limit"),
        pytest.param(30, 9, False, 6, id="younger than 30 of 80"),
        pytest.param(80, 9, False, 1, id="exactly as old is kept"),
        pytest.param(0, 9, False, 9, id="only the youngest"),
        pytest.param(30, 3, False, 4, id="never past settled"),
        pytest.param(30, 0, False, 1, id="nothing settled"),
        pytest.param(30, 3, True, 6, id="past settled when configured"),
    ],
)
async def test_records_go_by_age(
    logs: Opened, max_age_ms: int | None, settled: int, past_settled: bool, earliest: int
) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    for number in range(9):
        await append(writer, f"e{number}", now_ms=number * 10)
    kept = Extent(earliest, 9)
    for _ in range(2):
        assert kept == await retained(
            writer,
            settled=settled,
            now_ms=80,
            max_age_ms=max_age_ms,
            past_settled=past_settled,
        )
    assert await reader.extent(REF) == kept
    assert await found(reader) == [f"e{number}" for number in range(earliest - 1, 9)]
    assert await append(writer, "next") == [Appended(10)]


@pytest.mark.parametrize(
    ("max_bytes", "settled", "past_settled", "kept"),
    [
        pytest.param(20_000, 9, False, 9, id="room enough"),
        pytest.param(5_600, 9, False, 5, id="room for five"),
        pytest.param(1, 9, False, 0, id="room for none"),
        pytest.param(1, 4, False, 5, id="never past settled"),
        pytest.param(5_600, 1, True, 5, id="past settled when configured"),
    ],
)
async def test_records_go_by_size(
    logs: Opened, max_bytes: int, settled: int, past_settled: bool, kept: int
) -> None:
    """Each record of 1,000 bytes counts 1,100."""
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    for number in range(9):
        await append(writer, f"e{number}", size=1_000)
    for _ in range(2):
        extent = await retained(
            writer, settled=settled, max_bytes=max_bytes, past_settled=past_settled
        )
        assert extent == Extent(10 - kept, 9)
    assert len(await found(reader)) == kept


async def test_repeats_and_dropped_records_count_nothing(logs: Opened) -> None:
    writer = logs.writer()
    await writer.open(REF, epoch=1)
    for _ in range(5):
        await append(writer, "same", size=1_000)
    assert await retained(writer, settled=9, max_bytes=1_200) == Extent(1, 1)
    await writer.drop_records(REF, epoch=2)
    await writer.open(REF, epoch=3)
    await append(writer, "new", size=1_000)
    assert await retained(writer, settled=9, max_bytes=1_200) == Extent(2, 2)


async def test_more_than_one_turns_worth_is_dropped_while_appends_go_on(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    for turn in range(12):
        await append(writer, *(f"{turn}-{number}" for number in range(1_000)), now_ms=0)
    retaining = asyncio.ensure_future(
        retained(writer, settled=11_990, max_age_ms=1, ids_ms=5, now_ms=10)
    )
    during = [await append(writer, f"during{number}", now_ms=10) for number in range(5)]
    assert await retaining == Extent(11_991, 12_005)
    assert [one.seq for [one] in during] == list(range(12_001, 12_006))
    assert len(await found(reader)) == 15
    assert list(await writer.find(REF, ["0-0", "11-999", "during0"])) == ["during0"]


async def test_idempotency_keys_go_by_time_with_or_without_their_records(logs: Opened) -> None:
    writer, reader = logs.writer(), logs.reader()
    await writer.open(REF, epoch=1)
    await append(writer, "old", now_ms=100)
    await append(writer, "young", now_ms=200)
    await retained(writer, settled=2, max_bytes=1, now_ms=250, ids_ms=100)
    assert await found(reader) == []
    assert await writer.find(REF, ["old", "young"]) == {"young": 2}
    assert await append(writer, "young", "old", now_ms=250) == [Appended(2, True), Appended(3)]


async def test_a_record_in_front_that_must_stay_keeps_those_behind_it(logs: Opened) -> None:
    """A clock that went back: what is left stays dense."""
    writer = logs.writer()
    await writer.open(REF, epoch=1)
    for number, now_ms in enumerate([100, 900, 100, 100]):
        await append(writer, f"e{number}", now_ms=now_ms)
    assert await retained(writer, settled=9, max_age_ms=500, now_ms=1_000) == Extent(2, 4)
