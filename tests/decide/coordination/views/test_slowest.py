"""Who doesn't keep up at a gateway, as the coordinator hears and tells it."""

from __future__ import annotations

from headgate.decide.coordination.views.status import Stored, describe
from headgate.model import api
from headgate.model.control.reports import GatewayReport
from headgate.model.subscription import SlowSubscriber
from tests.decide.coordination.world import World


def slowest(world: World) -> list[SlowSubscriber]:
    now_ms = world.now_ms
    status = describe(
        world.cluster, version="1", stored=Stored({}, {}), now_ms=now_ms, wall_ms=now_ms
    )
    [gateway] = status.gateways
    return gateway.slowest


def test_it_tells_what_a_gateway_said_last_and_never_more_than_a_few() -> None:
    world = World()
    gateway = world.join("gateway", "g-1")
    slow = tuple(SlowSubscriber(f"s{n}", "flights", n, catching_up=False) for n in range(50))
    world.say(gateway, GatewayReport(50, 1_225, 0, slowest=slow))
    assert slowest(world) == list(slow[: api.SLOWEST_MAX])
    world.say(gateway, GatewayReport(50, 0, 1_225))
    assert slowest(world) == []
