"""A record that isn't what was appended: who comes to it in the log is told, and goes on."""

from __future__ import annotations

import pytest

from headgate.model.event import PartitionRef
from tests.services.gateway.groups.test_consumers import (
    TARGETS,
    ack,
    assigned,
    committed,
    grouped,
    join,
)
from tests.services.gateway.groups.test_giving_up import limited, nack
from tests.services.gateway.test_whole_collections import heard, subscribed
from tests.services.gateway.world import World, until
from tests.written_log import TOPIC

REF = PartitionRef(TOPIC, 0)


def with_corrupt_ones(world: World, *seqs: int, count: int = 4) -> None:
    for number in range(1, count + 1):
        world.log.append({"n": number})
    for seq in seqs:
        world.log.flip(REF, seq)


@pytest.mark.parametrize(
    ("corrupt", "told"),
    [
        ((2,), [("event", 1, "insert"), ("resync", 2, "corrupt"), ("event", 3, "insert")]),
        ((1, 2), [("resync", 1, "corrupt"), ("resync", 2, "corrupt"), ("event", 3, "insert")]),
        ((4,), [("event", 2, "insert"), ("event", 3, "insert"), ("resync", 4, "corrupt")]),
    ],
    ids=["one", "two", "the last"],
)
async def test_who_reads_the_log_is_told_in_its_place_and_never_gets_it(
    world: World, corrupt: tuple[int, ...], told: list[tuple[str, int, str]]
) -> None:
    with_corrupt_ones(world, *corrupt)
    socket = await subscribed(world, from_="earliest")
    came = await heard(socket, 4)
    assert [one for one in came if one in told] == told
    assert [place for _, place, _ in came] == [1, 2, 3, 4]
    count = await world.metric('headgate_resyncs_total{reason="corrupt"}')
    assert count == len(corrupt)


async def test_who_resumes_before_it_is_told_and_who_resumes_behind_it_is_not(world: World) -> None:
    with_corrupt_ones(world, 3)
    before = await subscribed(world, from_="0:3,1:1")
    assert await heard(before, 2) == [("resync", 3, "corrupt"), ("event", 4, "insert")]
    behind = await subscribed(world, from_="0:4,1:1")
    assert await heard(behind, 1) == [("event", 4, "insert")]


async def test_other_partitions_come_as_ever(world: World) -> None:
    world.log.append({"n": 1})
    world.log.append({"n": 2}, partition=1)
    world.log.flip(REF, 1)
    socket = await subscribed(world, from_="earliest")
    assert sorted(await heard(socket, 2)) == [("event", 1, "insert"), ("resync", 1, "corrupt")]


async def test_a_group_is_told_and_its_position_passes_it_when_it_says_that_it_knows() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0, epoch=7)
        with_corrupt_ones(world, 1, count=1)
        socket = await join(world, **{"from": "earliest"})
        await assigned(socket, 1)
        message = await socket.next()
        assert (message["type"], message["reason"], message["from"]) == ("resync", "corrupt", 2)
        assert committed(world, 0, 0) == 0
        ack(socket, {**message, "seq": 1})
        await until(lambda: committed(world, 0, 0) == 1)


async def test_the_letter_of_a_record_that_is_corrupt_by_now_says_that_it_is_gone() -> None:
    async with limited() as group:
        socket = await group.consumer(*range(TARGETS), limit=2)
        group.world.log.append({"n": 1})
        await group.world.lanes.run()
        message = await socket.next()
        group.world.log.flip(REF, 1)
        nack(socket, message, 2)
        assert (await socket.next())["type"] == "given_up"
        letter = await group.has_letter()
        assert bytes(letter.delivery.document) in (b"null", b'{"n":1}')
