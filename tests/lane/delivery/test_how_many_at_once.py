"""A lane and a gateway that takes only so much at once: what is parked gets through in the end,
beside whatever else is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from headgate.errors import NotNow, StorageFailed, TooLarge
from headgate.model.control import from_coordinator
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch
from headgate.model.event import PartitionRef
from headgate.model.letters import Letter
from headgate.ports.letters import NO_SEQS
from tests.lane.world import (
    FakeGateways,
    FaultyLetters,
    LaneWorld,
    everything,
    on_virtual_time,
    settle_down,
)

DOWN = NotNow("down")


class NarrowGateways(FakeGateways):
    """Takes so many large records at once, those of partition 0; others as they come."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.refusals = 0

    async def _answer(self, batch: DeliveryBatch) -> DeliveryAnswer:
        if sum(one.partition == 0 for one in batch.deliveries) > self.most:
            self.refusals += 1
            raise TooLarge("more than fits")
        await asyncio.sleep(0.002)
        return await super()._answer(batch)


class SlowGateways(FakeGateways):
    """Whatever comes takes so long, record by record."""

    def __init__(self, each_s: float) -> None:
        super().__init__()
        self.each_s = each_s

    async def _answer(self, batch: DeliveryBatch) -> DeliveryAnswer:
        await asyncio.sleep(self.each_s * len(batch.deliveries))
        return await super()._answer(batch)


async def flow(world: LaneWorld, per_s: int, *, partition: int) -> None:
    while True:
        world.append(1, partition=partition)
        await asyncio.sleep(1 / per_s)


@on_virtual_time
async def test_letters_refused_as_too_large_arrive_while_another_partition_is_busy() -> None:
    world = LaneWorld(partitions=2)
    gateways = world.gateways = NarrowGateways(4)
    world.start()
    await world.subscribed(everything("s1"))
    gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(100)
    await settle_down(9)
    assert len(world.letters.seqs("parked")) == 100
    flowing = asyncio.create_task(flow(world, 1_500, partition=1))
    await settle_down(4)
    flowing.cancel()
    assert gateways.seqs("gateway-1") == list(range(1, 101))
    assert not world.letters.letters
    assert gateways.refusals <= 10
    await settle_down()
    seqs = gateways.seqs("gateway-1", 1)
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) >= 5_000
    await world.die()


@on_virtual_time
async def test_a_partition_gets_out_of_letters_of_which_a_full_page_takes_too_long() -> None:
    """An outage, then more comes all the time, less than what the link takes: 60 ms each, so
    that 100 at once don't arrive within the 5 s there are for a batch."""
    world = LaneWorld()
    world.gateways = SlowGateways(0.06)
    world.start()
    await world.subscribed(everything("s1"))
    world.gateways.scripts["gateway-1"] = [DOWN] * 6
    flowing = asyncio.create_task(flow(world, 10, partition=0))
    await settle_down(600)
    flowing.cancel()
    await settle_down(1)
    seqs = world.gateways.seqs("gateway-1")
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) >= 5_990
    assert not world.letters.letters, "nothing is parked any more"
    await world.die()


class SlowLetters(FaultyLetters):
    """Reading more than `most` letters at once takes too long."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.too_long = 0

    async def parked(
        self,
        gateway_id: str,
        refs: Iterable[PartitionRef],
        *,
        each: int,
        after_seqs: Mapping[PartitionRef, int] = NO_SEQS,
    ) -> list[Letter]:
        return await self._read(
            await super().parked(gateway_id, refs, each=each, after_seqs=after_seqs)
        )

    async def revived(
        self, refs: Iterable[PartitionRef], *, after_id: int, limit: int
    ) -> list[Letter]:
        return await self._read(await super().revived(refs, after_id=after_id, limit=limit))

    async def _read(self, letters: list[Letter]) -> list[Letter]:
        if len(letters) > self.most:
            self.too_long += 1
            await asyncio.sleep(2.0)
            raise StorageFailed("nothing came within 2 s")
        return letters


@on_virtual_time
async def test_letters_that_take_too_long_to_read_are_read_a_few_at_a_time() -> None:
    world = LaneWorld()
    letters = world.letters = SlowLetters(7)
    world.start()
    await world.subscribed(everything("s1"))
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(300)
    await settle_down(40)
    assert world.gateways.seqs("gateway-1") == list(range(1, 301))
    assert not letters.letters
    assert letters.too_long <= 8
    await world.die()


@on_virtual_time
async def test_what_an_operator_wants_is_read_a_few_at_a_time_where_more_takes_too_long() -> None:
    world = LaneWorld()
    letters = world.letters = SlowLetters(7)
    world.start()
    await world.subscribed(everything("s1"))
    world.gateways.rejected = {("gateway-1", seq) for seq in range(1, 101)}
    world.append(100)
    await settle_down(2)
    assert len(letters.seqs("dead")) == 100
    world.gateways.rejected = set()
    await letters.revive([one.id for one in letters.letters], now_ms=1)
    world.push(from_coordinator.LettersRevived())
    await settle_down(120)
    assert sorted(world.gateways.seqs("gateway-1")) == list(range(1, 101))
    assert not letters.letters
    assert letters.too_long <= 12
    await world.die()
