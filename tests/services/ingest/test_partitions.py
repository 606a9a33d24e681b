"""Writing to keyed partitions when something goes wrong: what fails, what doesn't, what is said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.adapters.memory.log_writer import MemoryLogWriter
from headgate.decide.delivery.lost_logs import next_head
from headgate.decide.produce.placement import partition_of
from headgate.errors import (
    Fenced,
    HeadgateError,
    NotNow,
    OutcomeUnknown,
    Overloaded,
    StorageFailed,
    StoreChanged,
    UnknownTopic,
)
from headgate.model.api import ProduceResult
from headgate.model.event import Event, PartitionRef
from headgate.model.position import Position
from headgate.model.topology import Topic
from headgate.ports.log import Extent
from headgate.services.ingest.produce.appends import WriteBounds
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.services.ingest.doubles import FaultyLogWriter, World, disk_failed_late, topology
from tests.waiting import until

FLIGHTS = Topic("flights", 4)
JOBS = Topic("jobs", 3, "opportunistic")


def keys_of(partition: int, count: int) -> list[str]:
    keys = (f"k{n}" for n in range(10_000))
    found = (key for key in keys if partition_of(key, collection="", count=4) == partition)
    return [next(found) for _ in range(count)]


def ref(topic: Topic, number: int) -> PartitionRef:
    return PartitionRef(topic.name, number)


def event(event_id: str, key: str | None = None) -> Event:
    return Event(event_id, b"{}", key)


async def opened(writer: FaultyLogWriter, **bounds: Any) -> World:
    world = World(writer, bounds=WriteBounds(**bounds))
    assert await world.adopt(topology(1, FLIGHTS, JOBS))
    return world


@pytest.fixture
def writer() -> FaultyLogWriter:
    return FaultyLogWriter()


def code(result: ProduceResult) -> str | None:
    return None if result.error is None else result.error.code


async def test_a_node_that_was_just_started_says_later_instead_of_no_such_topic(
    writer: FaultyLogWriter,
) -> None:
    world = World(writer)
    with pytest.raises(NotNow, match="doesn't know the topics yet"):
        world.writing.partitions.topic("flights")
    await world.adopt(topology(1, FLIGHTS))
    assert world.writing.partitions.topic("flights") == FLIGHTS
    with pytest.raises(UnknownTopic):
        world.writing.partitions.topic("jobs")


async def test_who_routes_by_a_newer_topology_waits_for_that_instead_of_no_such_topic(
    writer: FaultyLogWriter,
) -> None:
    world = World(writer)
    await world.adopt(topology(1, FLIGHTS))
    partitions, jobs = world.writing.partitions, Topic("jobs", 1)
    waiting = asyncio.create_task(partitions.heard_of("jobs", timeout_s=5.0))
    await asyncio.sleep(0)
    await world.adopt(topology(2, FLIGHTS, jobs))
    assert await waiting == jobs
    with pytest.raises(NotNow, match="has not heard of topic others yet"):
        await partitions.heard_of("others", timeout_s=0.0)


# --- keyed ---------------------------------------------------------------------------------------


async def test_a_failed_part_fails_its_own_events_only(writer: FaultyLogWriter) -> None:
    world = await opened(writer)
    writer.failures[ref(FLIGHTS, 1)] = StorageFailed("the disk is full")
    [bad, worse], [good] = keys_of(1, 2), keys_of(3, 1)
    events = [event("a", bad), event("b", good), event("c", worse), event("d", good)]
    results = await world.write(FLIGHTS, events, timeout_s=5)
    assert [code(result) for result in results] == ["storage_failed", None, "storage_failed", None]
    assert [(r.partition, r.seq) for r in results] == [(None, None), (3, 1), (None, None), (3, 2)]


async def test_when_every_part_fails_the_request_fails(writer: FaultyLogWriter) -> None:
    world = await opened(writer)
    for number in range(4):
        writer.failures[ref(FLIGHTS, number)] = StorageFailed("the disk is full")
    with pytest.raises(StorageFailed, match="disk is full"):
        await world.write(FLIGHTS, [event(f"e{n}") for n in range(9)], timeout_s=5)


async def test_may_be_written_wins_over_nothing_was_written(writer: FaultyLogWriter) -> None:
    world = await opened(writer)
    writer.failures[ref(FLIGHTS, 0)] = StorageFailed("the disk is full")
    writer.gates[ref(FLIGHTS, 1)] = asyncio.Event()
    events = [event("a", keys_of(0, 1)[0]), event("b", keys_of(1, 1)[0])]
    with pytest.raises(OutcomeUnknown):
        await world.write(FLIGHTS, events, timeout_s=0.02)
    writer.gates[ref(FLIGHTS, 1)].set()
    assert await world.drain(timeout_s=5)


async def test_a_write_that_outlives_its_request_is_of_unknown_outcome_and_goes_on(
    writer: FaultyLogWriter,
) -> None:
    world = await opened(writer)
    slow = ref(FLIGHTS, 1)
    writer.gates[slow] = asyncio.Event()
    events = [event("a", keys_of(1, 1)[0]), event("b", keys_of(2, 1)[0])]
    results = await world.write(FLIGHTS, events, timeout_s=0.02)
    assert [code(result) for result in results] == ["outcome_unknown", None]
    assert results[0].error is not None
    assert results[0].error.details == {"partition": 1}
    writer.gates[slow].set()
    again = await world.write(FLIGHTS, events, timeout_s=5)
    assert [(r.partition, r.seq) for r in again] == [(1, 1), (2, 1)]
    assert len(writer.records[slow]) == 1


async def test_a_caller_that_goes_away_stops_nothing(writer: FaultyLogWriter) -> None:
    world = await opened(writer)
    slow = ref(FLIGHTS, 0)
    writer.gates[slow] = asyncio.Event()
    caller = asyncio.create_task(world.write(FLIGHTS, [event("a", keys_of(0, 1)[0])], timeout_s=60))
    await asyncio.wait_for(writer.started[slow].wait(), 5)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    writer.gates[slow].set()
    assert await world.drain(timeout_s=5)
    assert [one.event_id for one in writer.records[slow]] == ["a"]


async def test_a_fenced_node_stops_serving_the_partition(writer: FaultyLogWriter) -> None:
    world = await opened(writer)
    [key] = keys_of(2, 1)
    writer.failures[ref(FLIGHTS, 2)] = Fenced("epoch 9 came")
    with pytest.raises(NotNow, match="no owner here yet"):  # it asks until its time is over
        await world.write(FLIGHTS, [event("a", key)], timeout_s=0.5)
    writer.failures.clear()
    with pytest.raises(NotNow, match="no owner here yet"):
        await world.write(FLIGHTS, [event("a", key)], timeout_s=0.5)
    assert ref(FLIGHTS, 2) not in dict(world.partitions.heads())


async def test_a_partition_that_was_fenced_elsewhere_is_not_opened(writer: FaultyLogWriter) -> None:
    await MemoryLogWriter(writer.stored).open(ref(FLIGHTS, 1), epoch=7)
    world = await opened(writer)
    assert ref(FLIGHTS, 1) not in dict(world.partitions.heads())


async def test_a_crash_of_the_writer_is_an_error_and_not_a_hang(writer: FaultyLogWriter) -> None:
    world = await opened(writer)
    writer.failures[ref(FLIGHTS, 2)] = ZeroDivisionError("a bug")
    with pytest.raises(HeadgateError, match="in the node's log") as caught:
        await world.write(FLIGHTS, [event("a", keys_of(2, 1)[0])], timeout_s=5)
    assert caught.value.code == "internal"


async def test_an_older_topology_changes_nothing(writer: FaultyLogWriter) -> None:
    world = await opened(writer)
    assert await world.adopt(topology(5, FLIGHTS))
    assert await world.adopt(topology(4, deleted=(FLIGHTS,)))
    assert (world.partitions.generation, len(world.partitions.heads()), writer.dropped) == (
        5,
        4,
        [],
    )


# --- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [{"requests": 2}, {"events": 2}], ids=["requests", "events"])
async def test_beyond_the_bound_a_request_is_told_to_come_back(
    writer: FaultyLogWriter, bounds: dict[str, int]
) -> None:
    world = await opened(writer, **bounds)
    slow = ref(FLIGHTS, 0)
    writer.gates[slow] = asyncio.Event()
    [key] = keys_of(0, 1)
    waiting = [
        asyncio.create_task(world.write(FLIGHTS, [event(f"e{n}", key)], timeout_s=0.02))
        for n in range(2)
    ]
    # Timed out or not, they occupy their place until the disk has answered.
    assert all(
        isinstance(error, OutcomeUnknown)
        for error in await asyncio.gather(*waiting, return_exceptions=True)
    )
    with pytest.raises(Overloaded, match="nothing was written"):
        await world.write(FLIGHTS, [event("late", key)], timeout_s=5)
    writer.gates[slow].set()
    assert await world.drain(timeout_s=5)
    assert (await world.write(FLIGHTS, [event("late", key)], timeout_s=5))[0].seq == 3


# --- a log whose history is lost -----------------------------------------------------------------


def settled_at(seq: int) -> FaultyCheckpoints:
    """The store of settled positions."""
    positions = FaultyCheckpoints()
    positions.put(ref(ONE, 0), Position(seq))
    return positions


ONE = Topic("flights", 1)


async def by_another(writer: FaultyLogWriter, *ids: str) -> None:
    """Append behind the node's back, under its epoch."""
    other = MemoryLogWriter(writer.stored)
    await other.open(ref(ONE, 0), epoch=1)
    await other.append(ref(ONE, 0), [event(one) for one in ids], version=1, now_ms=0)


async def test_a_log_that_ends_before_what_is_settled_goes_on_behind_it(
    writer: FaultyLogWriter,
) -> None:
    world = World(writer, settled=settled_at(10).list)
    assert await world.adopt(topology(1, ONE))
    assert world.partitions.heads() == ((ref(ONE, 0), next_head(10)),)
    [result] = await world.write(ONE, [event("a", "k")], timeout_s=5)
    assert result.seq == next_head(10) + 1


async def test_a_log_that_has_all_that_is_settled_stays_where_it_is(
    writer: FaultyLogWriter,
) -> None:
    await by_another(writer, *(f"e{number}" for number in range(10)))
    world = World(writer, settled=settled_at(10).list)
    assert await world.adopt(topology(1, ONE))
    await world.partitions.look_back()
    assert world.partitions.heads() == ((ref(ONE, 0), 10),)


async def test_positions_that_are_not_known_yet_are_looked_at_later(
    writer: FaultyLogWriter,
) -> None:
    positions = settled_at(10)
    positions.failing = StorageFailed("the store is away")
    world = World(writer, settled=positions.list)
    assert await world.adopt(topology(1, ONE)), "what may be well is served"
    await world.partitions.look_back()
    assert world.partitions.heads() == ((ref(ONE, 0), 0),)
    positions.failing = None
    await world.settled.read()
    await world.partitions.look_back()
    assert world.partitions.heads() == ((ref(ONE, 0), next_head(10)),)
    await world.partitions.look_back()
    assert world.partitions.heads() == ((ref(ONE, 0), next_head(10)),), "once is enough"


async def test_what_was_taken_before_the_positions_were_known_is_not_left_behind(
    writer: FaultyLogWriter,
) -> None:
    positions = settled_at(10)
    positions.failing = StorageFailed("the store is away")
    world = World(writer, settled=positions.list)
    await world.adopt(topology(1, ONE))
    await world.write(ONE, [event("a", "k")], timeout_s=5)
    positions.failing = None
    await world.settled.read()
    await world.partitions.look_back()
    assert world.partitions.heads() == ((ref(ONE, 0), 1),), "whoever reads it says so"


async def test_a_log_that_grows_while_it_is_looked_at_is_not_moved(
    writer: FaultyLogWriter,
) -> None:
    positions = settled_at(0)
    world = World(writer, settled=positions.list)
    await world.adopt(topology(1, ONE))
    await by_another(writer, "by another thread")
    positions.put(ref(ONE, 0), Position(1))
    await world.settled.read()
    await world.partitions.look_back()
    assert writer.stored.partition(ref(ONE, 0)).extent == Extent(1, 1)


# --- a store that isn't the one that was opened --------------------------------------------------


def forget(writer: FaultyLogWriter, count: int) -> None:
    """The last records are gone, and the store says so to whoever wants to append."""
    stored = writer.stored.partition(ref(ONE, 0))
    del stored.records[-count:]
    stored.state = replace(stored.state, head=stored.state.head - count)
    writer.failures[ref(ONE, 0)] = StoreChanged("it went back")


async def test_a_store_that_went_back_is_opened_again_and_moved_behind_what_was_acknowledged(
    writer: FaultyLogWriter,
) -> None:
    positions = settled_at(0)
    world = World(writer, settled=positions.list)
    await world.adopt(topology(1, ONE))
    await world.write(ONE, [event(f"e{number}", "k") for number in range(10)], timeout_s=5)
    positions.put(ref(ONE, 0), Position(3))
    forget(writer, 4)
    with pytest.raises(StoreChanged) as refused:
        await world.write(ONE, [event("new", "k")], timeout_s=5)
    assert refused.value.status == 503
    writer.failures.clear()
    await world.partitions.open_again()
    assert world.partitions.heads() == ((ref(ONE, 0), next_head(10)),)
    [result] = await world.write(ONE, [event("new", "k")], timeout_s=5)
    assert result.seq == next_head(10) + 1
    await world.partitions.open_again()
    assert world.partitions.heads() == ((ref(ONE, 0), next_head(10) + 1),), "once is enough"


async def test_what_the_store_knows_to_have_given_out_counts_too(writer: FaultyLogWriter) -> None:
    """This node has had the partition before, and has forgotten how far it was."""
    world = World(writer)
    await world.adopt(topology(1, ONE))
    writer.failures[ref(ONE, 0)] = StoreChanged("it went back", given_out=70)
    with pytest.raises(StoreChanged):
        await world.write(ONE, [event("new", "k")], timeout_s=5)
    writer.failures.clear()
    await world.partitions.open_again()
    assert world.partitions.heads() == ((ref(ONE, 0), next_head(70)),)


async def test_a_store_that_has_everything_is_opened_again_and_stays(
    writer: FaultyLogWriter,
) -> None:
    world = World(writer)
    await world.adopt(topology(1, ONE))
    await world.write(ONE, [event("a", "k")], timeout_s=5)
    writer.failures[ref(ONE, 0)] = StoreChanged("its log was deleted and made again")
    with pytest.raises(StoreChanged):
        await world.write(ONE, [event("b", "k")], timeout_s=5)
    writer.failures.clear()
    await world.partitions.open_again()
    [result] = await world.write(ONE, [event("b", "k")], timeout_s=5)
    assert result.seq == 2


async def test_one_that_cant_be_opened_again_is_unwell_and_tried_again(
    writer: FaultyLogWriter,
) -> None:
    world = World(writer)
    await world.adopt(topology(1, ONE))
    writer.failures[ref(ONE, 0)] = StoreChanged("it is gone")
    writer.open_failures[ref(ONE, 0)] = StorageFailed("the disk is gone")
    with pytest.raises(StoreChanged):
        await world.write(ONE, [event("a", "k")], timeout_s=5)
    for _ in range(2):
        await world.partitions.open_again()
        assert not world.partitions.is_well(ref(ONE, 0))
    with pytest.raises(StoreChanged, match="it is gone"):
        await world.write(ONE, [event("a", "k")], timeout_s=5)
    writer.failures.clear()
    writer.open_failures.clear()
    await world.partitions.open_again()
    assert world.partitions.is_well(ref(ONE, 0))


async def test_a_write_in_doubt_is_answered_once_its_store_is_opened_again(
    writer: FaultyLogWriter,
) -> None:
    """The read back finds out; nothing was appended since."""
    world = World(writer)
    await world.adopt(topology(1, ONE))
    partition = ref(ONE, 0)
    writer.failures[partition] = disk_failed_late()
    writer.find_failures[partition] = StoreChanged("it is gone")
    writing = asyncio.create_task(world.write(ONE, [event("a", "k")], timeout_s=20))
    await until(lambda: writer.finds)
    writer.failures.clear()
    writer.find_failures.clear()
    opened = writer.opened.pop(partition)
    await world.partitions.open_again()
    assert writer.opened[partition] == opened
    with pytest.raises(StorageFailed, match="was not written, try again"):
        await writing


async def test_one_that_was_given_away_meanwhile_is_left_alone(writer: FaultyLogWriter) -> None:
    world = World(writer)
    await world.adopt(topology(1, ONE))
    writer.failures[ref(ONE, 0)] = StoreChanged("it went back")
    with pytest.raises(StoreChanged):
        await world.write(ONE, [event("a", "k")], timeout_s=5)
    writer.opened.clear()
    await world.adopt(topology(2))
    await world.partitions.open_again()
    assert writer.opened == {}
