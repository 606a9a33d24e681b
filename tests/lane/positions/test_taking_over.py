"""What a lane finds that a former one left in the middle, and what it leaves itself."""

from __future__ import annotations

import asyncio

import msgspec

from headgate.errors import StorageFailed
from headgate.model.control.reports import LaneReport
from headgate.model.delivery import Delivery
from headgate.model.event import Fence
from headgate.model.letters import NewLetter
from headgate.model.subscription import Subscription
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down
from tests.written_log import TOPIC


def letter(seq: int, *names: str) -> NewLetter:
    """What a former lane parked."""
    what = Delivery(
        TOPIC,
        0,
        seq,
        f"{TOPIC}:0-{seq}",
        None,
        "",
        "insert",
        msgspec.Raw(b"{}"),
        names,
        4,
    )
    return NewLetter("gateway-1", "parked", "overloaded", what)


@on_virtual_time
async def test_a_letter_waits_for_what_its_former_lane_had_in_memory() -> None:
    """It had parked 3 while 1 and 2 waited, and died: a gateway that took 3 first would take them
    for repeats."""
    world = LaneWorld()
    former = {world.refs[0]: Fence(4)}
    await world.letters.put([letter(3, "s1")], former, now_ms=1)
    world.append(3)
    world.log.gate = asyncio.Event()
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5)
    assert world.gateways.batches == []
    world.log.gate.set()
    await settle_down(5)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3]
    assert world.letters.letters == []


@on_virtual_time
async def test_nothing_waits_in_memory_behind_a_letter_that_is_newer() -> None:
    """A former lane had parked 6 while 1 to 5 waited. The last letters are on their way while the
    log can't be read for a moment, and what comes then is older than one of them."""
    world = LaneWorld(read_limit=2)
    await world.letters.put([letter(6, "s1")], {world.refs[0]: Fence(4)}, now_ms=1)
    world.append(8)
    world.log.damaged_seqs = {world.refs[0]: {3}}
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(2)
    assert world.gateways.seqs("gateway-1") == [1, 2]
    assert world.letters.seqs("parked") == [6]
    world.log.damaged_seqs.clear()
    await settle_down(20)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert world.letters.letters == []


@on_virtual_time
async def test_a_letter_of_a_former_lane_is_sent_for_all_who_want_it_now() -> None:
    """It is read only after what this lane writes of the record is joined to it."""
    world = LaneWorld()
    await world.letters.put([letter(1, "s1")], {world.refs[0]: Fence(4)}, now_ms=1)
    world.append(1)
    world.start()
    await world.subscribed(everything("s1"), everything("s2"))
    await settle_down(5)
    sent = [one.subscriptions for one in world.gateways.accepted["gateway-1"]]
    assert sent == [("s1", "s2")]
    assert world.letters.letters == []


@on_virtual_time
async def test_nothing_newer_is_sent_before_a_dead_letter_is_written() -> None:
    """A gateway that has a newer record takes the shed one for a repeat, should the lane die before
    the letter is there and its successor send it."""
    world = LaneWorld(queue_size=10)
    world.start()
    low = Subscription("low", "gateway-1", TOPIC, priority="low")
    await world.subscribed(low, everything("s1"))
    world.gateways.fills["gateway-1"] = 0.75
    world.append(1)
    await settle_down()
    world.letters.failing = StorageFailed("away")
    world.gateways.fills["gateway-1"] = 0.0
    world.append(1)
    await settle_down()
    world.append(1)
    await settle_down(5)
    got = [(one.seq, one.subscriptions) for one in world.gateways.accepted["gateway-1"]]
    assert got == [(1, ("low", "s1"))]
    world.letters.failing = None
    await settle_down(10)
    got = [(one.seq, one.subscriptions) for one in world.gateways.accepted["gateway-1"]]
    assert got == [(1, ("low", "s1")), (2, ("s1",)), (3, ("low", "s1"))], "which waited behind it"
    assert world.letters.seqs("dead") == [2]


@on_virtual_time
async def test_a_lane_goes_on_while_its_successor_could_not_ask_what_is_parked() -> None:
    """Its window is over, and the store of letters, of which it needs nothing, is away."""
    world = LaneWorld()
    world.start()
    await world.subscribed(everything("s1"))
    world.letters.failing = StorageFailed("away")
    successor = world.successor(window=4)
    successor.start()
    await successor.subscribed(everything("s1"))
    for count in range(1, 21):
        world.append(1)
        await settle_down(0.5)
        assert len(world.gateways.seqs("gateway-1")) == count
    assert world.held() == {world.refs[0]: Fence(5, 3)}
    reports = [one for one in successor.sent if isinstance(one, LaneReport)]
    assert reports[-1].letters == "away"
    world.letters.failing = None
    await settle_down(5)
    world.append(1)
    await settle_down(1)
    assert world.held() == {world.refs[0]: Fence(5, 4)}
    assert set(world.gateways.seqs("gateway-1")) == set(range(1, 22))
    assert [one for one in successor.sent if isinstance(one, LaneReport)][-1].letters == ""
