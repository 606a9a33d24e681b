"""What a lane can't deliver: parked and sent later, dead, shed, or the partition stops."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headgate.errors import InvalidRequest, NotNow, StorageFailed
from headgate.model import control
from headgate.model.position import Tally
from headgate.model.subscription import Subscription
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down
from tests.services.gateway.doubles import TOPIC
from tests.virtual_time import run_virtual

DOWN = NotNow("down")


def report(world: LaneWorld) -> control.LaneReport:
    return [message for message in world.sent if isinstance(message, control.LaneReport)][-1]


async def reading(*subscriptions: Subscription, **settings: float | str) -> LaneWorld:
    world = LaneWorld(**settings)  # type: ignore[arg-type]
    world.start()
    await world.subscribed(*(subscriptions or (everything("s1"),)))
    return world


@on_virtual_time
async def test_what_fails_too_often_is_parked_and_settled() -> None:
    world = await reading()
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(4)
    await settle_down(2)
    assert world.letters.seqs("parked") == [1, 2, 3, 4]
    assert world.letters.of("parked")[0].reason == "unreachable"
    assert world.letters.of("parked")[0].error == "down"
    await settle_down(5)
    assert world.position() == 4
    assert world.tally() == Tally(parked=4)


@on_virtual_time
async def test_parked_letters_are_sent_by_themselves_and_nothing_newer_overtakes_them() -> None:
    world = await reading(redrive_every_s=10.0)
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(4)
    await settle_down(2)
    world.append(4)
    await settle_down(2)
    assert world.letters.seqs("parked") == [1, 2, 3, 4, 5, 6, 7, 8], "the newer ones park behind"
    assert world.gateways.seqs("gateway-1") == []
    await settle_down(10)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not world.letters.letters
    world.append(1)
    await settle_down()
    assert world.gateways.seqs("gateway-1")[-1] == 9
    assert not world.letters.letters, "back to normal"


@on_virtual_time
async def test_only_the_partitions_with_parked_letters_wait_for_them() -> None:
    world = LaneWorld(partitions=2)
    world.start()
    await world.subscribed(everything("s1"))
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(2)
    await settle_down(2)
    world.append(2, partition=1)
    await settle_down()
    assert world.gateways.seqs("gateway-1", 1) == [1, 2]
    assert world.gateways.seqs("gateway-1", 0) == []


@on_virtual_time
async def test_a_lane_that_starts_sends_what_is_parked_before_anything_newer() -> None:
    world = await reading()
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(3)
    await settle_down(2)
    await world.ended()
    assert world.position() == 3
    world.append(2)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(2)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 5]
    assert not world.letters.letters


@on_virtual_time
async def test_an_open_breaker_parks_at_once_and_one_probe_closes_it() -> None:
    world = await reading(breaker_threshold=3, breaker_timeout_s=30.0, redrive_every_s=10.0)
    world.gateways.scripts["gateway-1"] = [DOWN] * 4
    world.append(2)
    await settle_down(2)
    attempts = len(world.gateways.batches)
    assert report(world).links[0].breaker == "open"
    for _ in range(20):
        world.append(1)
        await settle_down(1)
    assert len(world.gateways.batches) == attempts, "nobody tried"
    await settle_down(15)
    assert len(world.gateways.batches) == attempts + 1, "one probe, which failed"
    await settle_down(31)
    assert world.gateways.seqs("gateway-1") == list(range(1, 23))
    await settle_down(1)
    assert report(world).links[0].breaker == "closed"


@pytest.mark.parametrize(
    "change", [{"url": "http://elsewhere"}, {"pid": 77}], ids=["moved", "started anew"]
)
def test_a_gateway_that_is_not_what_it_was_is_tried_at_once(change: dict[str, Any]) -> None:
    async def scenario() -> None:
        world = await reading(breaker_threshold=3)
        world.gateways.scripts["gateway-1"] = [DOWN] * 3
        world.append(2)
        await settle_down(2)
        known = world.topology("gateway-1", "gateway-2")
        nodes = tuple(msgspec.structs.replace(node, **change) for node in known.nodes)
        world.push(control.PushTopology(msgspec.structs.replace(known, generation=2, nodes=nodes)))
        await settle_down()
        assert world.gateways.seqs("gateway-1") == [1, 2]

    run_virtual(scenario())


@on_virtual_time
async def test_what_is_refused_for_good_is_dead_and_its_neighbours_go_through() -> None:
    world = LaneWorld()
    world.gateways.poison = {("gateway-1", 5)}
    world.append(9)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 6, 7, 8, 9]
    assert world.letters.seqs("dead") == [5]
    letter = world.letters.of("dead")[0]
    assert (letter.reason, letter.error) == ("rejected", "poison")
    assert world.position() == 9
    assert world.tally() == Tally(acknowledged=8, dead=1)


@on_virtual_time
async def test_a_verdict_of_rejected_makes_one_dead_letter() -> None:
    world = LaneWorld()
    world.gateways.scripts["gateway-1"] = [["accepted", "rejected", "accepted"]]
    world.append(3)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5)
    assert world.letters.seqs("dead") == [2]
    assert world.position() == 3


@on_virtual_time
async def test_a_parked_letter_that_is_refused_when_it_is_sent_is_dead() -> None:
    world = await reading(redrive_every_s=1.0)
    world.gateways.scripts["gateway-1"] = [DOWN, DOWN, DOWN]
    world.gateways.poison = {("gateway-1", 2)}
    world.append(3)
    await settle_down(10)
    assert world.gateways.seqs("gateway-1") == [1, 3]
    assert world.letters.seqs("dead") == [2]
    assert world.letters.seqs("parked") == []


@on_virtual_time
async def test_a_gateway_that_is_far_behind_gets_no_more_than_it_can_take() -> None:
    world = await reading(queue_size=10, read_limit=5, batch_max_size=5, redrive_every_s=5.0)
    world.gateways.fills["gateway-1"] = 0.95
    world.append(1)
    await settle_down()
    world.append(4)
    await settle_down()
    assert world.gateways.seqs("gateway-1") == [1]
    assert world.letters.seqs("parked") == [2, 3, 4, 5]
    assert world.letters.of("parked")[0].reason == "overloaded"
    world.gateways.fills["gateway-1"] = 0.1
    await settle_down(11)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3, 4, 5]


@on_virtual_time
async def test_low_priority_is_shed_while_a_gateway_is_behind() -> None:
    low = Subscription("low", "gateway-1", TOPIC, priority="low")
    world = await reading(everything("s1"), low)
    world.gateways.fills["gateway-1"] = 0.75
    world.append(1)
    await settle_down()
    world.append(1)
    await settle_down(6)
    assert [d.subscriptions for d in world.gateways.accepted["gateway-1"]] == [
        ("s1", "low"), ("s1",),
    ]  # fmt: skip
    dead = world.letters.of("dead")
    assert [(one.reason, one.delivery.subscriptions) for one in dead] == [("shed", ("low",))]
    assert world.tally() == Tally(acknowledged=1, dead=1)


@on_virtual_time
async def test_a_straggler_is_parked_and_the_others_keep_their_rate() -> None:
    world = await reading(
        everything("s1"), everything("s2", "gateway-2"),
        queue_size=50, read_limit=10, batch_max_size=10,
    )  # fmt: skip
    world.gateways.delays_s = {"gateway-1": 1.0, "gateway-2": 0.001}
    world.append(1_000)
    await settle_down(3)
    assert world.gateways.seqs("gateway-2") == list(range(1, 1_001))
    assert world.letters.of("parked"), "what the straggler can't take is parked"
    await settle_down(150)
    assert world.gateways.seqs("gateway-1") == list(range(1, 1_001))


@on_virtual_time
async def test_what_waited_too_long_in_memory_is_parked() -> None:
    world = await reading(buffer_timeout_s=3.0, retry_max_attempts=50, breaker_threshold=50)
    world.gateways.scripts["gateway-1"] = [DOWN] * 20
    world.append(2)
    await settle_down(12)
    assert world.letters.of("parked")[0].reason == "too_old"


@on_virtual_time
async def test_letters_of_subscriptions_that_ended_are_released() -> None:
    world = await reading(redrive_every_s=5.0)
    world.gateways.scripts["gateway-1"] = [DOWN] * 3
    world.append(3)
    await settle_down(2)
    world.push(control.SubscriptionChanges(2, (), ("s1",)))
    await settle_down(10)
    assert not world.letters.letters
    assert world.gateways.seqs("gateway-1") == []
    assert report(world).links[0].released == 3


@on_virtual_time
async def test_what_an_operator_wants_again_is_sent_marked_and_holds_nothing_up() -> None:
    world = LaneWorld()
    world.gateways.scripts["gateway-1"] = [["rejected", "accepted"]]
    world.append(2)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(2)
    [letter] = world.letters.of("dead")
    world.letters.revive(letter.id)
    world.push(control.LettersRevived())
    await settle_down()
    assert world.gateways.seqs("gateway-1") == [2, 1]
    assert world.gateways.accepted["gateway-1"][-1].redelivery
    assert not world.letters.letters


@on_virtual_time
async def test_while_letters_cannot_be_written_nothing_is_settled_and_the_source_stops() -> None:
    world = await reading(read_limit=500)
    world.gateways.scripts["gateway-1"] = [DOWN] * 1_000
    world.letters.failing = StorageFailed("the disk is full")
    world.append(30_000)
    await settle_down(60)
    assert world.position() == 0
    assert report(world).letters == "the disk is full"
    assert report(world).read < 20_000
    world.letters.failing = None
    world.gateways.scripts.clear()
    await settle_down(60)
    assert world.gateways.seqs("gateway-1") == list(range(1, 30_001))
    await settle_down(10)
    assert report(world).letters == ""
    assert world.position() == 30_000


@on_virtual_time
async def test_a_lane_reads_nothing_before_it_knows_what_is_parked() -> None:
    world = LaneWorld()
    world.letters.failing = StorageFailed("away")
    world.append(3)
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(5)
    assert world.gateways.batches == []
    assert report(world).letters == "away"
    world.letters.failing = None
    await settle_down(5)
    assert world.gateways.seqs("gateway-1") == [1, 2, 3]


def test_without_dead_letters_the_partition_stops_where_one_would_be_written() -> None:
    async def scenario() -> None:
        world = LaneWorld(dlq_enabled=False)
        world.gateways.poison = {("gateway-1", 3)}
        world.append(3)
        world.start()
        await world.subscribed(everything("s1"))
        await settle_down(5)
        world.append(3)
        await settle_down(5)
        assert world.position() == 2
        assert world.gateways.seqs("gateway-1") == [1, 2]
        assert not world.letters.letters
        [partition] = report(world).partitions
        assert partition.state == "failed"
        assert "routing.dlq.enabled" in partition.reason

    run_virtual(scenario())


@pytest.mark.parametrize("error", [InvalidRequest("no"), NotNow("no")], ids=["refused", "failing"])
def test_the_other_gateways_get_theirs_meanwhile(error: Exception) -> None:
    async def scenario() -> None:
        world = await reading(everything("s1"), everything("s2", "gateway-2"))
        world.gateways.scripts["gateway-1"] = [error] * 1_000  # type: ignore[list-item]
        for _ in range(30):
            world.append(1)
            await settle_down(0.02)
        assert world.gateways.seqs("gateway-2") == list(range(1, 31))

    run_virtual(scenario())
