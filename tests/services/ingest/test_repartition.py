"""An ingest node through a repartition: what it seals, where that ends, and that a retry which
crosses the fence is written once."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from headgate.decide.produce.placement import partition_of
from headgate.errors import NotNow, StorageFailed
from headgate.model.api import ProduceResult
from headgate.model.control.to_coordinator import Sealed
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import FormerVersion, Repartition, RepartitionPhase, Topic
from headgate.ports.log import Appended
from tests.services.ingest.doubles import FaultyLogWriter, World, topology
from tests.virtual_time import run_virtual

BEFORE = Topic("flights", 2)
TTL_S = 30 * 60.0
EVENTS = [Event(f"e{number}", b"{}", f"k{number}") for number in range(12)]


def under_way(phase: RepartitionPhase, since: int = 2) -> Topic:
    return Topic("flights", 2, repartition=Repartition(3, phase, since))


def behind(world: World) -> Topic:
    """The topic behind the fence, with three partitions."""
    heads = dict(world.partitions.heads())
    ends = [heads.get(PartitionRef("flights", number), 0) for number in range(3)]
    return Topic(
        "flights",
        3,
        version=2,
        after=tuple(ends),
        former=(FormerVersion(1, (0, 0), tuple(ends[:2])),),
        original=2,
        begins=(0,),
    )


def ref(number: int) -> PartitionRef:
    return PartitionRef("flights", number)


def test_what_is_sealing_takes_nothing_and_says_where_it_ends() -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer)
        await world.adopt(topology(1, BEFORE))
        await world.write(BEFORE, EVENTS, timeout_s=5)
        assert world.partitions.sealed() == ()
        await world.adopt(topology(2, under_way("announced")))
        assert world.partitions.sealed() == (Sealed(ref(2), 1, 0),), "nothing is placed there yet"
        await world.adopt(topology(3, under_way("sealing")))
        heads = dict(world.partitions.heads())
        ends = tuple(Sealed(ref(number), 1, heads[ref(number)]) for number in range(3))
        assert world.partitions.sealed() == ends
        late = asyncio.create_task(world.write(BEFORE, [Event("late", b"{}", "k0")], timeout_s=30))
        await asyncio.sleep(3)
        assert not late.done()
        assert dict(world.partitions.heads()) == heads
        await world.adopt(topology(4, behind(world)))
        [result] = await late
        place = partition_of("k0", collection="", count=3)
        assert (result.partition, result.seq) == (place, heads[ref(place)] + 1)
        assert writer.records[ref(place)][-1].version == 2

    run_virtual(scenario())


def test_one_that_is_given_up_takes_appends_as_before() -> None:
    async def scenario() -> None:
        world = World(FaultyLogWriter())
        await world.adopt(topology(1, BEFORE))
        await world.adopt(topology(2, under_way("sealing")))
        held = asyncio.create_task(world.write(BEFORE, EVENTS[:3], timeout_s=30))
        await asyncio.sleep(2)
        assert not held.done()
        await world.adopt(topology(3, BEFORE))
        assert all(isinstance(one.seq, int) for one in await held)
        assert world.partitions.sealed() == ()

    run_virtual(scenario())


def test_a_partition_that_cannot_be_sealed_is_not_said_to_be() -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer)
        await world.adopt(topology(1, BEFORE))
        writer.open_failures[ref(1)] = StorageFailed("the disk is gone")
        assert not await world.adopt(topology(2, under_way("sealing")))
        assert {one.ref for one in world.partitions.sealed()} == {ref(0), ref(2)}
        assert world.partitions.unopened() == (ref(1),)

    run_virtual(scenario())


def test_a_retry_that_crosses_the_fence_is_written_once() -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer)
        await world.adopt(topology(1, BEFORE))
        first = await world.write(BEFORE, EVENTS, timeout_s=5)
        after = behind(world)
        await world.adopt(topology(2, after))
        again = await world.write(after, EVENTS, timeout_s=5)
        assert [(one.partition, one.seq) for one in again] == [
            (one.partition, one.seq) for one in first
        ]
        new = await world.write(after, [Event("new", b"{}", "k0")], timeout_s=5)
        assert isinstance(new[0], ProduceResult)
        assert sum(map(len, writer.records.values())) == len(EVENTS) + 1

    run_virtual(scenario())


def test_while_nobody_can_tell_nothing_is_written() -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer)
        await world.adopt(topology(1, BEFORE))
        await world.write(BEFORE, EVENTS, timeout_s=5)
        after = behind(world)
        await world.adopt(topology(2, after))
        reader = world.reader
        found = reader.find

        async def away(_ref: PartitionRef, _ids: object) -> dict[str, int]:
            raise StorageFailed("the log is away")

        reader.find = away  # type: ignore[method-assign,assignment]
        with pytest.raises(NotNow, match="whether these events were written before"):
            await world.write(after, [Event("new", b"{}", "k0")], timeout_s=5)
        reader.find = found  # type: ignore[method-assign]
        assert await world.write(after, [Event("new", b"{}", "k0")], timeout_s=5)

    run_virtual(scenario())


def test_keys_are_looked_for_as_long_as_they_are_kept() -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer, idempotency_ttl_s=60.0)
        await world.adopt(topology(1, BEFORE))
        await world.write(BEFORE, EVENTS, timeout_s=5)
        after = behind(world)
        await world.adopt(topology(2, after))
        looked: list[PartitionRef] = []
        found = world.reader.find

        async def counted(where: PartitionRef, ids: list[str]) -> dict[str, int]:
            looked.append(where)
            return await found(where, ids)

        world.reader.find = counted  # type: ignore[method-assign,assignment]
        await world.write(after, [Event("new", b"{}", "k0")], timeout_s=5)
        assert looked
        looked.clear()
        await asyncio.sleep(61)
        await world.write(after, [Event("newer", b"{}", "k0")], timeout_s=5)
        assert looked == []

    run_virtual(scenario())


def test_a_request_looks_once_into_each_partition_that_may_have_its_keys() -> None:
    async def scenario() -> None:
        world = World(FaultyLogWriter())
        await world.adopt(topology(1, BEFORE))
        await world.write(BEFORE, EVENTS, timeout_s=5)
        after = behind(world)
        await world.adopt(topology(2, after))
        looked: list[PartitionRef] = []
        found = world.reader.find

        async def counted(where: PartitionRef, ids: list[str]) -> dict[str, int]:
            looked.append(where)
            return await found(where, ids)

        world.reader.find = counted  # type: ignore[method-assign,assignment]
        new = [Event(f"new-{number}", b"{}", f"k{number}") for number in range(12)]
        assert {partition_of(str(e.key), collection="", count=3) for e in new} == {0, 1, 2}
        await world.write(after, new, timeout_s=5)
        assert sorted(looked) == [ref(0), ref(1)]

    run_virtual(scenario())


def test_a_number_that_comes_back_goes_on_with_its_seq() -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer)
        await world.adopt(topology(1, Topic("flights", 3)))
        await world.write(Topic("flights", 3), EVENTS, timeout_s=5)
        head = dict(world.partitions.heads())[ref(2)]
        await world.adopt(topology(2, Topic("flights", 2, version=2, original=3)))
        assert ref(2) in {one.ref for one in world.partitions.sealed()}
        await world.adopt(topology(3, Topic("flights", 3, version=3, original=3)))
        assert world.partitions.sealed() == ()
        written = await writer.append(ref(2), [Event("x", b"{}", "y")], version=3, now_ms=1)
        assert written == [Appended(head + 1)]

    run_virtual(scenario())


def test_a_version_is_there_for_as_long_as_its_idempotency_keys() -> None:
    """Retention may take its records long before that."""

    async def scenario() -> None:
        world = World(FaultyLogWriter())
        await world.adopt(topology(1, BEFORE))
        await world.write(BEFORE, EVENTS, timeout_s=5)
        await asyncio.sleep(TTL_S)
        await world.adopt(topology(2, behind(world)))
        for number in range(3):
            opened = world.partitions.get(ref(number))
            assert opened is not None
            opened.earliest = opened.head + 1
        gone = tuple((place, head + 1) for place, head in world.partitions.heads())
        await asyncio.sleep(TTL_S / 2)
        await world.adopt(topology(3, behind(world)))
        assert world.partitions.earliest() == tuple((place, 0) for place, _ in gone)
        await asyncio.sleep(TTL_S / 2 + 1)
        assert world.partitions.earliest() == gone

    run_virtual(scenario())


def test_so_is_that_of_a_topic_that_was_made_again_unheard() -> None:
    """Its version may have the number of the former one's."""

    async def scenario() -> None:
        world = World(FaultyLogWriter())
        await world.adopt(topology(1, BEFORE))
        former = behind(world)
        await world.adopt(topology(2, former))
        await asyncio.sleep(TTL_S + 1)
        assert any(seq for _, seq in world.partitions.earliest()), "its keys are gone"
        ends = FormerVersion(1, (0, 0), (7, 9))
        again = structs.replace(former, after=(7, 9, 0), former=(ends,))
        await world.adopt(topology(6, again))
        assert {seq for _, seq in world.partitions.earliest()} == {0}

    run_virtual(scenario())


def test_a_retry_that_crosses_the_fence_of_a_topic_without_keys_is_written_once() -> None:
    async def scenario() -> None:
        world = World(FaultyLogWriter())
        before = Topic("flights", 2, placement="opportunistic")
        await world.adopt(topology(1, before))
        events = [[Event(f"e{number}", b"{}", None)] for number in range(4)]
        first = [await world.write(before, one, timeout_s=5, ids_given=True) for one in events]
        assert {one.partition for [one] in first} == {0, 1}
        heads = tuple(head for _, head in world.partitions.heads())
        after = Topic(
            "flights",
            1,
            placement="opportunistic",
            version=2,
            after=heads[:1],
            former=(FormerVersion(1, (0, 0), heads),),
            original=2,
        )
        await world.adopt(topology(2, after))
        again = [await world.write(after, one, timeout_s=5, ids_given=True) for one in events]
        assert again == first
        assert tuple(head for _, head in world.partitions.heads()) == heads

    run_virtual(scenario())
