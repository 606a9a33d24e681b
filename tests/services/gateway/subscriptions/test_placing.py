"""Subscribers that belong to another gateway are told so, over WebSocket and over HTTP."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from pyreqwest.client import ClientBuilder

from headgate.decide.planning.gateway_ring import Places, subscriber_of
from headgate.model.topology import GatewayRing, Node
from headgate.services.gateway.wire import CLOSE_REDIRECT
from tests.services.gateway.doubles import topology
from tests.services.gateway.world import NODE, World, until

OTHER = Node("gateway-2", "gateway", "http://x", "ws://there/v1/subscribe", 0, "http://there")


async def placed(world: World, *, full: tuple[str, ...] = (), other: Node = OTHER) -> None:
    """Subscribers are spread over this gateway and another one."""
    own = Node(NODE, "gateway", "http://x", world.gateway.ws_url, 0, world.gateway.url)
    ring = GatewayRing((NODE, OTHER.id), full)
    world.coordinator.publish(msgspec.structs.replace(topology(5), nodes=(own, other), ring=ring))
    await until(lambda: world.gateway._control.topology.generation == 5)


def one_of(gateway_id: str) -> str:
    """The id of a subscriber that belongs there."""
    places = Places(GatewayRing((NODE, OTHER.id)))
    return next(name for n in range(100) if places.of(name := f"me-{n}") == gateway_id)


async def location_of(url: str) -> str:
    """Where an answer sends whoever asks."""
    async with ClientBuilder().follow_redirects(False).build() as client:
        answer = await client.get(url).build().send()
    assert answer.status == 307
    return answer.headers["location"]


async def test_without_a_ring_everybody_stays(world: World) -> None:
    one = await world.websocket(id_=one_of(OTHER.id))
    assert (await one.next())["type"] == "subscribed"
    assert "." not in next(iter(world.coordinator.registry))


async def test_who_belongs_here_stays_under_its_own_id(world: World) -> None:
    await placed(world)
    one = await world.websocket(id_=one_of(NODE))
    assert (await one.next())["type"] == "subscribed"
    [registered] = world.coordinator.registry
    assert subscriber_of(registered) == one_of(NODE)
    assert await world.produce({"n": 1}) == ["accepted"]
    assert await one.events(1) == [(0, 1)]


async def test_who_belongs_elsewhere_is_sent_there(world: World) -> None:
    await placed(world)
    one = await world.websocket(id_=one_of(OTHER.id))
    assert await one.next() == {
        "type": "redirect",
        "url": OTHER.ws_url,
        "gateway": OTHER.id,
        "id": one_of(OTHER.id),
    }
    assert await one.closed() == CLOSE_REDIRECT
    assert not world.coordinator.registry


async def test_a_connection_for_messages_is_placed_as_a_whole(world: World) -> None:
    await placed(world)
    away = await world.connection(f"?v=1&id={one_of(OTHER.id)}")
    assert (await away.next())["type"] == "redirect"
    here = await world.connection(f"?v=1&id={one_of(NODE)}")
    for name in ("a", "b"):
        assert (await here.subscribe(name))["type"] == "subscribed"
    assert {subscriber_of(name) for name in world.coordinator.registry} == {one_of(NODE)}


async def test_one_that_could_not_reach_the_other_is_taken(world: World) -> None:
    await placed(world)
    one = await world.websocket(id_=one_of(OTHER.id), unreachable=OTHER.id)
    assert (await one.next())["type"] == "subscribed"


async def test_a_gateway_at_its_bound_sends_newcomers_on(world: World) -> None:
    await placed(world, full=(NODE,))
    one = await world.websocket(id_=one_of(NODE))
    assert (await one.next())["gateway"] == OTHER.id


async def test_nobody_is_sent_to_an_address_that_is_not_known(world: World) -> None:
    await placed(world, other=Node(OTHER.id, "gateway", "http://x"))
    one = await world.websocket(id_=one_of(OTHER.id))
    assert (await one.next())["type"] == "subscribed"


async def test_over_http_the_answer_is_a_redirect_with_the_same_question(world: World) -> None:
    await placed(world)
    question = f"topic=flights&where=n%20%3E%201&from=earliest&id={one_of(OTHER.id)}"
    there = urlsplit(await location_of(f"{world.gateway.url}/v1/subscribe?{question}"))
    assert f"{there.scheme}://{there.netloc}{there.path}" == "http://there/v1/subscribe"
    assert parse_qs(there.query) == parse_qs(question)


async def test_who_has_no_id_is_given_one(world: World) -> None:
    await placed(world, full=(NODE,))
    there = urlsplit(await location_of(f"{world.gateway.url}/v1/subscribe?topic=flights"))
    [given] = parse_qs(there.query)["id"]
    assert len(given) == 24
    one = await world.websocket()
    assert len((await one.next())["id"]) == 24


async def test_two_with_one_id_do_not_meet(world: World) -> None:
    await placed(world)
    first = await world.websocket(id_=one_of(NODE))
    second = await world.websocket(id_=one_of(NODE))
    for one in (first, second):
        assert (await one.next())["type"] == "subscribed"
    await world.produce({"n": 1})
    assert await first.events(1) == await second.events(1) == [(0, 1)]
    second.leave()
    await until(lambda: len(world.coordinator.registry) == 1)
    await world.produce({"n": 2})
    assert await first.events(1) == [(0, 2)]


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        pytest.param("id", "a.b", id="a character that has a meaning"),
        pytest.param("id", "x" * 65, id="too long"),
        pytest.param("unreachable", ",".join("abcdefghijklmnopq"), id="too many gateways"),
    ],
)
async def test_what_can_not_be_an_id_is_refused(world: World, parameter: str, value: str) -> None:
    one = await world.websocket(**{parameter: value})
    message = await one.next()
    assert message["error"]["details"]["parameter"] == parameter
