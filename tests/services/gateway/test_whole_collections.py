"""Records about a whole collection, and those that say that an origin has lost changes, on every
way to a subscriber: live, from the log, to whom it may concern, and to the consumers of a group."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.decide.delivery.gaps import marked, notice
from headgate.model.event import Op, PartitionRef
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from tests.services.gateway.groups.test_consumers import (
    TARGETS,
    ack,
    assigned,
    committed,
    grouped,
    join,
)
from tests.services.gateway.groups.test_giving_up import limited, nack
from tests.services.gateway.subscriptions.test_broadcast import copy_of
from tests.services.gateway.world import World, WsSubscriber, running, until
from tests.written_log import TOPIC

REF = PartitionRef(TOPIC, 0)
WHERES = {
    "all": (None, True),
    "it alone": ('_collection == "shop.orders"', True),
    "another": ('_collection == "shop.carts"', False),
    "a field": ("n > 100", True),
    "it and a field": ('_collection == "shop.orders" && n > 100', True),
    "another and a field": ('n > 100 && _collection == "shop.carts"', False),
}


async def heard(socket: WsSubscriber, count: int) -> list[tuple[str, int, str]]:
    """The type, the place and the op or the reason of the next messages."""
    came = [await socket.next() for _ in range(count)]
    return [
        (one["type"], one["from"] - 1, one["reason"])
        if one["type"] == "resync"
        else (one["type"], one["seq"], one["op"])
        for one in came
    ]


async def subscribed(world: World, where: str | None = None, **query: str) -> WsSubscriber:
    socket = await world.websocket(**query, **({} if where is None else {"where": where}))
    assert (await socket.next())["type"] == "subscribed"
    return socket


@pytest.mark.parametrize("way", ["live", "log", "broadcast"])
@pytest.mark.parametrize(("where", "is_told"), WHERES.values(), ids=WHERES)
async def test_whoever_does_not_exclude_the_collection_hears_of_the_whole_of_it(
    world: World, way: str, where: str | None, is_told: bool
) -> None:
    ops: list[Op] = ["truncate", "drop", "rename"]
    if way != "log":
        socket = await subscribed(world, where)
    records = [world.log.about("shop.orders", op) for op in ops]
    records.append(world.log.append({"n": 101}, collection="shop.orders", op="read"))
    records.append(world.log.append({"n": 101}, collection="shop.carts", op="insert"))
    if way == "live":
        await world.lanes.run()
    elif way == "broadcast":
        made = [copy_of(world.lanes.delivery(record, ())) for record in records]
        await world.lanes.deliver(made)
    else:
        socket = await subscribed(world, where, from_="earliest")
    wanted: list[tuple[str, int, str]] = []
    if is_told:
        wanted += [("event", at, op) for at, op in enumerate(ops, 1)]
        wanted.append(("event", 4, "read"))
    if where is None or "orders" not in where:
        wanted.append(("event", 5, "insert"))
    assert await heard(socket, len(wanted)) == wanted


@pytest.mark.parametrize("way", ["live", "log", "broadcast"])
async def test_whoever_asks_for_the_new_name_alone_hears_of_a_rename(
    world: World, way: str
) -> None:
    """What the collection of that name had is gone, and nothing else says so."""
    where = '_collection == "shop.orders.new"'
    if way != "log":
        socket = await subscribed(world, where)
    records = [world.log.about("shop.orders", op) for op in ("drop", "rename")]
    if way == "live":
        await world.lanes.run()
    elif way == "broadcast":
        await world.lanes.deliver([copy_of(world.lanes.delivery(one, ())) for one in records])
    else:
        socket = await subscribed(world, where, from_="earliest")
    assert await heard(socket, 1) == [("event", 2, "rename")]


async def test_it_is_shown_without_a_key_and_a_rename_with_the_new_name(world: World) -> None:
    world.log.about("shop.orders", "drop")
    world.log.about("shop.orders", "rename")
    socket = await subscribed(world, '_collection == "shop.orders"', from_="earliest")
    for document in (None, {"to": "shop.orders.new"}):
        message = await socket.next()
        assert (message["key"], message["collection"]) == (None, "shop.orders")
        assert message["document"] == document


@pytest.mark.parametrize("way", ["live", "log"])
async def test_no_filter_is_asked_about_the_new_name(world: World, way: str) -> None:
    """Neither does it let through what is excluded, nor does it exclude what is unknown."""
    excluding = '_collection == "shop.carts" && to == "shop.orders.new"'
    if way == "live":
        sockets = [await subscribed(world, where) for where in (excluding, 'to == "x"')]
    world.log.about("shop.orders", "rename")
    world.log.append({"to": "shop.orders.new"}, collection="shop.carts")
    if way == "live":
        await world.lanes.run()
    else:
        sockets = [
            await subscribed(world, where, from_="earliest") for where in (excluding, 'to == "x"')
        ]
    assert await heard(sockets[0], 1) == [("event", 2, "insert")]
    assert await heard(sockets[1], 1) == [("event", 1, "rename")]


async def test_one_who_is_slow_gets_it_in_its_place_from_the_log() -> None:
    async with running(bounds=Bounds(queue=4, topic_grace_s=0.05)) as world:
        socket = await subscribed(world, '_collection != "b"')
        socket.stop_reading()
        filler = "x" * 100_000
        for number in range(200):
            if number % 10 == 5:
                world.log.about("a" if number % 20 == 5 else "b")
            else:
                world.log.append({"n": number, "f": filler}, collection="a")
            await world.lanes.run()
        socket.read_on()
        wanted = [n + 1 for n in range(200) if n % 20 != 15]
        assert [seq for _, seq, _ in await heard(socket, len(wanted))] == wanted


# --- what an origin has lost ----------------------------------------------------------------------


def with_a_marker(world: World) -> None:
    world.log.append({"n": 1})
    world.log.mark()
    world.log.append({"n": 3})


WITH_A_RESYNC = [("event", 1, "insert"), ("resync", 2, "origin"), ("event", 3, "insert")]


@pytest.mark.parametrize("way", ["live", "log"])
async def test_who_comes_to_a_marker_is_told_to_resync_in_its_place(world: World, way: str) -> None:
    if way == "live":
        socket = await subscribed(world)
        with_a_marker(world)
        await world.lanes.run()
    else:
        with_a_marker(world)
        socket = await subscribed(world, from_="earliest")
    assert await heard(socket, 3) == WITH_A_RESYNC
    assert await world.metric('headgate_resyncs_total{reason="origin"}') == 1


async def test_the_message_names_the_place_and_the_reason(world: World) -> None:
    with_a_marker(world)
    socket = await subscribed(world, "n == 7", from_="0:2,1:1")
    message = await socket.next()
    del message["subscription"]
    assert message == {
        "type": "resync",
        "topic": "flights",
        "partition": 0,
        "after": 1,
        "from": 3,
        "reason": "origin",
    }


async def test_who_resumes_behind_it_is_not_told_again_and_who_resumes_before_it_is(
    world: World,
) -> None:
    with_a_marker(world)
    behind = await subscribed(world, from_="0:3,1:1")
    assert await heard(behind, 1) == WITH_A_RESYNC[2:]
    before = await subscribed(world, from_="0:2,1:1")
    assert await heard(before, 2) == WITH_A_RESYNC[1:]
    verdicts = await world.lanes.run()
    assert verdicts == ["duplicate", "duplicate", "duplicate"], "both have all of it"


async def test_several_markers_and_one_at_the_end_are_each_told(world: World) -> None:
    world.log.mark()
    world.log.mark()
    world.log.append({"n": 1})
    world.log.mark()
    socket = await subscribed(world, from_="earliest")
    assert await heard(socket, 4) == [
        ("resync", 1, "origin"),
        ("resync", 2, "origin"),
        ("event", 3, "insert"),
        ("resync", 4, "origin"),
    ]
    world.lanes.cursor[REF] = 4
    world.log.append({"n": 2})
    await world.lanes.run()
    assert await heard(socket, 1) == [("event", 5, "insert")]


async def test_a_stream_of_server_sent_events_goes_on_behind_it(world: World) -> None:
    with_a_marker(world)
    async with world.sse({"Last-Event-ID": "0:0,1:0"}) as stream:
        came = [await stream.next() for _ in range(4)]
    assert [(one["event"], one["id"]) for one in came[1:]] == [
        ("event", "0:1,1:0"),
        ("resync", "0:2,1:0"),
        ("event", "0:3,1:0"),
    ]


async def test_a_lane_that_says_it_again_is_told_that_everybody_knows(world: World) -> None:
    socket = await subscribed(world)
    with_a_marker(world)
    await world.lanes.run()
    assert await heard(socket, 3) == WITH_A_RESYNC
    again = notice(marked(world.log.records[REF][1]), REF, epoch=1, time_ms=0)
    assert (await world.lanes.deliver([again])).verdicts == ("duplicate",)


# --- the consumers of a group ---------------------------------------------------------------------


@pytest.mark.parametrize("way", ["live", "log"])
async def test_every_target_gets_what_is_about_a_collection_once_and_in_its_place(way: str) -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", *range(TARGETS), epoch=7)
        if way == "live":
            socket = await join(world)
            await assigned(socket, TARGETS)
        keys = [f"key-{number}" for number in range(20)]
        for key in keys:
            world.log.append({"n": 1}, key=key, collection="shop.orders")
        world.log.about("shop.orders", "drop")
        for key in keys:
            world.log.append({"n": 2}, key=key, collection="shop.orders")
        if way == "live":
            await world.lanes.run()
        else:
            socket = await join(world, **{"from": "earliest"})
            await assigned(socket, TARGETS)
        came: dict[int, list[dict[str, Any]]] = {}
        for _ in range(2 * len(keys) + TARGETS):
            message = await socket.next()
            came.setdefault(message["target"], []).append(message)
        assert sorted(came) == list(range(TARGETS))
        for target, messages in came.items():
            seqs = [one["seq"] for one in messages]
            assert seqs == sorted(set(seqs))
            assert [one["seq"] for one in messages if one["op"] == "drop"] == [21]
            ack(socket, messages[-1])
            await until(
                lambda target=target, last=seqs[-1]: committed(world, target, 0) >= last  # type: ignore[misc]
            )


async def test_a_group_that_excludes_the_collection_is_left_out_and_its_position_goes_on() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0, epoch=7)
        where = '_collection == "shop.carts"'
        world.log.about("shop.orders", "drop")
        world.log.about("shop.carts", "drop")
        socket = await join(world, where=where, **{"from": "earliest"})
        await assigned(socket, 1)
        message = await socket.next()
        assert (message["seq"], message["collection"]) == (2, "shop.carts")
        ack(socket, message)
        await until(lambda: committed(world, 0, 0) == 2)


@pytest.mark.parametrize("way", ["live", "log"])
async def test_every_target_is_told_to_resync_at_a_marker_until_it_says_that_it_knows(
    way: str,
) -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0, 1, epoch=7)
        if way == "live":
            socket = await join(world)
            await assigned(socket, 2)
            world.log.mark()
            await world.lanes.run()
        else:
            world.log.mark()
            socket = await join(world, **{"from": "earliest"})
            await assigned(socket, 2)
        came = {one["target"]: one for one in [await socket.next() for _ in range(2)]}
        assert sorted(came) == [0, 1]
        assert {
            (one["type"], one["reason"], one["after"], one["from"]) for one in came.values()
        } == {("resync", "origin", 0, 2)}
        ack(socket, {**came[0], "seq": 1})
        await until(lambda: committed(world, 0, 0) == 1)
        assert committed(world, 1, 0) == 0, "no position passes what nobody has acknowledged"


async def test_a_failed_record_about_a_collection_is_a_letter_of_its_target_alone() -> None:
    async with limited() as group:
        socket = await group.consumer(0, 1, limit=2)
        group.world.log.about("shop.orders", "truncate")
        await group.world.lanes.run()
        came = {one["target"]: one for one in [await socket.next() for _ in range(2)]}
        nack(socket, came[0], 2)
        assert (await socket.next())["type"] == "given_up"
        letter = await group.has_letter()
        assert (letter.delivery.op, letter.delivery.collection) == ("truncate", "shop.orders")
        assert letter.gateway_id.endswith(f"/0-of-{TARGETS}")
        for message in came.values():
            ack(socket, message)
        await group.letters.revive([letter.id], now_ms=5)
        again = await socket.next()
        assert (again["target"], again["op"], again["redelivery"]) == (0, "truncate", True)


async def test_a_resync_that_a_consumer_fails_with_never_comes_back_as_a_marker() -> None:
    async with limited() as group:
        socket = await group.consumer(0, limit=2)
        group.world.log.mark()
        await group.world.lanes.run()
        message = await socket.next()
        assert message["type"] == "resync"
        nack(socket, {**message, "seq": 1}, 2)
        assert (await socket.next())["type"] == "given_up"
        assert (await group.has_letter()).delivery.op != "lost"
