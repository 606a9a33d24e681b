"""A parked letter that nobody can read holds what is behind it of its partition for its gateway,
and nothing else, until it is deleted, or its store is brought back from a copy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from headgate.errors import NotNow, StorageFailed
from headgate.lane.letters.elders import Elders
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.letters import Letter, NewLetter
from tests.lane.delivery.test_setting_aside import report
from tests.lane.world import (
    FaultyLetters,
    LaneWorld,
    everything,
    on_virtual_time,
    settle_down,
)
from tests.virtual_time import run_virtual
from tests.written_log import TOPIC

DOWN = NotNow("down")
PARTITIONS = 4
BEFORE = 100
"""Records of each partition that are parked, more than fit into a page."""


async def with_letters(*, partitions: int = PARTITIONS) -> LaneWorld:
    """A lane whose gateway is down, with letters for it of all partitions."""
    world = LaneWorld(partitions=partitions, redrive_every_s=10.0, batch_max_size=50)
    world.start()
    await world.subscribed(everything("s1"))
    world.gateways.scripts["gateway-1"] = [DOWN] * 40
    for number in range(partitions):
        world.append(BEFORE, partition=number)
    await settle_down(5)
    assert len(world.letters.of("parked")) == partitions * BEFORE
    return world


def letter_of(world: LaneWorld, seq: int, partition: int = 0) -> Letter:
    [found] = [
        one
        for one in world.letters.of("parked")
        if (one.ref.partition, one.delivery.seq) == (partition, seq)
    ]
    return found


def damage(world: LaneWorld, seq: int, partition: int = 0) -> int:
    """Its id."""
    one = letter_of(world, seq, partition)
    world.letters.stored.letters[one.id] = replace(one, damage="a bit has flipped")
    return one.id


@pytest.mark.parametrize("way", ["damaged", "unreadable"])
def test_it_holds_no_other_partitions_letters(way: str) -> None:
    """Nor those of it that were written before."""
    run_virtual(_it_holds_no_other_partitions_letters(way))


async def _it_holds_no_other_partitions_letters(way: str) -> None:
    world = await with_letters()
    if way == "damaged":
        damage(world, 61)
    else:
        world.letters.damaged = {letter_of(world, 61).id}
    world.gateways.scripts["gateway-1"] = []
    await settle_down(11)  # until letters are tried again
    seqs = range(1, BEFORE + 1)
    for round_ in range(30):
        for number in range(PARTITIONS):
            world.append(20, partition=number)
        await settle_down(1)
        seqs = range(1, BEFORE + 20 * (round_ + 1) + 1)
    await settle_down(1)
    for number in range(1, PARTITIONS):
        assert world.gateways.seqs("gateway-1", number) == [*seqs]
    held = world.gateways.seqs("gateway-1", 0)
    assert held == [*seqs][: len(held)]
    assert 30 < len(held) <= 60, "a page that can be read is sent"


@on_virtual_time
async def test_it_says_what_can_be_done_and_its_partition_goes_on_when_that_is_done() -> None:
    world = await with_letters(partitions=2)
    id_ = damage(world, 3)
    world.gateways.scripts["gateway-1"] = []
    await settle_down(60)
    world.append(5)
    await settle_down(30)
    assert world.gateways.seqs("gateway-1") == [1, 2]
    assert world.position() == BEFORE + 5, "what is set aside is settled"
    one, other = report(world).partitions
    assert one.reason.startswith("gateway-1: the letter of record 3: it is damaged")
    assert f"give it up with `headgate dlq delete {id_}`" in one.reason
    assert other.reason == ""
    assert await world.letters.delete([id_]) == [id_]
    await settle_down(30)
    assert world.gateways.seqs("gateway-1") == [1, 2, *range(4, BEFORE + 6)]
    assert world.letters.letters == []
    assert [one.reason for one in report(world).partitions] == ["", ""]


@on_virtual_time
async def test_the_next_lane_stands_still_there_too() -> None:
    world = await with_letters(partitions=2)
    id_ = damage(world, 1)
    await world.ended()
    world.gateways.scripts["gateway-1"] = []
    successor = world.successor(window=4)
    successor.start()
    await successor.subscribed(everything("s1"))
    for number in range(2):
        successor.append(5, partition=number)
    await settle_down(60)
    assert successor.gateways.seqs("gateway-1", 0) == []
    assert successor.gateways.seqs("gateway-1", 1) == [*range(1, BEFORE + 6)]
    await successor.letters.delete([id_])
    await settle_down(30)
    assert successor.gateways.seqs("gateway-1", 0) == [*range(2, BEFORE + 6)]


@pytest.mark.parametrize("way", ["damaged", "unreadable"])
def test_what_comes_before_a_repartition_holds_its_own_heirs_alone(way: str) -> None:
    """Of the four partitions 2 and 3 come from 0 and 1, each of which has something parked."""
    run_virtual(_it_holds_its_own_heirs(way))


async def _it_holds_its_own_heirs(way: str) -> None:
    refs = [PartitionRef(TOPIC, number) for number in range(4)]
    store = FaultyLetters()
    fences = {ref: Fence(1) for ref in refs}
    await store.put([letter(1, number) for number in range(2)], fences, now_ms=1)
    first, second = store.of("parked")
    if way == "damaged":
        store.stored.letters[first.id] = replace(first, damage="a bit has flipped")
    else:
        store.damaged = {first.id}

    class Holding:
        """What of it is asked."""

        def before(self, ref: PartitionRef, version: int) -> dict[PartitionRef, int]:
            return {refs[ref.partition - 2]: 5}

    elders = Elders("gateway-1", store, cast("Any", Holding()))
    heirs = dict.fromkeys(refs[2:], 2)
    await elders.awaited_by(heirs, 0.0)
    assert set(await elders.awaited_by(heirs, 20.0)) == {*refs[2:]}
    await store.remove([second], fences)
    assert await elders.awaited_by(heirs, 40.0) == {refs[2]: False}
    await store.delete([first.id])
    store.damaged = set()
    await store.remove([first], fences)
    assert await elders.awaited_by(heirs, 60.0) == {}


def letter(seq: int, partition: int) -> NewLetter:
    document = msgspec.Raw(b"{}")
    delivery = Delivery(TOPIC, partition, seq, f"e{seq}", "k", "", "insert", document, ("s1",), 1)
    return NewLetter("gateway-1", "parked", "unreachable", delivery)


def test_a_store_that_takes_too_long_for_many_is_asked_for_fewer() -> None:
    """Each partition by itself can be read then, which doesn't mean that all went well."""
    run_virtual(_a_store_that_takes_too_long_for_many_is_asked_for_fewer())


async def _a_store_that_takes_too_long_for_many_is_asked_for_fewer() -> None:
    world = await with_letters()
    parked, failures = world.letters.parked, list[int]()

    async def slow(gateway_id: str, refs: Iterable[PartitionRef], **rest: Any) -> list[Letter]:
        found = await parked(gateway_id, refs, **rest)
        if len(found) > BEFORE // 4:
            failures.append(len(found))
            raise StorageFailed("it took too long")
        return found

    world.letters.parked = slow  # type: ignore[method-assign]
    world.gateways.scripts["gateway-1"] = []
    await settle_down(60)
    assert not world.letters.of("parked")
    assert len(failures) <= 3
    await world.ended()
