"""A log store that isn't what it was when it was opened: it failed over and lost commits, was
restored from a backup, or is gone. Whatever happened, no seq is given out twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from headgate.decide.delivery.lost_logs import next_head
from headgate.errors import Fenced, StorageFailed, StoreChanged
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import Topic
from headgate.ports.log import Appended, Extent, LogReader, LogWriter, Retention
from tests.contracts.stores import WRITERS, Opened, durable
from tests.contracts.surgery import lose, set_back
from tests.services.ingest.doubles import World, topology

REF = PartitionRef("flights", 0)
pytestmark = pytest.mark.parametrize("logs", durable(WRITERS), indirect=True)
"""A log in memory can't lose anything."""


@pytest.fixture(autouse=True)
def no_look_is_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all that happens were far apart; then the embedded log refuses for sure."""
    monkeypatch.setattr("headgate.adapters.embedded.transactions.RECENT_S", -1.0)


KEPT = Retention()

Call = Callable[[LogWriter], Awaitable[object]]
Fate = Callable[[Opened, PartitionRef], None]


async def append(writer: LogWriter, *ids: str) -> list[Appended]:
    return await writer.append(REF, [Event(one, b"{}") for one in ids], version=1, now_ms=1_000)


async def stored(reader: LogReader) -> list[tuple[int, str]]:
    records = await reader.read(REF, after_seq=0, limit=1_000)
    return [(record.seq, record.event_id) for record in records]


async def holding(logs: Opened, count: int) -> LogWriter:
    """A writer that has acknowledged `count` records, one at a time."""
    writer = logs.writer()
    await writer.open(REF, epoch=1)
    for number in range(1, count + 1):
        assert await append(writer, f"e{number}") == [Appended(number)]
    return writer


async def test_what_was_acknowledged_and_lost_is_not_given_out_again(logs: Opened) -> None:
    writer, reader = await holding(logs, 5), logs.reader()
    set_back(logs, REF, head=3)
    for _ in range(2):
        with pytest.raises(StoreChanged, match="ends at 3, and 5 was given out"):
            await append(writer, "new")
    assert await reader.extent(REF) == Extent(1, 3)

    assert await writer.open(REF, epoch=1) == Extent(1, 3)
    with pytest.raises(StoreChanged):
        await append(writer, "new")
    await writer.move_on(REF, from_head=3, to_head=100)
    assert await append(writer, "e5", "e2", "new") == [
        Appended(101),
        Appended(2, True),
        Appended(102),
    ]
    assert await stored(reader) == [(1, "e1"), (2, "e2"), (3, "e3"), (101, "e5"), (102, "new")]


async def test_every_call_of_a_group_is_refused(logs: Opened) -> None:
    writer, reader = await holding(logs, 2), logs.reader()
    set_back(logs, REF, head=1)
    outcomes = await asyncio.gather(
        *(append(writer, f"new{number}") for number in range(20)), return_exceptions=True
    )
    assert {type(outcome) for outcome in outcomes} == {StoreChanged}
    assert await stored(reader) == [(1, "e1")]


CALLS: list[tuple[str, Call]] = [
    ("append", lambda writer: append(writer, "new")),
    ("find", lambda writer: writer.find(REF, ["e1", "e2"])),
    ("retain", lambda writer: writer.retain(REF, KEPT, settled=9, ids_ms=9, now_ms=1)),
]


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in CALLS])
@pytest.mark.parametrize(
    "fate",
    [
        pytest.param(partial(set_back, head=1), id="head went back"),
        pytest.param(lose, id="lost"),
    ],
)
async def test_no_call_works_with_a_store_that_isnt_what_it_was(
    logs: Opened, fate: Fate, call: Call
) -> None:
    """Least of all one that tells what is stored: it would acknowledge what is lost."""
    writer = await holding(logs, 2)
    fate(logs, REF)
    with pytest.raises(StoreChanged) as refused:
        await call(writer)
    assert (refused.value.status, refused.value.code) == (503, "store_changed")
    assert isinstance(refused.value, StorageFailed), "the producer tries again"


async def test_the_head_that_it_was_opened_with_counts_as_given_out(logs: Opened) -> None:
    await (await holding(logs, 3)).close()
    writer = logs.writer()
    assert await writer.open(REF, epoch=1) == Extent(1, 3)
    set_back(logs, REF, head=2)
    with pytest.raises(StoreChanged):
        await append(writer, "new")


async def test_an_owner_that_the_store_has_forgotten_opens_it_again(logs: Opened) -> None:
    """Its opening was lost before it had written anything: nobody newer has come."""
    await (await holding(logs, 3)).close()
    writer = logs.writer()
    await writer.open(REF, epoch=2)
    set_back(logs, REF, head=3, epoch=1)
    with pytest.raises(StoreChanged, match="belongs to epoch 1, and epoch 2 had opened it"):
        await append(writer, "new")
    with pytest.raises(StoreChanged):
        await writer.move_on(REF, from_head=3, to_head=9)
    assert await writer.open(REF, epoch=2) == Extent(1, 3)
    assert await append(writer, "new") == [Appended(4)], "no record is missing"


async def test_a_newer_owner_is_told_from_a_store_that_went_back(logs: Opened) -> None:
    old, new = await holding(logs, 3), logs.writer()
    await new.open(REF, epoch=2)
    set_back(logs, REF, head=1, epoch=2)
    with pytest.raises(Fenced):
        await append(old, "new")
    with pytest.raises(StoreChanged):
        await append(new, "new")


async def test_what_find_has_told_counts_as_given_out(logs: Opened) -> None:
    """Written by somebody else of the same epoch, or by a commit whose answer got lost."""
    writer, other = await holding(logs, 1), logs.writer()
    await other.open(REF, epoch=1)
    await append(other, "e2")
    assert await writer.find(REF, ["e2"]) == {"e2": 2}
    set_back(logs, REF, head=1)
    with pytest.raises(StoreChanged):
        await append(writer, "new")


async def test_a_store_that_is_gone_is_made_again_and_moved_on(logs: Opened) -> None:
    writer, reader = await holding(logs, 3), logs.reader()
    assert len(await stored(reader)) == 3
    lose(logs, REF)
    with pytest.raises(StoreChanged):
        await append(writer, "new")
    assert await stored(reader) == []
    assert await reader.extent(REF) == Extent(1, 0)
    assert reader.read_arrow(REF, after_seq=0, up_to_seq=9).read_all().num_rows == 0

    assert await writer.open(REF, epoch=1) == Extent(1, 0)
    with pytest.raises(StoreChanged):
        await append(writer, "new")
    assert await writer.move_on(REF, from_head=0, to_head=50) == Extent(51, 50)
    assert await append(writer, "e1") == [Appended(51)]
    assert await stored(reader) == [(51, "e1")]
    assert reader.read_arrow(REF, after_seq=0, up_to_seq=99).read_all().num_rows == 1


@pytest.mark.parametrize(
    "fate",
    [
        pytest.param(partial(set_back, head=1), id="head went back"),
        pytest.param(partial(set_back, head=1, epoch=0), id="the opening is lost"),
        pytest.param(lose, id="lost"),
    ],
)
async def test_a_deleted_topic_is_dropped_all_the_same_and_its_seq_goes_on(
    logs: Opened, fate: Fate
) -> None:
    writer, reader = await holding(logs, 3), logs.reader()
    fate(logs, REF)
    await writer.drop_records(REF, epoch=2)
    assert await stored(reader) == []
    assert await writer.open(REF, epoch=3) == Extent(4, 3)
    assert await append(writer, "new") == [Appended(4)]


async def test_an_ingest_node_goes_on_by_itself_behind_what_it_has_acknowledged(
    logs: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    """Positions don't tell: nothing is settled yet."""
    flights, reader = Topic("flights", 1), logs.reader()
    world = World(logs.writer())
    await world.adopt(topology(1, flights))

    async def write(*ids: str) -> list[int | None]:
        events = [Event(one, b"{}", "k") for one in ids]
        return [one.seq for one in await world.write(flights, events, timeout_s=5)]

    assert await write("e1", "e2", "e3") == [1, 2, 3]
    fates: list[tuple[Fate, int]] = [(partial(set_back, head=1), 1), (lose, 0)]
    for fate, left in fates:
        before = world.partitions.heads()[0][1]
        fate(logs, REF)
        with pytest.raises(StoreChanged):
            await write("new")
        await world.partitions.open_again()
        assert (await reader.extent(REF)).head == next_head(before)
        assert len(await stored(reader)) == left
        assert await write("e3") == [next_head(before) + 1], "its key was lost as well"
    assert capsys.readouterr().out.count("history_lost") == 2
