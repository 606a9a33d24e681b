"""A gateway that stops: nothing more comes in, what waits goes out, and everybody is told."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from headgate.model.api import Health
from headgate.model.control.from_coordinator import Restart
from headgate.model.control.to_coordinator import Goodbye
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from tests.services.gateway.world import WAIT_S, World, running, until


async def stopping(world: World) -> asyncio.Task[None]:
    """A stop that has begun."""
    task = asyncio.create_task(world.gateway.stop())
    await until(lambda: world.gateway._stopping)
    return task


async def a_subscriber_that_does_not_read(world: World, events: int) -> None:
    slow = await world.websocket()
    await slow.next()
    slow.stop_reading()
    await world.produce(*({"f": "x" * 100_000} for _ in range(events)))
    await until(lambda: world.gateway._subscriptions.totals.depth > 0)


async def test_lanes_are_told_to_keep_what_they_have() -> None:
    async with running() as world:
        await a_subscriber_that_does_not_read(world, 100)
        before = world.gateway._subscriptions.totals.depth
        stop = await stopping(world)
        assert set(await world.produce({"n": 1}, {"n": 2})) == {"retry"}
        assert world.gateway._subscriptions.totals.depth <= before
        await asyncio.wait_for(stop, WAIT_S)


async def test_what_waits_is_sent_before_the_goodbye() -> None:
    async with running(stop_timeout_s=20.0) as world:
        slow = await world.websocket()
        await slow.next()
        slow.stop_reading()
        await world.produce(*({"f": "x" * 100_000} for _ in range(100)))
        await until(lambda: world.gateway._subscriptions.totals.depth > 0)
        stop = await stopping(world)
        slow.read_on()
        assert await slow.events(100) == [(0, seq) for seq in range(1, 101)]
        assert (await slow.next())["error"]["details"] == {"reason": "going_away"}
        await asyncio.wait_for(stop, WAIT_S)


async def test_whoever_takes_nothing_does_not_hold_the_stop() -> None:
    async with running(stop_timeout_s=60.0) as world:
        await a_subscriber_that_does_not_read(world, 100)
        for socket in world.sockets:
            socket.leave()
        async with asyncio.timeout(WAIT_S):
            await world.gateway.stop()


async def test_nobody_may_come_any_more_and_health_says_why() -> None:
    async with running() as world:
        await a_subscriber_that_does_not_read(world, 100)
        stop = await stopping(world)
        late = await world.websocket()
        assert "stopping" in (await late.next())["error"]["message"]
        answer = await world.client.get(f"{world.gateway.url}/health").build().send()
        assert answer.status == 503
        health = await answer.json()
        assert (health["status"], health["reasons"]) == ("unhealthy", ["it is stopping"])
        await asyncio.wait_for(stop, WAIT_S)


async def test_nothing_more_is_read_from_the_log_for_anybody() -> None:
    bounds = Bounds(queue=10, subscribe_timeout_s=WAIT_S, topic_grace_s=0.05)
    async with running(bounds=bounds) as world:
        for number in range(1_000):
            world.log.append({"f": "x" * 50_000, "n": number})
        slow = await world.websocket(from_="earliest")
        await slow.next()
        slow.stop_reading()
        await until(lambda: world.gateway._subscriptions.catch_up.records > 0)
        subscriptions = world.gateway._subscriptions
        subscriptions.stop_intake()
        read = subscriptions.catch_up.records
        slow.read_on()
        await until(lambda: subscriptions.totals.depth == 0)
        await asyncio.wait_for(world.gateway.stop(), WAIT_S)
        assert subscriptions.catch_up.records - read <= bounds.queue


async def test_the_lease_is_given_back_at_the_end() -> None:
    async with running() as world:
        await world.gateway.stop()
        assert world.coordinator.session is not None
        assert world.coordinator.session.closed


async def test_a_gateway_that_is_to_begin_anew_says_that_it_returns() -> None:
    async with running() as world:
        assert world.coordinator.session is not None
        world.coordinator.session.push(Restart())
        await asyncio.wait_for(world.gateway.failed(), WAIT_S)
        assert world.gateway.is_to_restart
        await world.gateway.stop(returns=True)
        assert world.coordinator.received[-1] == Goodbye(returns=True)


async def test_a_gateway_counts_what_it_decided(world: World) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    await world.produce({"n": 1})
    await subscriber.events(1)
    assert await world.metric('headgate_deliveries_received_total{verdict="accepted"}') == 1
    assert await world.metric("headgate_dedup_cache_size") == 1
    assert await world.metric("headgate_coordinator_connected") == 1


@pytest.mark.parametrize("connected", [True, False])
async def test_health_depends_on_the_coordinator(connected: bool) -> None:
    async with running() as world:
        await until(lambda: world.gateway._control.connected)
        if not connected:
            world.coordinator.disconnect()
        health: Health = world.gateway._health()
        assert health.status == ("healthy" if connected else "degraded")
        assert bool(health.reasons) != connected


async def test_what_it_had_open_is_closed() -> None:
    closed = []

    async def close(what: str) -> None:
        closed.append(what)

    async with running() as world:
        world.log.close = partial(close, "log")  # type: ignore[method-assign]
        world.checkpoints.close = partial(close, "positions")  # type: ignore[method-assign]
        await world.gateway.stop()
        assert closed == ["log", "positions"]
