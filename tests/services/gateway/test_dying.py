"""What a gateway does in the background dies of a mistake: whoever it was for is told, the rest
goes on or the gateway ends, and /health says so."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from headgate.model.api import Health
from headgate.model.control.from_coordinator import PushTopology
from headgate.model.control.reports import GatewayReport
from headgate.tasks import TaskDied
from tests.services.gateway.world import World, until

MISTAKE: Any = RuntimeError("a mistake")


async def reasons(world: World) -> list[str]:
    answer = await world.client.get(f"{world.gateway.url}/health").build().send()
    health = msgspec.json.decode(await answer.bytes(), type=Health)
    assert health.status == ("degraded" if health.reasons else "healthy")
    return health.reasons


async def test_a_subscriber_whose_reading_died_is_told_and_the_others_are_not(
    world: World,
) -> None:
    other = await world.websocket()
    await other.next()
    assert await reasons(world) == []
    world.log.append({"n": 1})
    world.log.gate = asyncio.Event()
    reading = await world.websocket(from_="earliest")
    assert (await reading.next())["type"] == "subscribed"
    await until(lambda: world.log.reads > 0)
    world.log.failing = MISTAKE
    world.log.gate.set()
    assert (await reading.next())["type"] == "error"
    await reading.closed()
    assert any(
        "gateway catching up died" in reason and "a mistake" in reason
        for reason in await reasons(world)
    )
    world.log.failing = None
    await world.lanes.run()
    assert await other.events(1) == [(0, 1)]
    assert await world.metric('headgate_task_deaths_total{task="gateway catching up"}') == 1.0


async def test_whoever_can_not_be_brought_back_after_a_return_is_not_held_for_ever(
    world: World,
) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    world.coordinator.disconnect()
    world.log.failing = MISTAKE
    world.coordinator.remembers = False
    world.coordinator.connect()
    assert (await subscriber.next())["type"] == "error"
    await subscriber.closed()
    assert any("after a return died" in reason for reason in await reasons(world))


async def test_a_subscription_that_dies_on_its_way_is_refused(world: World) -> None:
    connection = await world.connection()
    world.log.failing = MISTAKE
    assert (await connection.subscribe("s"))["type"] == "error"
    assert any("gateway subscribing died" in reason for reason in await reasons(world))


async def test_reports_that_died_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    session, coordinator = world.coordinator.session, world.coordinator
    assert session is not None
    await until(lambda: bool(coordinator.of_kind(GatewayReport)))

    def mistaken(_message: object) -> None:
        monkeypatch.undo()
        raise MISTAKE

    monkeypatch.setattr(session, "_received", mistaken)
    await until(lambda: session._received is not mistaken)
    before = len(coordinator.of_kind(GatewayReport))
    await until(lambda: len(coordinator.of_kind(GatewayReport)) > before)
    assert any("gateway report died" in reason for reason in await reasons(world))


async def test_a_gateway_that_can_not_listen_any_more_ends(world: World) -> None:
    session = world.coordinator.session
    assert session is not None
    session.push(PushTopology(None))  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        await asyncio.wait_for(world.gateway.failed(), 30)
    assert any(
        "gateway control died" in reason and "this process ends" in reason
        for reason in await reasons(world)
    )


async def test_a_gateway_that_nobody_can_deliver_to_ends(world: World) -> None:
    listening: Any = world.gateway._listener
    listening._server._server.stop()
    with pytest.raises(TaskDied):
        await asyncio.wait_for(world.gateway.failed(), 30)
    assert any("delivery listener died" in reason for reason in await reasons(world))
