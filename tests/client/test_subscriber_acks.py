"""Acknowledgements, records that will not come, and several subscriptions over one connection."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headgate import errors
from headgate.client import Event, Resync, Subscriber
from headgate.model.event import PartitionRef
from headgate.services.gateway.subscriptions.subscriptions import Bounds, SlowPolicies
from tests.client.test_subscriber_client import places, system, take
from tests.services.gateway.doubles import FakeCoordinator, topology
from tests.services.gateway.world import WAIT_S, World, until
from tests.written_log import TOPIC


def cut(world: World) -> None:
    for connection in tuple(world.gateway._websocket.connections):
        connection.abort()


async def test_what_was_consumed_is_acknowledged_by_itself() -> None:
    async with system() as (world, _), Subscriber(world.gateway.url, "flights") as subscriber:
        await world.produce({"n": 1}, {"n": 2}, {"n": 3})
        await take(subscriber, 3)
        waiting = asyncio.ensure_future(anext(subscriber))
        (served,) = world.gateway._subscriptions
        await until(lambda: served._acknowledged == {0: 3, 1: 0})
        await world.produce({"n": 4})
        assert (await asyncio.wait_for(waiting, WAIT_S)).partition == 0


async def test_what_was_not_acknowledged_comes_again_after_a_lost_connection() -> None:
    async with (
        system() as (world, _),
        Subscriber(world.gateway.url, "flights", acks="manual", retry_first_s=0.01) as subscriber,
    ):
        await world.produce(*({"n": n} for n in range(5)))
        events = await take(subscriber, 5)
        subscriber.ack(events[1])
        cut(world)
        assert places(await take(subscriber, 3)) == [(0, 3), (0, 4), (0, 5)]
        subscriber.ack(events[4])
        cut(world)
        await world.produce({"n": 5})
        assert places(await take(subscriber, 1)) == [(0, 6)]


async def test_acknowledging_what_never_came_is_refused() -> None:
    async with (
        system() as (world, _),
        Subscriber(world.gateway.url, "flights", acks="manual") as subscriber,
    ):
        await world.produce({"n": 1})
        (event,) = await take(subscriber, 1)
        later = Event("flights", 0, 9, "e", None, "", "insert", event.raw, event.subscriptions)
        with pytest.raises(errors.InvalidRequest, match="can't be acknowledged"):
            subscriber.ack(later)


async def test_acknowledgement_from_another_task_is_said_while_the_loop_waits() -> None:
    async with (
        system() as (world, _),
        Subscriber(world.gateway.url, "flights", acks="manual") as subscriber,
    ):
        await world.produce({"n": 1})
        (event,) = await take(subscriber, 1)
        waiting = asyncio.ensure_future(anext(subscriber, None))
        await asyncio.sleep(0)
        subscriber.ack(event)
        (served,) = world.gateway._subscriptions
        await until(lambda: served._acknowledged == {0: 1, 1: 0})
        await subscriber.close()
        await asyncio.wait_for(waiting, WAIT_S)


async def test_what_an_origin_has_lost_is_an_item_of_its_own() -> None:
    async with (
        system() as (world, _),
        Subscriber(world.gateway.url, "flights", retry_first_s=0.01) as subscriber,
    ):
        world.log.append({"n": 1})
        world.log.mark()
        world.log.about("shop.orders", "truncate")
        await world.lanes.run()
        _, item, about = [await asyncio.wait_for(anext(subscriber), WAIT_S) for _ in range(3)]
        assert isinstance(item, Resync)
        assert (item.after_seq, item.from_seq, item.reason) == (1, 3, "origin")
        assert str(item) == (
            "the origin of flights has lost changes before seq 2 of partition 0; going on from 3"
        )
        assert isinstance(about, Event)
        assert (about.op, about.key, about.document) == ("truncate", None, None)
        assert repr(about) == "Event(flights:0:3, truncate of 'shop.orders', document=null)"
        assert subscriber.positions[0] == 3


async def test_retention_that_passed_a_lost_connection_is_an_item_of_its_own() -> None:
    async with (
        system() as (world, _),
        Subscriber(world.gateway.url, "flights", retry_first_s=0.01) as subscriber,
    ):
        await world.produce({"n": 1})
        await take(subscriber, 1)
        cut(world)
        for n in range(5):
            world.log.append({"n": n})
        world.log.keep_from(PartitionRef(TOPIC, 0), 5)
        item = await asyncio.wait_for(anext(subscriber), WAIT_S)
        assert isinstance(item, Resync)
        assert (item.after_seq, item.from_seq, item.reason) == (1, 5, "retention")
        assert str(item) == (
            "records 2 to 4 of partition 0 of flights are no longer kept; going on from 5"
        )
        assert subscriber.positions[0] == 4
        assert places(await take(subscriber, 2)) == [(0, 5), (0, 6)]


async def test_a_redelivery_is_marked_and_leaves_positions_and_acknowledgements_alone() -> None:
    async with (
        system() as (world, _),
        Subscriber(world.gateway.url, "flights", acks="manual") as subscriber,
    ):
        await world.produce({"n": 1}, {"n": 2})
        first, second = await take(subscriber, 2)
        assert (first.redelivery, second.redelivery) == (False, False)
        record = world.log.records[PartitionRef(TOPIC, 0)][0]
        delivery = world.lanes.delivery(record, tuple(world.coordinator.registry))
        await world.lanes.deliver([msgspec.structs.replace(delivery, redelivery=True)])
        (again,) = await take(subscriber, 1)
        assert again.redelivery
        assert (again.seq, again.event_id) == (first.seq, first.event_id)
        assert subscriber.positions == {0: 2, 1: 0}
        subscriber.ack(again)
        (served,) = world.gateway._subscriptions
        subscriber.ack(second)
        await subscriber.close()
        await until(lambda: served._acknowledged == {0: 2, 1: 0})


async def test_disconnected_for_slowness_it_comes_back_and_misses_nothing() -> None:
    bounds = Bounds(queue=20, topic_grace_s=0.05, when_slow=SlowPolicies(normal="disconnect"))
    total = 1_500
    async with (
        system(bounds=bounds) as (world, _),
        Subscriber(world.gateway.url, "flights", buffer=5, retry_first_s=0.01) as subscriber,
    ):
        for begin in range(0, total, 100):
            await world.produce(*({"n": n, "f": "x" * 10_000} for n in range(begin, begin + 100)))
        assert places(await take(subscriber, total)) == [(0, seq) for seq in range(1, total + 1)]
        assert subscriber.reconnects >= 1


async def test_several_subscriptions_share_a_connection_and_resume_on_their_own() -> None:
    coordinator = FakeCoordinator(topology=topology(names=("flights", "ships")))
    async with system(coordinator=coordinator) as (world, _):
        subscriber = Subscriber(world.gateway.url, retry_first_s=0.01)
        low = [{"field": "n", "op": "<", "value": 10}]
        assert subscriber.add("flights", filter=low, priority="high", id="low") == "low"
        every = subscriber.add("flights")
        ships = subscriber.add("ships", id="ships")
        with pytest.raises(errors.InvalidRequest, match="already"):
            subscriber.add("ships", id="ships")
        async with subscriber:
            assert len(world.gateway._websocket.connections) == 1
            with pytest.raises(errors.InvalidRequest, match="before"):
                subscriber.add("ships")
            await world.produce({"n": 1}, {"n": 20})
            got = await take(subscriber, 2)
            assert [sorted(event.subscriptions) for event in got] == [
                sorted(["low", every]),
                [every],
            ]
            cut(world)
            world.log.append({"n": 2})
            world.log.append({"n": 3}, topic="ships")
            seen: dict[str, list[int]] = {"low": [], every: [], ships: []}
            while sum(map(len, seen.values())) < 3:
                for event in await take(subscriber, 1):
                    for name in event.subscriptions:
                        seen[name].append(event.seq)
            assert seen == {"low": [3], every: [3], ships: [1]}
            assert subscriber.positions_of("low")[0] == 3


async def test_one_that_is_refused_fails_the_opening() -> None:
    async with system() as (world, _):
        subscriber = Subscriber(world.gateway.url, "flights")
        subscriber.add("nowhere")
        with pytest.raises(errors.UnknownTopic, match="nowhere"):
            async with subscriber:
                pass
        await until(lambda: not world.coordinator.registry)


async def test_nothing_to_follow_is_said() -> None:
    with pytest.raises(errors.InvalidRequest, match="topic"):
        async with Subscriber("http://127.0.0.1:9"):
            pass
