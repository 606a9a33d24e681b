"""Subscribers and groups that begin at a time: with the first record since then, per partition."""

from __future__ import annotations

import pytest

from tests.services.gateway.groups.test_consumers import TARGETS, assigned, grouped, join
from tests.services.gateway.test_whole_collections import subscribed
from tests.services.gateway.world import World

NOON = "2026-01-31T12:00:00Z"
NOON_MS = 1_769_860_800_000


def written(world: World) -> None:
    for partition, times in ((0, (-5_000, -1, 0, 900)), (1, (-9_000, 7_000))):
        for at in times:
            world.log.append({"at": at}, partition=partition, time_ms=NOON_MS + at)


async def came(world: World, since: str, count: int) -> list[int]:
    socket = await subscribed(world, from_=since)
    messages = [await socket.next() for _ in range(count)]
    return sorted(one["document"]["at"] for one in messages)


@pytest.mark.parametrize("since", [NOON, "2026-01-31T13:00:00+01:00", "2026-01-31T12:00Z"])
async def test_a_subscriber_gets_what_was_appended_since(world: World, since: str) -> None:
    written(world)
    assert await came(world, since, 3) == [0, 900, 7_000]


async def test_what_comes_later_comes_too_and_nothing_twice(world: World) -> None:
    written(world)
    socket = await subscribed(world, from_="2026-01-31T12:00:07.001Z")
    await world.produce({"at": 1})
    assert (await socket.next())["document"] == {"at": 1}


async def test_it_says_where_it_began_so_that_it_can_go_on_from_there(world: World) -> None:
    written(world)
    socket = await world.websocket(from_=NOON)
    assert (await socket.next())["positions"] == {"0": 2, "1": 1}


async def test_a_stream_of_server_sent_events_begins_there_too(world: World) -> None:
    written(world)
    async with world.sse(from_=NOON) as stream:
        await stream.next()
        places = await stream.events(3)
    assert sorted(places) == [(0, 3), (0, 4), (1, 2)]


async def test_a_message_may_say_it_and_one_without_a_zone_is_refused(world: World) -> None:
    written(world)
    socket = await world.connection()
    refused = await socket.subscribe("b", **{"from": "2026-01-31T12:00:00"})
    assert refused["type"] == "error"
    answer = await socket.subscribe("a", **{"from": NOON})
    assert answer["positions"] == {"0": 2, "1": 1}
    assert "write it with its date and its zone, such as 2026-01-31T12:00:00Z" in str(refused)


async def test_a_new_group_begins_there() -> None:
    async with grouped() as (world, coordinator):
        written(world)
        coordinator.give("one", *range(TARGETS), epoch=7)
        socket = await join(world, **{"from": NOON})
        await assigned(socket, TARGETS)
        messages = [await socket.next() for _ in range(3)]
        assert sorted(one["document"]["at"] for one in messages) == [0, 900, 7_000]
