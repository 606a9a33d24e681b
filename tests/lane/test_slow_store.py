"""A store of letters that takes its time: who waits for it, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headgate.errors import NotNow
from headgate.model.letters import NewLetter
from headgate.model.subscription import Subscription
from headgate.ports.letters import Fences
from tests.lane.world import FaultyLetters, LaneWorld, everything, on_virtual_time, settle_down
from tests.written_log import TOPIC

DOWN = NotNow("down")
FEW = Subscription("s2", "gateway-2", TOPIC, where="number % 100 == 0")


class SlowLetters(FaultyLetters):
    """Half a second for whatever is written at a time."""

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        await asyncio.sleep(0.5)
        await super().put(letters, fences, now_ms=now_ms)


def slow_world(backlog: int, *, failures: int = 1_000, partitions: int = 1) -> LaneWorld:
    """Gateway-1 fails, for good or a few times, and there is a backlog of the last partition."""
    world = LaneWorld(partitions=partitions, redrive_every_s=2.0, breaker_timeout_s=2.0)
    world.letters = SlowLetters()
    world.gateways.scripts["gateway-1"] = [DOWN] * failures
    world.append(backlog, partition=partitions - 1)
    world.start()
    return world


@on_virtual_time
async def test_letters_of_one_gateway_do_not_wait_for_those_of_a_dead_one() -> None:
    world = slow_world(15_000)
    world.gateways.scripts["gateway-2"] = [DOWN] * 3
    await world.subscribed(everything("s1"), FEW)
    await settle_down(8)
    assert len(world.letters.of("parked")) < 9_000, "those of gateway-1 still wait for the store"
    assert world.gateways.seqs("gateway-2") == list(range(1, 15_000, 100))


@on_virtual_time
async def test_dead_letters_of_one_gateway_do_not_wait_for_what_a_dead_one_set_aside() -> None:
    world = slow_world(15_000)
    world.gateways.rejected = {("gateway-2", 1), ("gateway-2", 5_001)}
    await world.subscribed(everything("s1"), FEW)
    await settle_down(6)
    assert len(world.letters.of("parked")) < 7_000, "those of gateway-1 still wait for the store"
    assert world.letters.seqs("dead", "gateway-2") == [1, 5_001]
    taken = world.gateways.seqs("gateway-2")
    assert taken == [seq for seq in range(1, 15_000, 100) if seq not in {1, 5_001}]


@on_virtual_time
async def test_letters_go_although_the_store_never_catches_up_with_those_behind_them() -> None:
    world = slow_world(40_000, failures=3)
    await world.subscribed(everything("s1"))
    await settle_down(28)
    taken = len(world.gateways.seqs("gateway-1"))
    assert len(world.letters.of("parked")) + taken < 32_000, "many still wait for the store"
    assert taken > 5_000
    await settle_down(60)
    assert world.gateways.seqs("gateway-1") == list(range(1, 40_001))
    assert not world.letters.letters


@on_virtual_time
async def test_nothing_overtakes_letters_that_are_set_aside_while_others_are_written() -> None:
    """A partition has no letters in the store, and by then one that waits for it."""
    world = slow_world(12_000, failures=3, partitions=2)
    await world.subscribed(everything("s1"))
    for _ in range(200):
        world.append(1)
        await settle_down(0.1)
    await settle_down(30)
    assert world.gateways.seqs("gateway-1") == list(range(1, 201))
    assert world.gateways.seqs("gateway-1", 1) == list(range(1, 12_001))
    assert not world.letters.letters
