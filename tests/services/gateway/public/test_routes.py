"""The public address: what is passed on, what is answered, what is described."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headgate import errors
from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.server import HttpServer
from headgate.adapters.listeners import ListenerOptions, listener_for
from headgate.adapters.machine import THIS_MACHINE
from headgate.adapters.picows.server import PicowsListener
from headgate.answering import HttpApp
from headgate.decide.produce import passing_on
from headgate.decide.produce.unknown_topic import unknown_topic
from headgate.model.http import Request, Response, Route, json_response
from headgate.model.topology import Node, Placement, Topic
from headgate.services.gateway.service import Gateway, GatewayOptions
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.services.gateway.doubles import FakeCoordinator, topology
from tests.services.gateway.world import World, running, until
from tests.written_log import WrittenLog


@contextlib.asynccontextmanager
async def peer(name: str) -> AsyncIterator[str]:
    async def answer(request: Request) -> Response:
        return json_response({"peer": name, "call": f"{request.method} {request.raw_path}"})

    paths = ["/v1/topics", "/v1/topics/{name}", "/v1/status", "/v1/topics/{name}/produce"]
    routes = [Route(method, path, answer) for path in paths for method in ("GET", "POST", "DELETE")]
    server = HttpServer()
    port = await server.start(HttpApp(routes), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.stop(0.5)


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/v1/topics", "coordinator"),
        ("POST", "/v1/topics", "coordinator"),
        ("GET", "/v1/topics/flights", "coordinator"),
        ("DELETE", "/v1/topics/flights", "coordinator"),
        ("POST", "/v1/topics/flights/produce", "ingest"),
    ],
)
async def test_calls_are_passed_on_to_the_role_that_answers_them(
    method: str, path: str, role: str
) -> None:
    async with (
        peer("coordinator") as coordinator_url,
        peer("ingest") as ingest_url,
        running(
            coordinator=FakeCoordinator(topology=topology(ingest_url=ingest_url)),
            coordinator_url=coordinator_url,
        ) as world,
    ):
        answer = await world.client.request(method, world.gateway.url + path).build().send()
        assert await answer.json() == {"peer": role, "call": f"{method} {path}"}


def with_ingest(placement: Placement, *urls: str) -> FakeCoordinator:
    made = topology(ingest_url="")
    nodes = tuple(Node(f"ingest-{n}", "ingest", url) for n, url in enumerate(urls))
    topics = (Topic("flights", 2, placement),)
    return FakeCoordinator(topology=replace(made, nodes=nodes, topics=topics))


async def produce_at(world: World, event_id: str, within: str = "5s") -> str:
    """Who has taken it."""
    event = {"document": {}, "event_id": event_id}
    message = world.client.post(f"{world.gateway.url}/v1/topics/flights/produce")
    body = msgspec.json.encode({"events": [event], "request_timeout": within})
    message = message.header("content-type", "application/json").body_bytes(body)
    answer = await (await message.build().send()).json()
    return str(answer["peer"])


async def test_what_is_sent_again_to_an_opportunistic_topic_goes_to_the_same_ingest_node() -> None:
    async with (
        peer("one") as one,
        peer("other") as other,
        running(coordinator=with_ingest("opportunistic", one, other)) as world,
    ):
        first = [await produce_at(world, f"e{n}") for n in range(11)]
        again = [await produce_at(world, f"e{n}", "17ms") for n in range(11)]
        assert first == again
        assert set(first) == {"one", "other"}


async def test_to_a_keyed_topic_ingest_nodes_take_turns() -> None:
    async with (
        peer("one") as one,
        peer("other") as other,
        running(coordinator=with_ingest("keyed", one, other)) as world,
    ):
        assert {await produce_at(world, "e") for _ in range(2)} == {"one", "other"}


@pytest.mark.parametrize("placement", ["keyed", "opportunistic"])
async def test_an_ingest_node_that_is_not_there_is_passed_over(
    placement: Placement, unused_tcp_port: int
) -> None:
    gone = f"http://127.0.0.1:{unused_tcp_port}"
    async with (
        peer("one") as one,
        running(coordinator=with_ingest(placement, gone, one)) as world,
    ):
        assert {await produce_at(world, f"e{n}") for n in range(6)} == {"one"}


@contextlib.asynccontextmanager
async def yet_to_hear_of_topics(times: int) -> AsyncIterator[tuple[str, Iterator[int]]]:
    """A node that is asked so often before the news has come; with how often it wasn't yet."""
    left = iter(range(times))

    async def produce(request: Request) -> Response:
        for _ in left:
            raise unknown_topic(request.params["name"], ())
        return json_response({"peer": "late"})

    server = HttpServer()
    app = HttpApp([Route("POST", "/v1/topics/{name}/produce", produce)])
    port = await server.start(app, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}", left
    finally:
        await server.stop(0.5)


async def test_a_topic_that_the_gateway_knows_is_waited_for_at_an_ingest_node() -> None:
    async with (
        yet_to_hear_of_topics(1) as (url, _),
        running(coordinator=with_ingest("keyed", url)) as world,
    ):
        assert await produce_at(world, "e") == "late"


async def test_of_a_topic_that_nobody_knows_is_said_at_once_that_there_is_none() -> None:
    async with (
        yet_to_hear_of_topics(1_000) as (url, left),
        running(coordinator=with_ingest("keyed", url)) as world,
    ):
        message = world.client.post(f"{world.gateway.url}/v1/topics/fligths/produce")
        message = message.header("content-type", "application/json")
        answer = await message.body_bytes(b'{"events":[]}').build().send()
        assert len([*left]) == 999, "it was asked once"
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "unknown_topic")


async def test_a_node_that_never_answers_is_let_go_when_the_request_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where its client has long gone: every connection that is kept is missing elsewhere."""
    monkeypatch.setattr(passing_on, "GRACE_S", 0.05)
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def frozen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1_000):
            asked.set()
        let_go.set()
        writer.close()

    async with await asyncio.start_server(frozen, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with running(coordinator=with_ingest("keyed", url)) as world:
            asking = asyncio.create_task(produce_at(world, "e", "100ms"))
            async with asyncio.timeout(30):
                await asked.wait()
                asking.cancel()
                await let_go.wait()


async def test_status_is_the_coordinators_with_the_way_in_of_the_gateway_that_was_asked() -> None:
    async with (
        peer("coordinator") as coordinator_url,
        running(coordinator_url=coordinator_url) as world,
    ):
        answer = await world.client.get(f"{world.gateway.url}/v1/status").build().send()
        assert await answer.json() == {
            "peer": "coordinator",
            "call": "GET /v1/status",
            "ws_url": world.gateway.ws_url,
        }


async def test_produce_without_an_ingest_node_is_not_now(world: World) -> None:
    url = f"{world.gateway.url}/v1/topics/flights/produce"
    message = world.client.post(url).header("content-type", "application/json")
    answer = await message.body_bytes(b'{"request_timeout":"500ms"}').build().send()
    assert answer.status == 503
    assert (await answer.json())["error"]["code"] == "unreachable"


async def test_unknown_paths_and_methods_are_refused(world: World) -> None:
    missing = await world.client.get(f"{world.gateway.url}/v2").build().send()
    wrong = await world.client.delete(f"{world.gateway.url}/v1/subscribe").build().send()
    internal = (
        await world.client.post(f"{world.gateway.url}/internal/v1/streamer/events").build().send()
    )
    assert (missing.status, wrong.status, internal.status) == (404, 405, 404)


async def test_openapi_describes_every_public_route(world: World) -> None:
    document = await (
        await world.client.get(f"{world.gateway.url}/openapi.json").build().send()
    ).json()
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) == {
        "/v1/explain",
        "/v1/groups",
        "/v1/groups/{name}/{group}",
        "/v1/groups/{name}/{group}/reset",
        "/v1/tickets",
        "/v1/tokens",
        "/v1/tokens/{name}",
        "/v1/topics",
        "/v1/topics/{name}",
        "/v1/topics/{name}/produce",
        "/v1/topics/{name}/partitions/{number}/reset",
        "/v1/topics/{name}/repartition",
        "/v1/topics/{name}/records",
        "/v1/gateway",
        "/v1/connectors",
        "/v1/connectors/check",
        "/v1/connectors/{name}",
        "/v1/connectors/{name}/pause",
        "/v1/connectors/{name}/resume",
        "/v1/connectors/{name}/skip",
        "/v1/connectors/{name}/reset",
        "/v1/connectors/{name}/snapshot",
        "/v1/dead-letters",
        "/v1/dead-letters/retry",
        "/v1/dead-letters/delete",
        "/v1/dead-letters/{id}",
        "/v1/dead-letters/{id}/retry",
        "/v1/status",
        "/v1/topology",
        "/v1/rebalance",
        "/v1/overview",
        "/v1/overview/stream",
        "/v1/session",
        "/v1/settings",
        "/v1/subscriptions",
        "/v1/nodes/{name}/drain",
        "/v1/nodes/{name}/restart",
        "/v1/subscribe",
        "/health",
        "/metrics",
        "/openapi.json",
    }
    produce = document["paths"]["/v1/topics/{name}/produce"]["post"]
    reference = produce["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert reference == "#/components/schemas/ProduceRequest"
    schemas = document["components"]["schemas"]
    assert set(schemas["ProduceRequest"]["properties"]) == {
        "events",
        "request_timeout",
        "version",
        "again",
    }
    assert {parameter["name"] for parameter in produce["parameters"]} == {"name"}
    subscribe = document["paths"]["/v1/subscribe"]["get"]
    assert [parameter["name"] for parameter in subscribe["parameters"]] == [
        "topic",
        "where",
        "filter",
        "from",
        "priority",
        "tenant",
        "id",
        "unreachable",
        "v",
        "ticket",
    ]
    unresolved = [name for name in _references(document) if name not in schemas]
    assert unresolved == []


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"].rsplit("/", 1)[1]] if "$ref" in value else []
        return own + [name for part in value.values() for name in _references(part)]
    if isinstance(value, list):
        return [name for part in value for name in _references(part)]
    return []


async def test_metrics_and_health(world: World) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    await world.produce({"n": 1}, {"n": 2})
    await subscriber.events(2)
    answer = await world.client.get(f"{world.gateway.url}/metrics").build().send()
    text = await answer.text()
    assert (answer.get_header("content-type") or "").startswith("text/plain")
    assert "headgate_subscribers 1.0" in text
    assert "headgate_deliveries_sent_total 2.0" in text
    assert "headgate_adoption_wait_seconds_count 1.0" in text
    health = await (await world.client.get(f"{world.gateway.url}/health").build().send()).json()
    assert (health["status"], health["role"]) == ("healthy", "gateway")
    await until(lambda: bool(world.coordinator.received))


@pytest.mark.parametrize(
    ("taken", "setting"),
    [
        ("port", "public.port"),
        ("ws_port", "public.ws_port"),
        ("client_port", "gateway.client_port"),
    ],
)
async def test_port_in_use_names_its_setting_and_leaves_nothing_behind(
    taken: str, setting: str
) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        coordinator = FakeCoordinator()
        port: int = other.getsockname()[1]
        listener = ListenerOptions(port=port if taken == "client_port" else 0)
        changed: Any = {} if taken == "client_port" else {taken: port}
        options = GatewayOptions("gateway-1", "i", "http://127.0.0.1:9", **changed)
        gateway = Gateway(
            options,
            reader=WrittenLog(),
            checkpoints=FaultyCheckpoints(),
            open_session=coordinator.open_session,
            http=HttpServer(),
            calls=PooledCalls(),
            open_listener=partial(listener_for, listener, "gateway-1", incarnation="1"),
            connections=PicowsListener(),
            machine=THIS_MACHINE,
        )
        with pytest.raises(errors.PortInUse, match=setting):
            await gateway.start()
        await gateway.stop()
        assert coordinator.session is None
