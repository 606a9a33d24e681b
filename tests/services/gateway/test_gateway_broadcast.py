"""Deliveries for whom it may concern: the gateway looks itself who wants them."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.decide.matching.index import MatchIndex
from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef, Record
from headgate.model.subscription import Subscription
from headgate.services.gateway.subscriptions.broadcast import Broadcasts
from tests.services.gateway.world import NODE, World, until
from tests.written_log import TOPIC

REF = PartitionRef(TOPIC, 0)


async def broadcast(world: World, *documents: object, **known: Any) -> tuple[str, ...]:
    """Append, and deliver the new records to whom they may concern."""
    before = len(world.log.records.get(REF, []))
    for document in documents:
        world.log.append(document)
    records = world.log.records[REF][before:]
    made = [copy_of(world.lanes.delivery(record, ()), **known) for record in records]
    return (await world.lanes.deliver(made)).verdicts


def copy_of(delivery: Delivery, **changes: Any) -> Delivery:
    return msgspec.structs.replace(delivery, **{"broadcast": True, **changes})


async def test_a_broadcast_reaches_those_whose_filters_match(world: World) -> None:
    high = await world.websocket(where="alt > 100")
    low = await world.websocket(where="alt < 100")
    everything = await world.websocket()
    for one in (high, low, everything):
        assert (await one.next())["type"] == "subscribed"
    verdicts = await broadcast(world, {"alt": 500}, {"alt": 5}, {"alt": 600})
    assert verdicts == ("accepted", "accepted", "accepted")
    assert await high.events(2) == [(0, 1), (0, 3)]
    assert await low.events(1) == [(0, 2)]
    assert await everything.events(3) == [(0, 1), (0, 2), (0, 3)]


async def test_nobody_wanting_it_settles_a_broadcast(world: World) -> None:
    one = await world.websocket(where="alt > 100")
    await one.next()
    assert await broadcast(world, {"alt": 1}) == ("no_subscriber",)


async def test_who_comes_and_goes_after_the_first_broadcast_counts(world: World) -> None:
    first = await world.websocket()
    await first.next()
    assert await broadcast(world, {"n": 1}) == ("accepted",)
    second = await world.websocket()
    await second.next()
    first.leave()
    await until(lambda: len(world.coordinator.registry) == 1)
    assert await broadcast(world, {"n": 2}) == ("accepted",)
    assert await second.events(1) == [(0, 2)]
    second.leave()
    await until(lambda: not world.coordinator.registry)
    assert await broadcast(world, {"n": 3}) == ("no_subscriber",)


async def test_a_known_subscription_gets_it_once(world: World) -> None:
    one = await world.websocket()
    await one.next()
    [name] = world.coordinator.registry
    assert await broadcast(world, {"n": 1}, subscriptions=(name,)) == ("accepted",)
    assert await broadcast(world, {"n": 2}) == ("accepted",)
    assert await one.events(2) == [(0, 1), (0, 2)]


async def test_what_the_lane_did_not_know_of_is_completed_from_the_log(world: World) -> None:
    """Two records went by without a delivery here; the third may concern somebody."""
    one = await world.websocket()
    await one.next()
    world.log.append({"n": 1})
    world.log.append({"n": 2})
    assert await broadcast(world, {"n": 3}) == ("accepted",)
    assert await one.events(3) == [(0, 1), (0, 2), (0, 3)]


async def test_the_same_broadcast_twice_is_a_duplicate(world: World) -> None:
    one = await world.websocket()
    await one.next()
    assert await broadcast(world, {"n": 1}) == ("accepted",)
    [record] = world.log.records[REF]
    again = copy_of(world.lanes.delivery(record, ()))
    assert (await world.lanes.deliver([again])).verdicts == ("duplicate",)
    assert await broadcast(world, {"n": 2}) == ("accepted",)
    assert await one.events(2) == [(0, 1), (0, 2)]


async def test_an_operator_can_have_a_broadcast_sent_again(world: World) -> None:
    one = await world.websocket()
    await one.next()
    await broadcast(world, {"n": 1})
    [record] = world.log.records[REF]
    again = copy_of(world.lanes.delivery(record, ()), redelivery=True)
    assert (await world.lanes.deliver([again])).verdicts == ("accepted",)
    assert await one.events(2) == [(0, 1), (0, 1)]


def test_a_shard_gets_only_the_keys_of_its_own() -> None:
    here = [Subscription(f"target-{n}", NODE, TOPIC, shard=(4, n)) for n in range(3)]
    index = MatchIndex.of(here)
    broadcasts = Broadcasts(lambda: here)
    for number in range(20):
        record = Record(
            TOPIC, 0, number + 1, 1, str(number), f"key-{number}", "", "insert", b"{}",
            None, None, 0,
        )  # fmt: skip
        delivery = Delivery(
            TOPIC, 0, number + 1, str(number), f"key-{number}", "", "insert",
            msgspec.Raw(b"{}"), (), 1, broadcast=True,
        )  # fmt: skip
        wanted = index.match(record, {}).by_gateway.get(NODE, ())
        assert broadcasts.addressed(delivery).subscriptions == wanted


def test_whom_the_lane_knows_is_named_once_and_who_has_gone_not_at_all() -> None:
    here = [Subscription(name, NODE, TOPIC) for name in ("known", "unknown", "gone")]
    broadcasts = Broadcasts(lambda: here)
    delivery = Delivery(
        TOPIC, 0, 9, "e", None, "", "insert", msgspec.Raw(b"{}"), ("known",), 1, since=(4,),
        broadcast=True,
    )  # fmt: skip
    everybody = broadcasts.addressed(delivery)
    assert sorted(everybody.subscriptions) == ["gone", "known", "unknown"]
    assert dict(zip(everybody.subscriptions, everybody.since, strict=True))["known"] == 4
    broadcasts.went("gone")
    left = broadcasts.addressed(delivery)
    assert (left.subscriptions, left.since) == (("known", "unknown"), (4, 8))


def test_a_document_nobody_can_read_concerns_only_those_without_a_filter() -> None:
    here = [Subscription("all", NODE, TOPIC), Subscription("some", NODE, TOPIC, "n == 1")]
    delivery = Delivery(
        TOPIC, 0, 1, "e", None, "", "insert", msgspec.Raw(b'{"n":1e999999}x'), (), 1, broadcast=True
    )  # fmt: skip
    assert Broadcasts(lambda: here).addressed(delivery).subscriptions == ("all",)


async def test_a_filter_on_the_records_key_holds_in_a_broadcast_and_in_the_log(
    world: World,
) -> None:
    world.log.append({"n": 1}, key="a")
    world.log.append({"n": 2}, key="b")
    one = await world.websocket(where='_key == "a"', from_="earliest")
    assert (await one.next())["type"] == "subscribed"
    assert await one.events(1) == [(0, 1)]
    records = [world.log.append({"n": 3}, key="b"), world.log.append({"n": 4}, key="a")]
    made = [copy_of(world.lanes.delivery(record, ())) for record in records]
    assert (await world.lanes.deliver(made)).verdicts == ("no_subscriber", "accepted")
    assert await one.events(1) == [(0, 4)]


def test_who_comes_and_goes_between_two_broadcasts_is_not_remembered() -> None:
    """The next one may be long in coming."""
    here = [Subscription("stays", NODE, TOPIC), Subscription("goes", NODE, TOPIC)]
    broadcasts = Broadcasts(lambda: here)
    asked = Delivery(
        TOPIC, 0, 1, "e", None, "", "insert", msgspec.Raw(b"{}"), (), 1, broadcast=True
    )  # fmt: skip
    assert set(broadcasts.addressed(asked).subscriptions) == {"stays", "goes"}
    for number in range(100):
        broadcasts.came(Subscription(f"s{number}", NODE, TOPIC))
        broadcasts.went(f"s{number}")
    broadcasts.went("goes")
    broadcasts.came(Subscription("comes", NODE, TOPIC))
    assert set(broadcasts._changed) == {"goes", "comes"}
    assert set(broadcasts.addressed(asked).subscriptions) == {"stays", "comes"}
