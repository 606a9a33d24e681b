"""Targets of a group whose store is slow, or has lost what it had, and whose log has lost its
history: everything comes, or somebody is told."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.errors import StorageFailed
from headgate.model.control.to_coordinator import EpochTooLow
from headgate.model.event import Fence, PartitionRef
from headgate.model.position import Position, Tally
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.groups.target import Target
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.services.gateway.groups.test_consumers import (
    TARGETS,
    append,
    assigned,
    committed,
    grouped,
    join,
    of_target,
    produce,
)
from tests.services.gateway.world import World, until


class Gated(FaultyCheckpoints):
    """Claims and saves wait while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def claim(
        self, ref: PartitionRef, fence: Fence, *, after: Collection[Fence] | None = None
    ) -> Position:
        await self._pass()
        return await super().claim(ref, fence, after=after)

    async def save(self, ref: PartitionRef, fence: Fence, settled: int, tally: Tally) -> None:
        await self._pass()
        await super().save(ref, fence, settled, tally)

    async def _pass(self) -> None:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1


def only_target(world: World) -> Target:
    [consumer] = world.gateway._consumers._table.values()
    [target] = consumer.targets()
    return target


async def test_what_waited_while_nobody_was_sure_comes_once_the_store_has_answered() -> None:
    checkpoints = Gated()
    bounds = ConsumerBounds(save_s=0.01, unsure_s=0.3)
    async with grouped(checkpoints=checkpoints, consumers=bounds) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        target = only_target(world)
        coordinator.disconnect()
        checkpoints.gate.clear()
        await until(lambda: checkpoints.waiting > 0)
        assert target.is_sure, "the question was asked in time"
        await until(lambda: not target.is_sure)
        records = of_target(await produce(world, *range(0, 40, 2)), 0)
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong", "nothing came"
        checkpoints.gate.set()
        came = [await socket.next() for _ in records]
        assert [(m["partition"], m["seq"]) for m in came] == records


async def test_an_answer_that_took_long_says_nothing_of_the_time_since_the_question() -> None:
    checkpoints = Gated()
    bounds = ConsumerBounds(save_s=0.01, unsure_s=0.3)
    async with grouped(checkpoints=checkpoints, consumers=bounds) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        target = only_target(world)
        coordinator.disconnect()
        checkpoints.gate.clear()
        await until(lambda: not target.is_sure)
        asked = asyncio.create_task(target.check())
        await until(lambda: checkpoints.waiting > 1)
        await asyncio.sleep(bounds.unsure_s)
        checkpoints.gate.set()
        await asked
        assert not target.is_sure


async def test_a_claim_that_fails_leaves_no_other_under_way() -> None:
    class HalfAway(Gated):
        async def claim(
            self, ref: PartitionRef, fence: Fence, *, after: Collection[Fence] | None = None
        ) -> Position:
            if not self.gate.is_set() and ref.partition == 0:
                raise StorageFailed("its part of the store is away")
            return await super().claim(ref, fence, after=after)

    checkpoints = HalfAway()
    async with grouped(checkpoints=checkpoints) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        target = only_target(world)
        checkpoints.gate.clear()
        asked = asyncio.create_task(target.take_again())
        await until(lambda: checkpoints.waiting > 0)
        assert not asked.done(), "or whoever asks again adds to those that hang"
        checkpoints.gate.set()
        with pytest.raises(StorageFailed, match="its part"):
            await asked
        assert checkpoints.waiting == 0


async def test_it_comes_too_when_the_coordinator_was_there_and_only_a_save_took_long() -> None:
    checkpoints = Gated()
    bounds = ConsumerBounds(save_s=0.01, unsure_s=0.3)
    async with grouped(checkpoints=checkpoints, consumers=bounds) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        target = only_target(world)
        checkpoints.gate.clear()
        first = of_target(await produce(world, *range(0, 40, 2)), 0)
        came = [await socket.next() for _ in first]
        socket.say(type="ack", target=0, epoch=1, positions={"0": came[-1]["seq"]})
        await until(lambda: checkpoints.waiting > 0)
        await until(lambda: not target.is_sure)
        second = of_target(await produce(world, *range(0, 40, 2)), 0)
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong", "nothing came"
        checkpoints.gate.set()
        came = [await socket.next() for _ in second]
        assert [(m["partition"], m["seq"]) for m in came] == second


async def test_a_former_owner_says_nothing_of_the_epoch_that_overtook_it() -> None:
    """It hears that it was overtaken from a store that took long, when the target is somebody's."""
    checkpoints = Gated()
    bounds = ConsumerBounds(save_s=0.01)
    async with grouped(checkpoints=checkpoints, consumers=bounds) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        [first, *_] = of_target(await produce(world, *range(0, 40, 2)), 0)
        await socket.next()
        checkpoints.gate.clear()
        socket.say(type="ack", target=0, epoch=1, positions={"0": first[1]})
        await until(lambda: checkpoints.waiting > 0)
        coordinator.take("one", 0)
        while (await socket.next())["type"] != "revoked":
            pass
        for number in range(2):
            ref = PartitionRef(f"@group/flights/radar/0-of-{TARGETS}", number)
            await MemoryCheckpointStore.claim(checkpoints, ref, Fence(2))
        checkpoints.gate.set()
        await until(lambda: checkpoints.waiting == 0)
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong"
        assert coordinator.of_kind(EpochTooLow) == []


async def test_what_somebody_else_has_under_the_same_epoch_waits_for_a_higher_one() -> None:
    """The coordinator has forgotten that it gave that epoch out before."""
    async with grouped() as (world, coordinator):
        for number in range(2):
            ref = PartitionRef(f"@group/flights/radar/0-of-{TARGETS}", number)
            await world.checkpoints.claim(ref, Fence(3, claimant="somebody"))
        coordinator.give("one", 0, epoch=3)
        socket = await join(world)
        await until(lambda: bool(coordinator.of_kind(EpochTooLow)))
        said = coordinator.of_kind(EpochTooLow)[0]
        assert isinstance(said, EpochTooLow)
        assert (said.epoch, said.own) == (3, 3), "to be given it above that"
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong", "it isn't assigned"
        coordinator.give("one", 0, epoch=4)
        assert (await socket.next())["type"] == "revoked"
        assert (await assigned(socket, 1))[0]["epoch"] == 4


async def test_the_next_owner_begins_where_the_group_is_and_not_where_it_once_began() -> None:
    bounds = ConsumerBounds(beyond_end_s=0.0, save_s=0.02)
    async with grouped(consumers=bounds) as (world, coordinator):
        append(world, *range(0, 80, 2))  # 40 records, which a new group begins after
        coordinator.give("one", 0, epoch=1)
        socket = await join(world)
        assert (await assigned(socket, 1))[0]["positions"]["0"] == 40
        # The log and the positions are lost together, so that nobody moves the log on.
        coordinator.take("one", 0)
        assert (await socket.next())["type"] == "revoked"
        world.log.lose_history(PartitionRef("flights", 0))
        world.checkpoints.stored.clear()
        append(world, *range(0, 6, 2))
        coordinator.give("one", 0, epoch=2)
        assert (await assigned(socket, 1))[0]["positions"]["0"] == 3
        assert (await socket.next())["type"] == "resync"
        socket.say(type="ack", target=0, epoch=2, positions={"0": 3})
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong"
        await until(lambda: committed(world, 0, 0) >= 3)
        coordinator.take("one", 0)
        assert (await socket.next())["type"] == "revoked"
        done = committed(world, 0, 0)
        records = append(world, *range(6, 120, 2))
        wanted = [place for place in of_target(records, 0) if place[1] > done]
        coordinator.give("one", 0, epoch=3)
        assert (await assigned(socket, 1))[0]["positions"]["0"] == done
        assert (await socket.next())["type"] == "resync", "until it is where it had been"
        came = [await socket.next() for _ in wanted]
        assert [(m["partition"], m["seq"]) for m in came] == wanted


async def test_it_goes_on_where_a_log_that_lost_everything_begins_anew() -> None:
    bounds = ConsumerBounds(beyond_end_s=0.0, save_s=0.02)
    async with grouped(consumers=bounds) as (world, coordinator):
        append(world, *range(0, 80, 2))
        coordinator.give("one", 0, epoch=1)
        socket = await join(world)
        assert (await assigned(socket, 1))[0]["positions"]["0"] == 40
        coordinator.take("one", 0)
        assert (await socket.next())["type"] == "revoked"
        world.log.lose_history(PartitionRef("flights", 0))
        world.checkpoints.stored.clear()
        coordinator.give("one", 0, epoch=2)
        assert (await assigned(socket, 1))[0]["positions"]["0"] == 0
        assert (await socket.next())["type"] == "resync"
        coordinator.take("one", 0)
        assert (await socket.next())["type"] == "revoked"
        append(world, *range(0, 100, 2))
        coordinator.give("one", 0, epoch=3)
        assert (await assigned(socket, 1))[0]["positions"]["0"] == 0
