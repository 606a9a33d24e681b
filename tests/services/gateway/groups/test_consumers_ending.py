"""How consumers end at a gateway: once, to the end, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate.model.control.to_coordinator import JoinGroup, LeaveGroup, ToCoordinator
from headgate.services.gateway.groups.bounds import SURE_LEAST_S, ConsumerBounds, sure_for_s
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.services.gateway.groups.doubles import GroupCoordinator
from tests.services.gateway.groups.test_consumers import (
    ack,
    assigned,
    committed,
    grouped,
    join,
    produce,
)
from tests.services.gateway.world import World, WsSubscriber, until

JOIN = {"type": "join", "topic": "flights", "group": "radar", "consumer": "one", "incarnation": "1"}


async def with_something_unsaved(
    world: World, coordinator: GroupCoordinator
) -> tuple[WsSubscriber, dict[str, Any]]:
    """A consumer, and what it acknowledged."""
    coordinator.give("one", 0)
    socket = await join(world)
    await assigned(socket, 1)
    await produce(world, *range(0, 80, 2))
    first = await socket.next()
    ack(socket, first)
    await until(lambda: any(target.unsaved() for target in targets(world)))
    return socket, first


def targets(world: World) -> list[Any]:
    table = world.gateway._consumers._table
    return [target for consumer in table.values() for target in consumer.targets()]


def is_nobody_there(world: World, coordinator: GroupCoordinator) -> bool:
    return not len(world.gateway._consumers) and not coordinator.registry


# --- to the end ----------------------------------------------------------------------------------


async def test_a_connection_that_breaks_while_it_replaces_another_leaves_nobody_behind() -> None:
    checkpoints = FaultyCheckpoints()
    bounds = ConsumerBounds(save_s=60)
    async with grouped(checkpoints=checkpoints, consumers=bounds) as (world, coordinator):
        _, first = await with_something_unsaved(world, coordinator)
        [former] = world.gateway._consumers._table.values()
        checkpoints.takes_s = 0.1
        again = await world.consumer_connection()
        again.say(**JOIN)
        await until(lambda: former.ended)
        again.leave()
        await until(lambda: is_nobody_there(world, coordinator))
        assert coordinator.left() == [("one", False)]
        assert committed(world, 0, 0) == first["seq"]


async def test_one_that_replaces_another_twice_at_once_is_there_once() -> None:
    checkpoints = FaultyCheckpoints()
    bounds = ConsumerBounds(save_s=60)
    async with grouped(checkpoints=checkpoints, consumers=bounds) as (world, coordinator):
        await with_something_unsaved(world, coordinator)
        [former] = world.gateway._consumers._table.values()
        checkpoints.takes_s = 0.05
        second, third = [await world.consumer_connection() for _ in range(2)]
        second.say(**JOIN)
        await until(lambda: former.ended)
        third.say(**JOIN)
        while (last := await second.next())["type"] != "error":
            pass
        assert last["error"]["code"] == "unavailable"
        assert (await third.next())["type"] == "joined"
        await assigned(third, 1)
        assert (len(world.gateway._consumers), len(coordinator.registry)) == (1, 1)


async def test_a_save_that_fails_unforeseen_leaves_nobody_behind() -> None:
    checkpoints = FaultyCheckpoints()
    bounds = ConsumerBounds(save_s=60)
    async with grouped(checkpoints=checkpoints, consumers=bounds) as (world, coordinator):
        socket, _ = await with_something_unsaved(world, coordinator)
        checkpoints.failing = RuntimeError("nobody thought of this")
        socket.leave()
        await until(lambda: is_nobody_there(world, coordinator))
        assert coordinator.left() == [("one", False)]


async def test_a_connection_that_breaks_after_its_time_to_join_leaves_nobody_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with grouped(consumers=ConsumerBounds(join_s=0.05)) as (world, coordinator):
        coordinator.answering = False
        control = world.gateway._control
        send, leaving = control.send, asyncio.Event()

        async def slow(message: ToCoordinator) -> bool:
            if isinstance(message, LeaveGroup):
                leaving.set()
                await asyncio.sleep(0.1)
            return await send(message)

        monkeypatch.setattr(control, "send", slow)
        socket = await world.consumer_connection()
        socket.say(**JOIN)
        await leaving.wait()
        socket.leave()
        await until(lambda: coordinator.left() == [("one", False)])
        assert is_nobody_there(world, coordinator)


async def test_who_has_left_is_handed_nothing_more() -> None:
    bounds = ConsumerBounds(prefetch=1, save_s=60)
    async with grouped(consumers=bounds) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        await produce(world, *range(0, 80, 2))
        ack(socket, await socket.next())
        socket.say(type="leave")
        assert (await socket.next())["type"] == "ended"


# --- before it has joined ------------------------------------------------------------------------


async def test_who_leaves_while_joining_leaves_for_good() -> None:
    async with grouped() as (world, coordinator):
        coordinator.answering = False
        socket = await world.consumer_connection()
        socket.say(**JOIN)
        await until(lambda: bool(coordinator.of_kind(JoinGroup)))
        [asked] = [one for one in coordinator.received if isinstance(one, JoinGroup)]
        socket.say(type="leave")
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong", "nobody has taken it in"
        coordinator.answer(asked)
        while (await socket.next())["type"] != "ended":
            pass
        assert await socket.closed() == 1000
        assert coordinator.left() == [("one", True)]
        assert is_nobody_there(world, coordinator)


async def test_who_leaves_while_joining_need_not_wait_for_an_answer() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0)
        socket = await world.consumer_connection()
        socket.say(**JOIN)
        socket.say(type="leave")
        await socket.ask(type="ping", id="p")
        socket.leave()
        await until(lambda: coordinator.left() == [("one", True)])
        await until(lambda: is_nobody_there(world, coordinator))


async def test_who_leaves_while_it_replaces_its_former_connection_leaves_for_good() -> None:
    checkpoints = FaultyCheckpoints()
    bounds = ConsumerBounds(save_s=60)
    async with grouped(checkpoints=checkpoints, consumers=bounds) as (world, coordinator):
        _, first = await with_something_unsaved(world, coordinator)
        [former] = world.gateway._consumers._table.values()
        checkpoints.takes_s = 0.05
        again = await world.consumer_connection()
        again.say(**JOIN)
        await until(lambda: former.ended)
        again.say(type="leave")
        await again.ask(type="ping", id="p")
        again.leave()
        await until(lambda: coordinator.left()[-1:] == [("one", True)])
        await until(lambda: is_nobody_there(world, coordinator))
        assert committed(world, 0, 0) == first["seq"]


async def test_who_leaves_and_is_not_taken_in_in_time_has_left_for_good() -> None:
    async with grouped(consumers=ConsumerBounds(join_s=0.1)) as (world, coordinator):
        coordinator.answering = False
        socket = await world.consumer_connection()
        socket.say(**JOIN)
        await until(lambda: bool(coordinator.of_kind(JoinGroup)))
        socket.say(type="leave")
        await until(lambda: coordinator.left() == [("one", True)])
        await socket.closed()


async def test_who_is_cut_off_while_joining_may_come_back() -> None:
    async with grouped() as (world, coordinator):
        coordinator.answering = False
        socket = await world.consumer_connection()
        socket.say(**JOIN)
        await until(lambda: bool(coordinator.of_kind(JoinGroup)))
        socket.leave()
        await until(lambda: coordinator.left() == [("one", False)])
        assert is_nobody_there(world, coordinator)


@pytest.mark.parametrize("lease_s", [30.0, 10.0, 3.0, 2.0])
def test_nothing_is_handed_out_past_the_lease_of_a_gateway_that_is_cut_off(lease_s: float) -> None:
    """Which began with the check-in from which on it is sure."""
    sure_s = sure_for_s(lease_s=lease_s)
    assert SURE_LEAST_S <= sure_s <= lease_s * 3 / 4
