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


def slow_world(count: int) -> LaneWorld:
    """Gateway-1 is dead, and there is a backlog."""
    world = LaneWorld(redrive_every_s=2.0, breaker_timeout_s=2.0)
    world.letters = SlowLetters()
    world.gateways.scripts["gateway-1"] = [DOWN] * 1_000
    world.append(count)
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
