"""The ring of gateways that the coordinator publishes: who is on it, and who is at the bound."""

from __future__ import annotations

import pytest

from headgate.decide.coordination.cluster import Cluster
from headgate.decide.coordination.members.members import Balance
from headgate.decide.planning.gateway_ring import FEW
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.to_coordinator import Hello
from headgate.model.subscription import Subscription
from headgate.model.topology import GatewayRing
from tests.decide.coordination.world import TIMING, World


@pytest.fixture
def world() -> World:
    world = World()
    balance = Balance(places_subscribers=True)
    world.cluster = Cluster(world.stored, TIMING, "coordinator-1", world.now_ms, balance)
    return world


def join(world: World, name: str) -> int:
    hello = Hello(
        role="gateway",
        node_id=name,
        incarnation="a",
        url=f"http://{name}",
        ws_url=f"ws://{name}",
        public_url=f"http://public-{name}",
    )
    session = world.open(hello)
    world.say(session, to_coordinator.RegistrationComplete())
    return session


def register(world: World, gateway: int, *numbers: int) -> None:
    member = world.cluster.member_of(gateway)
    assert member is not None
    name = member.hello.node_id
    wanted = tuple(Subscription(f"{name}-{n}", name, "flights") for n in numbers)
    world.say(gateway, to_coordinator.Register(7, wanted))


def ring(world: World, session: int) -> GatewayRing | None:
    return world.last(session, from_coordinator.PushTopology).topology.ring


def pushes(world: World, session: int) -> int:
    return len(world.sent(session, from_coordinator.PushTopology))


def test_nobody_is_placed_unless_the_mode_says_so() -> None:
    world = World()
    gateway = join(world, "a")
    assert ring(world, gateway) is None
    other = join(world, "b")
    assert pushes(world, gateway) == 1, "a gateway has no use for another one's address"
    register(world, other, *range(5 * FEW))
    assert pushes(world, gateway) == 1


def test_gateways_hear_of_each_other_and_where_to_send_subscribers(world: World) -> None:
    first = join(world, "a")
    join(world, "b")
    assert ring(world, first) == GatewayRing(("a", "b"))
    topology = world.last(first, from_coordinator.PushTopology).topology
    assert [(n.ws_url, n.public_url) for n in topology.of_role("gateway")] == [
        ("ws://a", "http://public-a"),
        ("ws://b", "http://public-b"),
    ]


def test_lanes_get_the_same_ring(world: World) -> None:
    world.join("router", "router-1")
    lane = world.lane(*world.create("flights"))
    first = join(world, "a")
    join(world, "b")
    assert ring(world, lane) == GatewayRing(("a", "b"))
    register(world, first, *range(5 * FEW))
    assert ring(world, lane) == GatewayRing(("a", "b"), ("a",))


def test_a_gateway_at_its_bound_is_published_once_and_again_when_it_has_room(world: World) -> None:
    first, second = join(world, "a"), join(world, "b")
    register(world, second, *range(40))
    register(world, first, *range(40))
    assert ring(world, second) == GatewayRing(("a", "b"))
    before = pushes(world, second)
    for number in range(40, 100):
        register(world, first, number)
    assert ring(world, second) == GatewayRing(("a", "b"), ("a",))
    assert pushes(world, second) == before + 1
    world.say(first, to_coordinator.Unregister(8, tuple(f"a-{n}" for n in range(30, 100))))
    assert ring(world, second) == GatewayRing(("a", "b"))
    assert pushes(world, second) == before + 2


def test_a_gateway_that_has_gone_leaves_the_ring(world: World) -> None:
    first, second = join(world, "a"), join(world, "b")
    world.drop(second)
    assert ring(world, first) == GatewayRing(("a", "b")), "its lease lasts"
    world.wait(31_000, alive=(first,))
    assert ring(world, first) == GatewayRing(("a",))


def test_the_ring_survives_a_restart_of_the_coordinator(world: World) -> None:
    world.create("flights")
    first, second = join(world, "a"), join(world, "b")
    again = World(stored=world.persisted())
    balance = Balance(places_subscribers=True)
    again.cluster = Cluster(again.stored, TIMING, "coordinator-2", again.now_ms, balance)
    back = join(again, "a")
    assert ring(again, back) == ring(world, first) == ring(world, second)
