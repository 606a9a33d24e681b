"""A lane reads on behind a repartition: what may have a key of something older waits for it, in
whichever lane that is and whatever became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import count
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from headgate.errors import NotNow, StorageFailed
from headgate.model.control import from_coordinator
from headgate.model.control.reports import LaneReport
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef
from headgate.model.letters import Letter, NewLetter
from headgate.model.position import Tally
from headgate.model.topology import FormerVersion, Owner, Repartition, RepartitionPhase, Topic
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down
from tests.virtual_time import run_virtual
from tests.written_log import TOPIC

generations = count(10)


def grown(phase: RepartitionPhase | None = None) -> Topic:
    """From one partition with three records to two."""
    under_way = None if phase is None else Repartition(2, phase, 1)
    return Topic(
        TOPIC,
        2,
        version=2,
        after=(3, 0),
        former=(FormerVersion(1, (0,), (3,)),),
        original=1,
        begins=(0,),
        repartition=under_way,
    )


def written(world: LaneWorld) -> None:
    """Three records before the fence, and two in each partition behind it."""
    world.append(3)
    for partition in (0, 1, 0, 1):
        world.log.append({}, partition=partition, version=2)


def told(world: LaneWorld, topic: Topic) -> None:
    world.topics = (topic,)
    topology = world.topology("gateway-1", "gateway-2")
    newer = msgspec.structs.replace(topology, generation=next(generations))
    world.push(from_coordinator.PushTopology(newer))


def order(world: LaneWorld, gateway_id: str = "gateway-1") -> list[tuple[int, int]]:
    return [(one.partition, one.seq) for one in world.gateways.accepted.get(gateway_id, [])]


@on_virtual_time
async def test_what_shares_keys_waits_until_the_older_is_settled() -> None:
    world = LaneWorld(partitions=2)
    world.topics = (grown(),)
    written(world)
    world.gateways.delays_s["gateway-1"] = 2.0
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(30)
    got = order(world)
    assert sorted(got) == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 1), (1, 2)]
    assert got.index((0, 3)) < got.index((1, 1))


@on_virtual_time
async def test_settled_means_saved() -> None:
    """A lane that starts anew begins at what is saved: it may bring the older one again."""
    world = LaneWorld(partitions=2)
    world.topics = (grown(),)
    written(world)
    world.log.gate = asyncio.Event()
    world.start()
    await world.subscribed(everything("s1"))
    world.checkpoints.failing = StorageFailed("the store is away")
    world.log.gate.set()
    await settle_down(10)
    assert order(world) == [(0, seq) for seq in range(1, 6)]
    world.checkpoints.failing = None
    await settle_down(10)
    assert world.position(0) >= 3
    assert order(world)[5:] == [(1, 1), (1, 2)]


@on_virtual_time
async def test_it_waits_for_what_another_lane_reads() -> None:
    world = LaneWorld(partitions=2)
    world.topics = (grown(),)
    written(world)
    own = world.refs[1]
    world.spec = msgspec.structs.replace(world.spec, owns=(Owner(own, "router-1", 5),))
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(20)
    assert order(world) == []
    other = world.refs[0]
    await world.checkpoints.claim(other, Fence(5))
    await world.checkpoints.save(other, Fence(5), 2, Tally())
    await settle_down(5)
    assert order(world) == [], "one of the older ones isn't settled"
    await world.checkpoints.save(other, Fence(5), 3, Tally())
    await settle_down(1)
    assert order(world) == [(1, 1), (1, 2)]


@on_virtual_time
async def test_a_position_that_cannot_be_read_holds_only_those_that_wait_for_it() -> None:
    """Partition 0 waits for 2, and 1 for 3, in other lanes; what is stored for 2 is damaged."""
    world = LaneWorld(partitions=4)
    former = FormerVersion(1, (0, 0, 0, 0), (0, 0, 3, 3))
    world.topics = (Topic(TOPIC, 2, version=2, after=(0, 0), former=(former,), original=4),)
    for partition in (0, 1):
        world.log.append({}, partition=partition, version=2)
    for ref in world.refs[2:]:
        await world.checkpoints.claim(ref, Fence(5))
        await world.checkpoints.save(ref, Fence(5), 3, Tally())
    world.checkpoints.damaged.add(world.refs[2])
    owns = tuple(Owner(ref, "router-1", 5) for ref in world.refs[:2])
    world.spec = msgspec.structs.replace(world.spec, owns=owns)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5)
    assert order(world) == [(1, 1)]
    world.checkpoints.damaged.clear()
    await settle_down(1)
    assert order(world) == [(1, 1), (0, 1)]


@on_virtual_time
async def test_letters_that_cannot_be_read_hold_only_those_that_wait_for_them() -> None:
    """Partition 0 waits for 2, and 1 for 3; a letter of 2 is damaged."""
    world = LaneWorld(partitions=4)
    former = FormerVersion(1, (0, 0, 0, 0), (0, 0, 3, 3))
    world.topics = (Topic(TOPIC, 2, version=2, after=(0, 0), former=(former,), original=4),)
    for partition in (0, 1):
        world.log.append({}, partition=partition, version=2)
    for ref in world.refs[2:]:
        await world.checkpoints.claim(ref, Fence(5))
        await world.checkpoints.save(ref, Fence(5), 3, Tally())
    owns = tuple(Owner(ref, "router-1", 5) for ref in world.refs[:2])
    world.spec = msgspec.structs.replace(world.spec, owns=owns)
    parked, is_damaged = world.letters.parked, True

    async def read(gateway_id: str, refs: Iterable[PartitionRef], **more: Any) -> list[Letter]:
        asked = set(refs)
        if is_damaged and world.refs[2] in asked:
            raise StorageFailed("a letter is damaged")
        return await parked(gateway_id, asked, **more)

    with patch.object(world.letters, "parked", read):
        world.start()
        await world.subscribed(everything("s1"))
        await settle_down(5)
        assert order(world) == [(1, 1)]
        is_damaged = False
        await settle_down(1)
        assert order(world) == [(1, 1), (0, 1)]


@pytest.mark.parametrize("is_own", [False, True], ids=["of another lane", "of the same lane"])
def test_what_comes_again_after_a_reset_keeps_nobody_waiting(is_own: bool) -> None:
    """All of it was settled before, and lanes that run go on: so does one that starts anew."""

    async def scenario() -> None:
        world = LaneWorld(partitions=2)
        world.topics = (grown(),)
        written(world)
        older = world.refs[0]
        await world.checkpoints.claim(older, Fence(4))
        await world.checkpoints.save(older, Fence(4), 5, Tally(acknowledged=5))
        await world.checkpoints.reset(older, Fence(4), 0)
        if not is_own:
            owns = (Owner(world.refs[1], "router-1", 5),)
            world.spec = msgspec.structs.replace(world.spec, owns=owns)
        world.gateways.hanging.add("gateway-1")
        world.start()
        await world.subscribed(everything("s1"), everything("s2", "gateway-2"))
        await settle_down(5)
        assert order(world, "gateway-2")[-2:] == [(1, 1), (1, 2)]

    run_virtual(scenario())


@on_virtual_time
async def test_what_comes_again_itself_waits_for_what_does_before_it() -> None:
    """All of the topic was reset: whoever keeps the last state of a key ends with the newer one."""
    world = LaneWorld(partitions=2)
    world.topics = (grown(),)
    written(world)
    for ref, settled in zip(world.refs, (5, 2), strict=True):
        await world.checkpoints.claim(ref, Fence(4))
        await world.checkpoints.save(ref, Fence(4), settled, Tally(acknowledged=settled))
        await world.checkpoints.reset(ref, Fence(4), 0)
    owns = (Owner(world.refs[1], "router-1", 5),)
    world.spec = msgspec.structs.replace(world.spec, owns=owns)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5)
    assert order(world) == []
    await world.checkpoints.save(world.refs[0], Fence(4), 3, Tally(acknowledged=8))
    await settle_down(1)
    assert order(world) == [(1, 1), (1, 2)]


@on_virtual_time
async def test_it_waits_until_every_gateway_knows_the_version() -> None:
    world = LaneWorld(partitions=2)
    world.topics = (grown("fenced"),)
    written(world)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(20)
    assert order(world) == [(0, 1), (0, 2), (0, 3)]
    told(world, grown("draining"))
    await settle_down(5)
    assert len(order(world)) == 7


@on_virtual_time
async def test_a_version_that_nobody_has_told_it_of_waits() -> None:
    world = LaneWorld(partitions=2)
    written(world)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(20)
    assert order(world) == [(0, 1), (0, 2), (0, 3)]
    told(world, grown())
    await settle_down(5)
    assert len(order(world)) == 7


@on_virtual_time
async def test_where_the_older_is_parked_the_newer_is_parked_behind_it() -> None:
    world = LaneWorld(partitions=2, redrive_every_s=5.0, retry_initial_s=0.01, retry_max_s=0.01)
    world.topics = (grown("fenced"),)
    written(world)
    world.gateways.scripts["gateway-1"] = [NotNow("away")] * 6
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(1)
    assert world.letters.seqs("parked") == [1, 2, 3]
    told(world, grown("draining"))
    await settle_down(200)
    got = order(world)
    assert sorted(got) == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 1), (1, 2)]
    assert got.index((0, 3)) < got.index((1, 1))
    assert world.letters.letters == []


@on_virtual_time
async def test_what_others_have_parked_is_not_passed() -> None:
    """Another lane has settled the older partition by parking its last record, and its gateway is
    well again."""
    world = LaneWorld(partitions=2, redrive_every_s=1.0)
    world.topics = (grown(),)
    written(world)
    older, own = world.refs
    theirs = {older: Fence(5)}
    what = Delivery(TOPIC, 0, 3, "e", None, "", "insert", msgspec.Raw(b"{}"), ("s1",), 5)
    parked = NewLetter("gateway-1", "parked", "unreachable", what)
    await world.letters.put([parked], theirs, now_ms=1)
    await world.checkpoints.claim(older, Fence(5))
    await world.checkpoints.save(older, Fence(5), 3, Tally())
    world.spec = msgspec.structs.replace(world.spec, owns=(Owner(own, "router-1", 5),))
    world.start()
    await world.subscribed(everything("s1"), everything("s2", "gateway-2"))
    await settle_down(20)
    assert order(world) == []
    assert order(world, "gateway-2") == [(1, 1), (1, 2)], "nothing is parked for it"
    await world.letters.remove(world.letters.of("parked")[:1], theirs)
    await settle_down(5)
    assert order(world) == [(1, 1), (1, 2)]


@on_virtual_time
async def test_no_gateway_is_passed_while_others_are_looked_at() -> None:
    """The store is asked for one gateway after the other. By the time that it has answered for the
    last, the pipeline of the first has looked for letters, and found none of its own."""
    world = LaneWorld(partitions=2, redrive_every_s=1.0)
    world.topics = (grown(),)
    written(world)
    older, own = world.refs
    theirs = {older: Fence(5)}
    for gateway_id, name in (("gateway-1", "s1"), ("gateway-2", "s2")):
        what = Delivery(TOPIC, 0, 3, "e", None, "", "insert", msgspec.Raw(b"{}"), (name,), 5)
        parked = NewLetter(gateway_id, "parked", "unreachable", what)
        await world.letters.put([parked], theirs, now_ms=1)
    await world.checkpoints.claim(older, Fence(5))
    await world.checkpoints.save(older, Fence(5), 3, Tally())
    world.letters.takes_s = {older: 0.5}
    world.spec = msgspec.structs.replace(world.spec, owns=(Owner(own, "router-1", 5),))
    world.start()
    await world.subscribed(everything("s1"), everything("s2", "gateway-2"))
    await settle_down(20)
    assert order(world) == order(world, "gateway-2") == []
    await world.letters.remove(world.letters.letters[:2], theirs)
    await settle_down(10)
    assert order(world) == order(world, "gateway-2") == [(1, 1), (1, 2)]


@on_virtual_time
async def test_letters_of_a_former_lane_wait_for_older_ones_of_others() -> None:
    """Both are parked; the lane that takes over reads partition 1 alone."""
    world = LaneWorld(partitions=2, redrive_every_s=1.0)
    world.topics = (grown("fenced"),)
    written(world)
    world.gateways.hanging.add("gateway-1")
    world.start()
    await world.subscribed(everything("s1"))
    told(world, grown("draining"))
    await settle_down(120)
    assert {one.delivery.partition for one in world.letters.of("parked")} == {0, 1}
    await world.ended()
    world.gateways.hanging.clear()
    alone = world.successor(window=4)
    alone.topics = (grown(),)
    alone.spec = msgspec.structs.replace(alone.spec, owns=(Owner(world.refs[1], "router-1", 6),))
    alone.start()
    await alone.subscribed(everything("s1"))
    await settle_down(20)
    assert order(alone) == []
    older = [one for one in world.letters.of("parked") if one.delivery.partition == 0]
    ends = [one for one in older if one.delivery.seq <= 3]
    await world.letters.remove(ends, {world.refs[0]: Fence(5, 3, 0)})
    await settle_down(20)
    assert order(alone) == [(1, 1), (1, 2)]


@on_virtual_time
async def test_the_end_of_a_version_is_saved_and_said_at_once() -> None:
    world = LaneWorld(
        partitions=2, checkpoint_interval_s=600.0, report_interval_s=600.0, window_s=9_000.0
    )
    world.topics = (grown("draining"),)
    world.append(3)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(3)
    assert world.position(0) == 3
    reports = [one for one in world.sent if isinstance(one, LaneReport)]
    assert [one.settled for one in reports[-1].partitions if one.ref == world.refs[0]] == [3]


@on_virtual_time
async def test_other_topics_and_partitions_go_on_meanwhile() -> None:
    world = LaneWorld(partitions=3)
    topic = Topic(
        TOPIC,
        3,
        version=2,
        after=(3, 0, 0),
        former=(FormerVersion(1, (0, 0, 0), (3, 9, 0)),),
        original=3,
    )
    world.topics = (topic,)
    world.append(3)
    world.append(2, partition=2)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5)
    assert sorted(order(world)) == [(0, 1), (0, 2), (0, 3), (2, 1), (2, 2)]
    world.append(1, partition=1)
    await settle_down(2)
    assert (1, 1) in order(world)


@on_virtual_time
async def test_a_partition_whose_letters_wait_for_older_ones_is_not_read_ahead_of_them() -> None:
    """The older ones are another lane's, which sends them one by one, and then no more: from then
    on nobody knows for how long, and it is read on."""
    world = LaneWorld(partitions=2, redrive_every_s=1.0)
    world.topics = (grown(),)
    older, own = world.refs
    theirs = {older: Fence(5)}
    for seq in (1, 2, 3):
        what = Delivery(TOPIC, 0, seq, "e", None, "", "insert", msgspec.Raw(b"{}"), ("s1",), 5)
        await world.letters.put(
            [NewLetter("gateway-1", "parked", "unreachable", what)], theirs, now_ms=1
        )
    await world.checkpoints.claim(older, Fence(5))
    await world.checkpoints.save(older, Fence(5), 3, Tally())
    world.spec = msgspec.structs.replace(world.spec, owns=(Owner(own, "router-1", 5),))
    for _ in range(6_000):
        world.log.append({}, partition=1, version=2)
    world.start()
    await settle_down()
    alone = msgspec.structs.replace(world.topology("gateway-1"), generation=next(generations))
    world.push(from_coordinator.PushTopology(alone))
    await world.subscribed(everything("s1"))
    for left in (3, 2, 1):
        await settle_down(6)
        parked = [one.delivery.partition for one in world.letters.of("parked")]
        assert parked.count(0) == left
        assert parked.count(1) <= 2_500
        if left > 1:
            await world.letters.remove(world.letters.of("parked")[:1], theirs)
    await settle_down(30)
    assert len(world.letters.of("parked")) == 6_001
