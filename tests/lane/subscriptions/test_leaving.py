"""A record that stops matching tells those it mattered to."""

from __future__ import annotations

import msgspec

from headgate.decide.produce.admission import ProduceLimits, admit
from headgate.model.subscription import Subscription
from headgate.model.topology import Topic
from tests.lane.world import LaneWorld, on_virtual_time, settle_down
from tests.written_log import TOPIC


@on_virtual_time
async def test_what_matched_before_and_does_not_now_is_delivered_as_left() -> None:
    world = LaneWorld()
    world.start()
    low = Subscription("low", "gateway-1", TOPIC, "altitude < 3000")
    high = Subscription("high", "gateway-2", TOPIC, "altitude >= 3000")
    everything = Subscription("all", "gateway-1", TOPIC)
    await world.subscribed(low, high, everything)
    world.log.append({"altitude": 9_000}, op="update", earlier={"altitude": 100})
    world.log.append({"altitude": 9_000}, op="update", earlier={"altitude": 8_000})
    world.log.append({"altitude": 9_000}, op="update")
    await settle_down()
    first, second, third = world.gateways.accepted["gateway-1"]
    assert (set(first.subscriptions), first.left) == ({"low", "all"}, ("low",))
    assert (second.subscriptions, second.left) == (("all",), ())
    assert (third.subscriptions, third.left) == (("all",), ())
    assert [d.left for d in world.gateways.accepted["gateway-2"]] == [(), (), ()]


@on_virtual_time
async def test_a_record_that_only_leaves_is_delivered_and_settled_too() -> None:
    world = LaneWorld()
    world.start()
    await world.subscribed(Subscription("low", "gateway-1", TOPIC, "altitude < 3000"))
    world.log.append({"altitude": 9_000}, op="update", earlier={"altitude": 100})
    await settle_down()
    [delivery] = world.gateways.accepted["gateway-1"]
    assert (delivery.subscriptions, delivery.left) == (("low",), ("low",))
    await world.ended()
    assert world.position() == 1


@on_virtual_time
async def test_what_a_producer_gives_as_earlier_is_what_a_record_leaves() -> None:
    world = LaneWorld()
    world.start()
    await world.subscribed(Subscription("low", "gateway-1", TOPIC, "altitude < 3000"))
    body = b'{"events":[{"document":{"altitude":9000},"op":"update","earlier":{"altitude":100}}]}'
    admitted = admit(body, Topic(TOPIC, 1), ProduceLimits(), new_id=lambda: "e1")
    for event in admitted.events:
        assert event.earlier is not None
        world.log.append(event.document, op=event.op, earlier=msgspec.Raw(event.earlier))
    await settle_down()
    [delivery] = world.gateways.accepted["gateway-1"]
    assert (delivery.op, delivery.left) == ("update", ("low",))


@on_virtual_time
async def test_an_update_that_sets_the_mark_is_delivered_as_a_delete() -> None:
    world = LaneWorld(soft_delete="deleted")
    world.start()
    await world.subscribed(Subscription("all", "gateway-1", TOPIC))
    world.log.append({"deleted": True}, op="update", earlier={})
    world.log.append({"deleted": False}, op="update", earlier={"deleted": True})
    world.log.append({"deleted": False}, op="update")
    await settle_down()
    assert [d.op for d in world.gateways.accepted["gateway-1"]] == ["delete", "insert", "update"]
