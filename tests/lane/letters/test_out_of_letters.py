"""A partition that was parked gets out of its letters although more comes all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from headgate.errors import NotNow
from headgate.model.control import from_coordinator
from headgate.model.event import PartitionRef
from headgate.model.letters import Letter, NewLetter
from headgate.model.subscription import Subscription
from headgate.ports.letters import NO_SEQS, Fences
from tests.lane.world import FaultyLetters, LaneWorld, everything, on_virtual_time, settle_down

DOWN = NotNow("down")


class FarLetters(FaultyLetters):
    """Every call takes so long, however many letters it is about."""

    def __init__(self, call_s: float) -> None:
        super().__init__()
        self.call_s = call_s
        self.written = 0
        self.read_at_once = 0
        """The most letters that one call brought."""

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        await asyncio.sleep(self.call_s)
        self.written += len(letters)
        await super().put(letters, fences, now_ms=now_ms)

    async def parked(
        self,
        gateway_id: str,
        refs: Iterable[PartitionRef],
        *,
        each: int,
        after_seqs: Mapping[PartitionRef, int] = NO_SEQS,
    ) -> list[Letter]:
        await asyncio.sleep(self.call_s)
        found = await super().parked(gateway_id, refs, each=each, after_seqs=after_seqs)
        self.read_at_once = max(self.read_at_once, len(found))
        return found

    async def remove(self, letters: Sequence[Letter], fences: Fences) -> None:
        await asyncio.sleep(self.call_s)
        await super().remove(letters, fences)


class Flow:
    """So many records a second, over all partitions, after the gateway was away for a moment; a
    batch takes it `batch_s`."""

    def __init__(self, per_s: int, *, call_s: float, batch_s: float, partitions: int = 1) -> None:
        self.world = LaneWorld(partitions=partitions, redrive_every_s=2.0, breaker_timeout_s=2.0)
        self.letters = self.world.letters = FarLetters(call_s)
        self.world.gateways.delays_s["gateway-1"] = batch_s
        self.partitions, self.pause_s = partitions, 1 / per_s
        self.count = 0

    async def begin(self, *others: Subscription) -> None:
        self.world.start()
        await self.world.subscribed(everything("s1"), *others)
        self.world.gateways.scripts["gateway-1"] = [DOWN] * 6
        self._flowing = asyncio.create_task(self._flow())

    async def _flow(self) -> None:
        while True:
            self.world.append(1, partition=self.count % self.partitions)
            self.count += 1
            await asyncio.sleep(self.pause_s)

    def stop(self) -> None:
        self._flowing.cancel()

    async def end(self) -> None:
        """Everything arrived, in its order."""
        self.stop()
        await settle_down(5)
        for number in range(self.partitions):
            seqs = self.world.gateways.seqs("gateway-1", number)
            assert seqs == list(range(1, len(seqs) + 1))
        assert len(self.world.gateways.accepted["gateway-1"]) == self.count
        await self.world.die()


@on_virtual_time
async def test_what_comes_while_the_last_letters_are_sent_is_not_parked_behind_them() -> None:
    """Or each record is, for ever: one comes every 5 ms, which is as long as each call takes."""
    flow = Flow(200, call_s=0.005, batch_s=0.005)
    await flow.begin()
    await settle_down(15)
    assert flow.letters.letters == []
    written = flow.letters.written
    await settle_down(10)
    assert flow.letters.written == written, "nothing is parked any more"
    await flow.end()


@on_virtual_time
async def test_letters_leave_a_slow_store_as_fast_as_they_come_into_it() -> None:
    """300 come every second; the gateway takes 1,000, and each call of the store a fifth of one."""
    flow = Flow(300, call_s=0.2, batch_s=0.1, partitions=4)
    await flow.begin()
    await settle_down(8)
    assert len(flow.letters.of("parked")) > 1_000
    await settle_down(30)
    assert flow.letters.letters == []
    await flow.end()


@on_virtual_time
async def test_the_gateway_goes_away_again_while_records_wait_behind_the_last_letters() -> None:
    flow = Flow(200, call_s=0.02, batch_s=0.02)
    await flow.begin()
    for _ in range(40):
        await settle_down(0.9)
        flow.world.gateways.scripts["gateway-1"] = [DOWN] * 2
    await settle_down(60)
    assert flow.letters.letters == []
    await flow.end()


@on_virtual_time
async def test_large_letters_are_not_read_by_the_hundred() -> None:
    world = LaneWorld(redrive_every_s=2.0, breaker_timeout_s=2.0, batch_max_size=10)
    letters = world.letters = FarLetters(0.01)
    world.gateways.scripts["gateway-1"] = [DOWN] * 6
    world.append(100, large="x" * 500_000)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(30)
    assert world.gateways.seqs("gateway-1") == list(range(1, 101))
    assert letters.read_at_once <= 16, "8 MB"
    await world.die()


@on_virtual_time
async def test_a_partition_whose_letters_are_sent_is_read_no_faster_than_that() -> None:
    """500 come every second, and the only gateway takes half of them: the rest stays in the log."""
    flow = Flow(500, call_s=0.05, batch_s=0.4)
    await flow.begin()
    alone = replace(flow.world.topology("gateway-1"), generation=2)
    flow.world.push(from_coordinator.PushTopology(alone))
    await settle_down(15)
    parked = len(flow.letters.of("parked"))
    await settle_down(15)
    assert len(flow.letters.of("parked")) < parked
    flow.stop()
    await settle_down(60)
    await flow.end()


@on_virtual_time
async def test_others_do_not_wait_for_letters_that_are_sent_too_slowly() -> None:
    flow = Flow(500, call_s=0.05, batch_s=0.4)
    await flow.begin(everything("s2", "gateway-2"))
    await settle_down(15)
    parked = len(flow.letters.of("parked"))
    await settle_down(15)
    assert len(flow.letters.of("parked")) > parked + 1_000
    assert len(flow.world.gateways.seqs("gateway-2")) > flow.count - 200
    flow.stop()
    await settle_down(60)
    await flow.end()
