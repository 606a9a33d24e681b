"""Deliveries for whom it may concern: the gateway looks itself who wants them."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import msgspec
import pytest

from headgate import errors
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.decide.matching.index import Matched, MatchIndex
from headgate.model.delivery import Delivery, DeliveryBatch
from headgate.model.event import PartitionRef, Record
from headgate.model.subscription import Subscription
from headgate.services.gateway.subscriptions.broadcast import Broadcasts, Looking
from tests.at_once import at_once
from tests.services.gateway.world import NODE, World, until
from tests.written_log import TOPIC

REF = PartitionRef(TOPIC, 0)
COSTLY_S = 0.1


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


def addressed(broadcasts: Broadcasts, delivery: Delivery) -> Delivery:
    with broadcasts.looking(DeliveryBatch(NODE, 1, 0, (delivery,))) as looking:
        at_once(looking.look())
        return looking.addressed(0)


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
    broadcasts = Broadcasts(lambda: here, ScriptedMachine())
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
        assert addressed(broadcasts, delivery).subscriptions == wanted


def test_whom_the_lane_knows_is_named_once_and_who_has_gone_not_at_all() -> None:
    here = [Subscription(name, NODE, TOPIC) for name in ("known", "unknown", "gone")]
    broadcasts = Broadcasts(lambda: here, ScriptedMachine())
    delivery = Delivery(
        TOPIC, 0, 9, "e", None, "", "insert", msgspec.Raw(b"{}"), ("known",), 1, since=(4,),
        broadcast=True,
    )  # fmt: skip
    everybody = addressed(broadcasts, delivery)
    assert sorted(everybody.subscriptions) == ["gone", "known", "unknown"]
    assert dict(zip(everybody.subscriptions, everybody.since, strict=True))["known"] == 4
    broadcasts.went("gone")
    left = addressed(broadcasts, delivery)
    assert (left.subscriptions, left.since) == (("known", "unknown"), (4, 8))


def test_a_document_nobody_can_read_concerns_only_those_without_a_filter() -> None:
    here = [Subscription("all", NODE, TOPIC), Subscription("some", NODE, TOPIC, "n == 1")]
    delivery = Delivery(
        TOPIC, 0, 1, "e", None, "", "insert", msgspec.Raw(b'{"n":1e999999}x'), (), 1, broadcast=True
    )  # fmt: skip
    assert addressed(Broadcasts(lambda: here, ScriptedMachine()), delivery).subscriptions == (
        "all",
    )


async def test_a_document_too_deep_to_be_decoded_stops_nobody_who_reads_the_log(
    world: World,
) -> None:
    world.log.append(b'{"n": ' + b"[" * 5_000 + b"]" * 5_000 + b"}")
    world.log.append({"n": 1})
    one = await world.websocket(where="n == 1", from_="earliest")
    assert (await one.next())["type"] == "subscribed"
    assert (await one.next())["seq"] == 2


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
    broadcasts = Broadcasts(lambda: here, ScriptedMachine())
    asked = Delivery(
        TOPIC, 0, 1, "e", None, "", "insert", msgspec.Raw(b"{}"), (), 1, broadcast=True
    )  # fmt: skip
    assert set(addressed(broadcasts, asked).subscriptions) == {"stays", "goes"}
    for number in range(100):
        broadcasts.came(Subscription(f"s{number}", NODE, TOPIC))
        broadcasts.went(f"s{number}")
    broadcasts.went("goes")
    broadcasts.came(Subscription("comes", NODE, TOPIC))
    assert set(broadcasts._changed) == {"goes", "comes"}
    assert set(addressed(broadcasts, asked).subscriptions) == {"stays", "comes"}


def about(seq: int, *subscriptions: str) -> Delivery:
    return Delivery(
        TOPIC, 0, seq, f"e{seq}", None, "", "insert", msgspec.Raw(b'{"n":1}'), subscriptions, 1,
        broadcast=True,
    )  # fmt: skip


async def test_everybody_else_has_a_turn_between_two_broadcasts_whose_filters_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where those are asked who came meanwhile."""
    machine, match = ScriptedMachine(), MatchIndex.match

    def costly(self: MatchIndex, record: Record, document: object) -> Matched:
        machine.passes(COSTLY_S)
        return match(self, record, document)

    monkeypatch.setattr(MatchIndex, "match", costly)
    broadcasts = Broadcasts(lambda: [Subscription("s", NODE, TOPIC, "n == 1")], machine)
    deliveries = tuple(about(seq) for seq in range(1, 21))
    coming = ["comes", "comes later"]
    with broadcasts.looking(DeliveryBatch(NODE, 1, 0, deliveries)) as looking:
        asking = asyncio.create_task(looking.look())
        longest_s, before_s = 0.0, machine.monotonic_s()
        while not asking.done():
            await asyncio.sleep(0)
            now_s = machine.monotonic_s()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s
            if coming and now_s > 10 * COSTLY_S * (3 - len(coming)):
                broadcasts.came(Subscription(coming.pop(0), NODE, TOPIC, "n == 1"))
        wanted = [looking.addressed(n).subscriptions for n in range(20)]
        longest_s = max(longest_s, machine.monotonic_s() - before_s)
    assert wanted == [("s", "comes", "comes later")] * 20
    assert COSTLY_S <= longest_s < 2 * COSTLY_S


async def test_who_comes_and_goes_while_others_are_asked_counts() -> None:
    here = [Subscription(name, NODE, TOPIC, "n == 1") for name in ("stays", "goes", "changes")]
    broadcasts = Broadcasts(lambda: here, ScriptedMachine())
    broadcasts._now_s = map(float, count()).__next__  # everybody has a turn after each
    asked = (about(7), about(8, "stays"))
    with broadcasts.looking(DeliveryBatch(NODE, 1, 0, asked)) as looking:
        asking = asyncio.create_task(looking.look())
        await asyncio.sleep(0)
        broadcasts.went("goes")
        broadcasts.came(Subscription("comes", NODE, TOPIC, "n == 1"))
        broadcasts.came(Subscription("wants others", NODE, TOPIC, "n == 2"))
        broadcasts.came(Subscription("comes and goes", NODE, TOPIC))
        broadcasts.went("comes and goes")
        broadcasts.went("changes")
        broadcasts.came(Subscription("changes", NODE, TOPIC, "n == 2"))
        for _ in range(2):
            await asyncio.sleep(0)  # the newcomers are asked, the first time
        broadcasts.came(Subscription("changes once more", NODE, TOPIC, "n == 1"))
        broadcasts.went("comes")
        broadcasts.came(Subscription("comes", NODE, TOPIC, "n == 1"))
        await asking
        found = [looking.addressed(number) for number in range(2)]
    wanted = {"stays", "comes", "changes once more"}
    assert [set(one.subscriptions) for one in found] == [wanted] * 2
    assert [len(one.subscriptions) for one in found] == [3, 3]
    assert dict(zip(found[1].subscriptions, found[1].since, strict=True)) == {
        "stays": 0,
        "comes": 7,
        "changes once more": 7,
    }
    broadcasts._now_s = ScriptedMachine().monotonic_s
    assert set(addressed(broadcasts, about(9)).subscriptions) == wanted


async def test_who_comes_while_a_broadcast_is_looked_at_gets_it_with_what_was_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears of nothing twice and misses nothing, though the lane knew nobody here."""
    first = await world.websocket(where="n > 0")
    await first.next()
    begun, goes_on = asyncio.Event(), asyncio.Event()
    ask = Looking._ask

    async def slowly(self: Looking, *about: Any) -> None:
        await ask(self, *about)
        begun.set()
        await goes_on.wait()

    monkeypatch.setattr(Looking, "_ask", slowly)
    delivering = asyncio.create_task(broadcast(world, {"n": 1}, {"n": 2}))
    await begun.wait()
    second = await world.websocket(where="n > 1", from_="earliest")
    assert (await second.next())["type"] == "subscribed"
    goes_on.set()
    assert await delivering == ("accepted", "accepted")
    assert await first.events(2) == [(0, 1), (0, 2)]
    assert await second.events(1) == [(0, 2)]
    assert await broadcast(world, {"n": 3}) == ("accepted",)
    assert await second.events(1) == [(0, 3)]


async def test_a_batch_for_another_process_costs_no_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Looking, "look", None)
    taken = world.gateway._deliveries.take(DeliveryBatch(NODE, 1, 0, (about(1),), "another"))
    with pytest.raises(errors.NotNow, match="another process"):
        await taken  # type: ignore[misc]


async def test_a_batch_that_comes_again_takes_the_place_of_the_former_one() -> None:
    """Nobody waits for the answer to that, and each would take as long again. Another lane's, and
    what else the same one sends meanwhile, have nothing to do with it."""
    machine = ScriptedMachine()
    broadcasts = Broadcasts(lambda: [Subscription("s", NODE, TOPIC, "n == 1")], machine)
    broadcasts._now_s = map(float, count()).__next__
    elsewhere = tuple(msgspec.structs.replace(about(seq), partition=1) for seq in range(1, 9))

    async def asked(window: int, deliveries: tuple[Delivery, ...]) -> int:
        with broadcasts.looking(DeliveryBatch(NODE, window, 0, deliveries)) as looking:
            await looking.look()
            return sum(looking.addressed(n).subscriptions == ("s",) for n in range(8))

    own = tuple(about(seq) for seq in range(1, 9))
    letters = tuple(msgspec.structs.replace(one, redelivery=True) for one in own)
    askings = [asked(1, own), asked(2, own), asked(1, elsewhere), asked(1, letters), asked(1, own)]
    first, *others = await asyncio.gather(*askings, return_exceptions=True)
    assert isinstance(first, errors.NotNow)
    assert others == [8, 8, 8, 8]
