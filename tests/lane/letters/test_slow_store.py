"""A store of letters that takes its time: who waits for it, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from unittest.mock import patch

import pytest

from headgate.errors import NotNow, StorageFailed
from headgate.model.event import PartitionRef
from headgate.model.letters import Letter, NewLetter
from headgate.model.subscription import Subscription
from headgate.ports.letters import NO_SEQS, Fences
from tests.lane.world import FaultyLetters, LaneWorld, everything, on_virtual_time, settle_down
from tests.virtual_time import run_virtual
from tests.written_log import TOPIC

DOWN = NotNow("down")
FIRST = Subscription("s2", "gateway-2", TOPIC, where="number == 0")
FEW = Subscription("s2", "gateway-2", TOPIC, where="number % 100 == 0")


class SlowLetters(FaultyLetters):
    """Half a second for whatever is written at a time."""

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        await asyncio.sleep(0.5)
        await super().put(letters, fences, now_ms=now_ms)


def slow_world(
    backlog: int, *, failures: int = 1_000, partitions: int = 1, queue_size: int = 10_000
) -> LaneWorld:
    """Gateway-1 fails, for good or a few times, and there is a backlog of the last partition."""
    world = LaneWorld(
        partitions=partitions, redrive_every_s=2.0, breaker_timeout_s=2.0, queue_size=queue_size
    )
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


@patch("headgate.lane.letters.redriving.FEW", -1)
@on_virtual_time
async def test_nothing_overtakes_letters_that_are_set_aside_while_others_are_written() -> None:
    """A partition has no letters in the store, and by then one that waits for it: it never has so
    few that what comes would wait in memory."""
    world = slow_world(12_000, failures=3, partitions=2)
    await world.subscribed(everything("s1"))
    for _ in range(200):
        world.append(1)
        await settle_down(0.1)
    await settle_down(30)
    assert world.gateways.seqs("gateway-1") == list(range(1, 201))
    assert world.gateways.seqs("gateway-1", 1) == list(range(1, 12_001))
    assert not world.letters.letters


few_wait = patch("headgate.lane.letters.writing.CAPACITY", 1_000)


@few_wait
@on_virtual_time
async def test_a_partition_that_sets_nothing_aside_is_read_while_another_waits_for_the_store() -> (
    None
):
    """Gateway-1 is dead, and wants nothing of the partition that only gateway-2 does."""
    world = slow_world(8_000, partitions=2, queue_size=1_000)
    await world.subscribed(Subscription("s1", "gateway-1", TOPIC, where="number > 0"), FIRST)
    await settle_down(2)
    for count in range(1, 31):
        world.append(1)
        await settle_down(0.1)
        assert len(world.gateways.seqs("gateway-2")) == count, "it waits for the letters"
    assert len(world.letters.of("parked")) < 6_000, "some still wait for the store"


@few_wait
@on_virtual_time
async def test_a_partition_that_set_something_aside_once_does_not_wait_for_ever() -> None:
    """The letters of the other one never come to an end."""
    world = slow_world(20_000, partitions=2, queue_size=1_000)
    world.append(1, mine=True)
    await world.subscribed(
        Subscription("s1", "gateway-1", TOPIC, where="number > 0 || mine == true"), FIRST
    )
    await settle_down(5)
    for count in range(1, 31):
        world.append(1)
        await settle_down(0.1)
        assert len(world.gateways.seqs("gateway-2")) == 1 + count, "it waits for the letters"
    assert len(world.letters.of("parked")) < 10_000, "many still wait for the store"


@few_wait
@on_virtual_time
async def test_partitions_that_wait_for_the_store_take_turns() -> None:
    world = slow_world(4_000, partitions=3, queue_size=1_000)
    world.append(4_000, partition=0)
    world.append(4_000, partition=1)
    await world.subscribed(everything("s1"), everything("s2", "gateway-2"))
    await settle_down(2)
    before = [len(world.gateways.seqs("gateway-2", number)) for number in range(3)]
    await settle_down(6)
    now = [len(world.gateways.seqs("gateway-2", number)) for number in range(3)]
    read = [after - then for after, then in zip(now, before, strict=True)]
    assert sum(read) >= 5_500, "as fast as letters are written"
    assert min(read) >= 1_500


@few_wait
@on_virtual_time
async def test_what_waits_for_the_store_is_bounded_however_many_partitions_it_is_of() -> None:
    world = slow_world(500, partitions=40, queue_size=1_000)
    for number in range(39):
        world.append(500, partition=number)
    await world.subscribed(everything("s1"), everything("s2", "gateway-2"))
    for _ in range(10):
        await settle_down(0.5)
        read = sum(len(world.gateways.seqs("gateway-2", number)) for number in range(40))
        assert read - len(world.letters.of("parked")) <= 2 * 1_000 + 1_000 + 500


@on_virtual_time
async def test_a_slow_gateway_does_not_fill_the_memory_of_its_lane() -> None:
    """What it keeps waiting is parked before the lane has to stop reading for everybody."""
    world = LaneWorld(queue_size=1_000)
    world.gateways.delays_s["gateway-1"] = 2.0
    world.append(6_000)
    with patch("headgate.lane.delivery.pipelines.REMEMBERED", 2_000):
        world.start()
        await world.subscribed(everything("s1"), everything("s2", "gateway-2"))
        await settle_down(10)
        assert len(world.gateways.seqs("gateway-2")) == 6_000
        assert len(world.gateways.seqs("gateway-1")) <= 500
        world.gateways.delays_s.clear()
        await settle_down(30)
        assert world.gateways.seqs("gateway-1") == list(range(1, 6_001))


class HangingLetters(FaultyLetters):
    """Whoever wants something hears only after a long time that it is away."""

    async def put(self, letters: Sequence[NewLetter], fences: Fences, *, now_ms: int) -> None:
        await self._hang()
        await super().put(letters, fences, now_ms=now_ms)

    async def parked(
        self,
        gateway_id: str,
        refs: Iterable[PartitionRef],
        *,
        each: int,
        after_seqs: Mapping[PartitionRef, int] = NO_SEQS,
    ) -> list[Letter]:
        await self._hang()
        return await super().parked(gateway_id, refs, each=each, after_seqs=after_seqs)

    async def _hang(self) -> None:
        if self.failing is not None:
            await asyncio.sleep(10)


OF_FIRST = Subscription("s1", "gateway-1", TOPIC, where="of == 0 || of == 1")
OF_SECOND = Subscription("s2", "gateway-2", TOPIC, where="of == 1 || of == 2")


async def with_one_dead_letter(letters: FaultyLetters, *, seconds: int) -> LaneWorld:
    """The store goes away, and then gateway-1, which is well, refuses a record of partition 0. It
    wants more of that than fits its queue; both want partition 1, gateway-2 alone partition 2."""
    world = LaneWorld(partitions=3, queue_size=1_000)
    world.letters = letters
    world.gateways.rejected = {("gateway-1", 5)}
    world.start()
    await world.subscribed(OF_FIRST, OF_SECOND)
    world.append(5, partition=1, of=-1)  # which nobody wants, and so nobody refuses
    letters.failing = StorageFailed("away")
    for _ in range(seconds * 50):
        world.append(10, partition=0, of=0)
        world.append(1, partition=1, of=1)
        world.append(1, partition=2, of=2)
        await settle_down(0.02)
    await settle_down()
    return world


@pytest.mark.parametrize("letters", [FaultyLetters, HangingLetters])
def test_a_dead_letter_that_cannot_be_written_holds_its_partition_alone(
    letters: type[FaultyLetters],
) -> None:
    run_virtual(holds_its_partition_alone(letters()))


async def holds_its_partition_alone(letters: FaultyLetters) -> None:
    world = await with_one_dead_letter(letters, seconds=12)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 6, 7, 8, 9, 10], "sent with it"
    assert world.gateways.seqs("gateway-2", 1) == list(range(6, 606))
    assert world.gateways.seqs("gateway-2", 2) == list(range(1, 601))
    assert world.gateways.seqs("gateway-1", 1) == list(range(6, 606)), (
        "nothing of it needs a letter"
    )
    world.letters.failing = None
    await settle_down(30)
    assert world.gateways.seqs("gateway-1") == [seq for seq in range(1, 6_001) if seq != 5]
    assert world.letters.seqs("dead") == [5]
    assert not world.letters.of("parked")


@pytest.mark.parametrize("letters", [FaultyLetters, HangingLetters])
def test_what_is_parked_and_cannot_be_read_holds_no_other_partition(
    letters: type[FaultyLetters],
) -> None:
    """The store goes away with letters in it."""

    async def scenario() -> None:
        world = LaneWorld(partitions=2, redrive_every_s=2.0)
        world.letters = letters()
        world.gateways.scripts["gateway-1"] = [DOWN] * 3
        world.append(3)
        world.start()
        await world.subscribed(everything("s1"))
        await settle_down(1)
        assert world.letters.seqs("parked") == [1, 2, 3]
        world.letters.failing = StorageFailed("away")
        for count in range(1, 201):
            world.append(1, partition=1)
            await settle_down(0.1)
            assert len(world.gateways.seqs("gateway-1", 1)) == count, "it waits for the store"
        world.letters.failing = None
        await settle_down(30)
        assert world.gateways.seqs("gateway-1") == [1, 2, 3]

    run_virtual(scenario())


@on_virtual_time
async def test_what_is_remembered_behind_one_dead_letter_holds_no_other_partition() -> None:
    """The store is away, and of a partition that others want nothing is forgotten behind it."""
    world = LaneWorld(partitions=2)
    world.gateways.rejected = {("gateway-1", 1)}
    with patch("headgate.lane.delivery.pipelines.REMEMBERED", 2_000):
        world.start()
        first = Subscription("s1", "gateway-1", TOPIC, where="first == true")
        await world.subscribed(first, everything("s2", "gateway-2"))
        world.letters.failing = StorageFailed("away")
        world.append(1, first=True)
        world.append(10_000)
        await settle_down(5)
        assert len(world.gateways.seqs("gateway-2")) < 2_500, "what it needs can't be written"
        for count in range(1, 31):
            world.append(1, partition=1)
            await settle_down(0.1)
            assert len(world.gateways.seqs("gateway-2", 1)) == count
        world.letters.failing = None
        await settle_down(10)
    assert world.gateways.seqs("gateway-2") == list(range(1, 10_002))
    assert world.letters.seqs("dead") == [1]
