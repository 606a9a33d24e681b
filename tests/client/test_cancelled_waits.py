"""A wait that is cancelled, a close in the middle of something, an acknowledgement at a bad time:
nothing is lost, nothing is repeated, nothing stays open. Over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import errors
from headgate.client import Consumer, Event, Subscriber
from tests.client.served_gateway import ServedGateway, served_gateway
from tests.waiting import until

WAIT_S = 30.0
UNKNOWN = {"code": "unknown_topic", "message": "no such topic; create it", "details": {}}


async def take(client: Subscriber | Consumer, count: int = 1) -> list[tuple[str, int]]:
    """Topics and seqs."""
    async with asyncio.timeout(WAIT_S):
        items = [await anext(client) for _ in range(count)]
    assert all(isinstance(item, Event) for item in items), items
    return [(item.topic, item.seq) for item in items if isinstance(item, Event)]


async def short_wait(client: Subscriber | Consumer, timeout_s: float = 0.05) -> Any:
    """What comes within a moment, or None."""
    try:
        async with asyncio.timeout(timeout_s):
            return await anext(client)
    except TimeoutError:
        return None


def two_topics(gateway: ServedGateway, **options: Any) -> Subscriber:
    subscriber = Subscriber(gateway.url, retry_first_s=0.01, **options)
    subscriber.add("a", id="sa")
    subscriber.add("b", id="sb")
    return subscriber


async def poll(client: Subscriber, seen: list[tuple[str, int]], wanted: int) -> None:
    """Short waits, one after the other, until so many have come."""
    async with asyncio.timeout(WAIT_S):
        while len(seen) < wanted:
            if isinstance(item := await short_wait(client), Event):
                seen.append((item.topic, item.seq))


async def polls(client: Subscriber, count: int) -> None:
    for _ in range(count):
        await short_wait(client, 0.02)


async def take_on(client: Subscriber, seen: list[tuple[str, int]]) -> None:
    """Until something is wrong."""
    while True:
        seen += await take(client)


# --- waits ---------------------------------------------------------------------------------------


async def test_a_wait_that_is_cancelled_while_one_of_two_subscriptions_reopens_loses_nothing() -> (
    None
):
    async with served_gateway() as gateway, two_topics(gateway) as subscriber:
        gateway.append("a")
        assert await take(subscriber) == [("a", 1)]
        gateway.silent.add("sb")
        gateway.drop_all()
        gateway.append("a", 3)
        waiting = asyncio.ensure_future(anext(subscriber))
        await until(lambda: gateway.opened == 2 and "sa" in gateway.sessions[0].sent)
        await asyncio.sleep(0.02)  # what was sent arrives
        waiting.cancel()
        ended: object
        [ended] = await asyncio.gather(waiting, return_exceptions=True)
        seen = [(ended.topic, ended.seq)] if isinstance(ended, Event) else []
        gateway.answer("sb")
        gateway.append("a")
        gateway.append("b")
        await poll(subscriber, seen, 5)
        assert [seq for topic, seq in seen if topic == "a"] == [2, 3, 4, 5]
        assert [seq for topic, seq in seen if topic == "b"] == [1]


@pytest.mark.parametrize("acks", ["auto", "manual"])
async def test_who_goes_on_after_one_of_two_subscriptions_is_refused_misses_nothing(
    acks: Any,
) -> None:
    async with served_gateway() as gateway, two_topics(gateway, acks=acks) as subscriber:
        gateway.append("a")
        assert await take(subscriber) == [("a", 1)]
        gateway.refused["sb"] = UNKNOWN
        gateway.drop_all()
        gateway.append("a", 3)
        seen: list[tuple[str, int]] = []
        with pytest.raises(errors.UnknownTopic):
            await take_on(subscriber, seen)
        del gateway.refused["sb"]
        gateway.append("b", 2)
        await poll(subscriber, seen, 5 if acks == "auto" else 6)
        again = [] if acks == "auto" else [1]
        assert [seq for topic, seq in seen if topic == "a"] == [*again, 2, 3, 4]
        assert [seq for topic, seq in seen if topic == "b"] == [1, 2]


async def test_an_error_about_one_of_two_subscriptions_is_told_once_and_the_other_goes_on() -> None:
    async with served_gateway() as gateway, two_topics(gateway) as subscriber:
        gateway.refused["sb"] = UNKNOWN
        gateway.drop_all()
        with pytest.raises(errors.UnknownTopic):
            await take(subscriber)
        gateway.append("a", 2)
        assert await take(subscriber, 2) == [("a", 1), ("a", 2)]
        gateway.drop_all()
        gateway.append("a")
        assert await take(subscriber) == [("a", 3)]


# --- reconnecting between calls ------------------------------------------------------------------


async def test_short_waits_find_a_gateway_again() -> None:
    async with (
        served_gateway() as gateway,
        Subscriber(gateway.url, "a", retry_first_s=0.2) as subscriber,
    ):
        gateway.drop_all()
        gateway.append("a")
        seen: list[tuple[str, int]] = []
        for _ in range(40):
            if isinstance(item := await short_wait(subscriber, 0.02), Event):
                seen.append((item.topic, item.seq))
                break
        assert seen == [("a", 1)]
        assert gateway.opened == 2


async def test_short_waits_use_up_the_attempts() -> None:
    async with (
        served_gateway() as gateway,
        Subscriber(gateway.url, "a", retry_first_s=0.06, retry_attempts=2) as subscriber,
    ):
        gateway.cut_off = 1_000
        gateway.drop_all()
        with pytest.raises(errors.NotNow):
            await polls(subscriber, 100)
        assert gateway.opened == 1 + 2
        gateway.cut_off = 0
        gateway.append("a")
        assert await take(subscriber) == [("a", 1)], "and the call after that tries anew"


# --- closing -------------------------------------------------------------------------------------


async def test_a_consumer_that_is_closed_while_it_rejoins_is_no_member_any_more() -> None:
    async with served_gateway() as gateway:
        consumer = Consumer(gateway.url, "a", "g", consumer="c", retry_first_s=0.01)
        async with consumer:
            gateway.silent.add("c")
            gateway.drop_all()
            waiting = asyncio.ensure_future(anext(consumer, None))
            await until(lambda: gateway.opened == 2)
            await asyncio.wait_for(consumer.close(), WAIT_S)
            assert await asyncio.wait_for(waiting, WAIT_S) is None
        gateway.answer("c")
        await until(lambda: not gateway.sessions)
        await asyncio.sleep(0.05)
        assert gateway.opened == 2


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.002, 0.003, 0.005, 0.008, 0.013])
async def test_a_close_leaves_nothing_open_however_far_the_reconnection_is(after_s: float) -> None:
    async with served_gateway() as gateway:
        consumer = Consumer(gateway.url, "a", "g", retry_first_s=0.001)
        async with consumer:
            waiting = asyncio.ensure_future(anext(consumer, None))
            await asyncio.sleep(0)
            gateway.drop_all()
            await asyncio.sleep(after_s)
            closing = asyncio.ensure_future(consumer.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            await asyncio.wait_for(consumer.close(), WAIT_S)
            assert await asyncio.wait_for(waiting, WAIT_S) is None
        opened = gateway.opened
        await until(lambda: not gateway.sessions)
        await asyncio.sleep(0.02)
        assert gateway.opened == opened
        assert not gateway.mistakes


# --- acknowledging around a reconnection ---------------------------------------------------------


async def test_an_acknowledgement_while_rejoining_waits_and_nothing_comes_twice() -> None:
    async with (
        served_gateway() as gateway,
        Consumer(
            gateway.url, "a", "g", consumer="c", acks="manual", retry_first_s=0.01
        ) as consumer,
    ):
        gateway.append("a", 3)
        items = [await asyncio.wait_for(anext(consumer), WAIT_S) for _ in range(3)]
        gateway.silent.add("c")
        gateway.drop_all()
        waiting = asyncio.ensure_future(anext(consumer))
        await until(lambda: gateway.opened == 2)
        await asyncio.sleep(0.02)
        for item in items[:2]:
            await consumer.acknowledge(item)
        await asyncio.sleep(0.02)
        gateway.answer("c")
        again = await asyncio.wait_for(waiting, WAIT_S)
        assert isinstance(again, Event)
        assert again.seq == 3, "the first two are processed"
        await consumer.acknowledge(items[2])
        await until(lambda: gateway.groups["g"].settled == 3)
        assert not gateway.mistakes


async def test_an_acknowledgement_of_an_earlier_connections_item_counts_and_is_no_error() -> None:
    async with (
        served_gateway() as gateway,
        Subscriber(gateway.url, "a", acks="manual", retry_first_s=0.01) as subscriber,
    ):
        gateway.append("a", 5)
        async with asyncio.timeout(WAIT_S):
            items = [await anext(subscriber) for _ in range(5)]
        gateway.drop_all()
        await until(lambda: gateway.opened == 2 and gateway.sessions)
        await asyncio.sleep(0.02)
        subscriber.ack(items[3])
        assert await take(subscriber) == [("a", 5)]
        subscriber.ack(items[4])
        [name] = gateway.sessions[0].sent
        await until(lambda: gateway.sessions[0].acknowledged[name] == 5)
        assert not gateway.mistakes
        later = Event("a", 0, 6, "e", None, "", "insert", items[0].raw, items[0].subscriptions)  # type: ignore[union-attr]
        with pytest.raises(errors.InvalidRequest, match="can't be acknowledged"):
            subscriber.ack(later)


# --- between calls -------------------------------------------------------------------------------


async def test_a_target_that_is_asked_for_is_given_back_while_a_handler_works() -> None:
    async with (
        served_gateway() as gateway,
        Consumer(gateway.url, "a", "g", consumer="c", acks="manual") as consumer,
    ):
        gateway.append("a", 3)
        item = await asyncio.wait_for(anext(consumer), WAIT_S)
        await consumer.acknowledge(item)
        gateway.sessions[0].revoke()
        # Nobody asks for the next one: the handler works.
        await until(lambda: gateway.groups["g"].owner is None, 2.0)
        assert not consumer.targets
