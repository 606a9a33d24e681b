"""Web pages at a gateway, with the headers that browsers send: SSE, WebSocket, deliveries."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import msgspec
import pytest

from headgate.decide.planning.gateway_ring import Places
from headgate.model.topology import GatewayRing, Node
from tests.adapters.http.wire import Wire
from tests.services.gateway.doubles import topology
from tests.services.gateway.world import NODE, World, running, until

APP = "https://app.example.com"
FOREIGN = "https://evil.example"
PATHS = ["/v1/subscribe?topic=flights", "/v1/subscribe", "/v1/consume", "/nowhere"]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running(origins=(APP,)) as made:
        yield made


def port_of(url: str) -> int:
    return int(url.split("/")[2].rpartition(":")[2])


@contextlib.asynccontextmanager
async def handshake(world: World, path: str, *fields: str) -> AsyncIterator[tuple[int, str]]:
    """Status and body of the answer to a WebSocket handshake, as a browser sends it."""
    port = port_of(world.gateway.ws_url)
    host = () if any(field.startswith("host") for field in fields) else (f"host: 127.0.0.1:{port}",)
    lines = [
        f"GET {path} HTTP/1.1",
        *host,
        *fields,
        "upgrade: websocket",
        "connection: Upgrade",
        "sec-websocket-version: 13",
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    ]
    wire = await Wire.dial(port)
    wire.send("\r\n".join([*lines, "", ""]).encode())
    status, _, body = await wire.answer()
    try:
        yield status, body.decode()
    finally:
        await wire.close()


@pytest.mark.parametrize("path", PATHS)
async def test_a_foreign_page_gets_no_websocket(world: World, path: str) -> None:
    async with handshake(world, path, f"origin: {FOREIGN}") as (status, body):
        assert status == 403
        error = json.loads(body)["error"]
        assert error["code"] == "foreign_origin"
        assert f"add {FOREIGN} to public.origins" in error["message"]
    assert not world.gateway._websocket.connections
    assert not world.coordinator.registry


async def test_a_name_that_was_made_to_mean_this_machine_gets_no_websocket(world: World) -> None:
    host = f"evil.example:{port_of(world.gateway.ws_url)}"
    for fields in ([f"host: {host}", f"origin: http://{host}"], [f"host: {host}"]):
        async with handshake(world, PATHS[0], *fields) as (status, _):
            assert status == 403
    assert not world.coordinator.registry


@pytest.mark.parametrize("path", ["/v1/subscribe?topic=flights", "/v1/consume?v=1"])
@pytest.mark.parametrize("who", ["a program", "a named page", "its own page", "the HTTP port's"])
async def test_who_may_call_gets_a_websocket(world: World, who: str, path: str) -> None:
    origin = {
        "a program": (),
        "a named page": (f"origin: {APP}",),
        "its own page": (f"origin: http://127.0.0.1:{port_of(world.gateway.ws_url)}",),
        "the HTTP port's": (f"origin: {world.gateway.url}",),
    }[who]
    async with handshake(world, path, *origin) as (status, _):
        assert status == 101
        await until(lambda: len(world.gateway._websocket.connections) == 1)


async def test_a_foreign_page_gets_no_stream(world: World) -> None:
    async with world.sse({"origin": FOREIGN}) as refused:
        assert refused.answer.status == 403
        assert refused.answer.get_header("access-control-allow-origin") is None
    unsaid = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    async with world.sse(unsaid) as refused:
        assert refused.answer.status == 403
    assert not world.coordinator.registry


async def test_a_named_page_reads_its_stream_and_resumes_it(world: World) -> None:
    async with world.sse({"origin": APP}) as stream:
        assert stream.answer.status == 200
        assert stream.answer.get_header("access-control-allow-origin") == APP
        assert stream.answer.get_header("vary") == "origin"
        assert (await stream.next())["event"] == "subscribed"
        await world.produce({"n": 1})
        first = await stream.next()
    await world.produce({"n": 2})
    async with world.sse({"origin": APP, "last-event-id": first["id"]}) as stream:
        assert (await stream.next())["event"] == "subscribed"
        assert await stream.events(1) == [(0, 2)]


async def test_a_named_page_may_read_what_is_wrong_with_its_question(world: World) -> None:
    async with world.sse({"origin": APP}, where="((") as refused:
        assert refused.answer.status == 400
        assert refused.answer.get_header("access-control-allow-origin") == APP


async def test_a_page_stays_where_a_program_is_sent_elsewhere(world: World) -> None:
    """After a redirect its browser calls it a page without an origin, which nobody could name."""
    own = Node(NODE, "gateway", "http://x", world.gateway.ws_url, 0, world.gateway.url)
    other = Node("gateway-2", "gateway", "http://x", "ws://there/v1/subscribe", 0, "http://there")
    ring = GatewayRing((NODE, other.id))
    world.coordinator.publish(msgspec.structs.replace(topology(5), nodes=(own, other), ring=ring))
    await until(lambda: world.gateway._control.topology.generation == 5)
    placed = Places(ring)
    away = next(name for n in range(100) if placed.of(name := f"me-{n}") == other.id)
    async with world.sse({"origin": APP}, id_=away) as stream:
        assert stream.answer.status == 200
        assert (await stream.next())["event"] == "subscribed"
        await world.produce({"n": 1})
        assert await stream.events(1) == [(0, 1)]


@pytest.mark.parametrize("origin", [FOREIGN, APP])
async def test_no_page_delivers(world: World, origin: str) -> None:
    url = f"{world.gateway.delivery_url}/internal/v1/streamer/events"
    headers = {"origin": origin, "content-type": "application/json"}
    answer = await world.client.post(url).headers(headers).body_bytes(b"{}").build().send()
    assert answer.status == 403
