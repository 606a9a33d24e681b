"""The messages of docs/protocol.md over WebSocket: several subscriptions on one connection."""

from __future__ import annotations

import pytest
from picows import WSInvalidStatusError, WSMsgType, ws_connect

from headgate.services.gateway.subscriptions.subscriptions import Bounds
from tests.services.gateway.doubles import FakeCoordinator, topology
from tests.services.gateway.world import World, WsSubscriber, running, until


async def test_subscriptions_have_the_names_that_the_client_chose(world: World) -> None:
    client = await world.connection()
    assert await client.subscribe("high", where="alt > 100") == {
        "type": "subscribed",
        "subscription": "high",
        "topic": "flights",
        "positions": {"0": 0, "1": 0},
    }
    assert (await client.subscribe("all"))["subscription"] == "all"
    await world.produce({"alt": 5}, {"alt": 500})
    got = [await client.next() for _ in range(2)]
    assert [(one["seq"], sorted(one["subscriptions"])) for one in got] == [
        (1, ["all"]),
        (2, ["all", "high"]),
    ]
    assert client.messages.empty()


async def test_record_for_many_subscriptions_of_a_connection_is_one_message(world: World) -> None:
    client = await world.connection()
    names = [f"s{number}" for number in range(50)]
    for name in names:
        await client.subscribe(name)
    await world.produce(*({"n": n} for n in range(100)))
    got = [await client.next() for _ in range(100)]
    assert [one["seq"] for one in got] == list(range(1, 101))
    assert all(sorted(one["subscriptions"]) == sorted(names) for one in got)
    assert client.messages.empty()


async def test_same_name_on_two_connections_is_two_subscriptions(world: World) -> None:
    first, second = await world.connection(), await world.connection()
    await first.subscribe("mine", where="n == 1")
    await second.subscribe("mine", where="n == 2")
    await world.produce({"n": 1}, {"n": 2})
    assert await first.events(1) == [(0, 1)]
    assert await second.events(1) == [(0, 2)]
    assert await second.ask(type="unsubscribe", subscription="mine") == {
        "type": "unsubscribed",
        "subscription": "mine",
    }
    await until(lambda: len(world.coordinator.registry) == 1)
    await world.produce({"n": 1})
    assert await first.events(1) == [(0, 3)]


async def test_unsubscribed_is_the_last_that_is_heard_and_frees_the_name(world: World) -> None:
    client = await world.connection()
    await client.subscribe("a")
    await client.subscribe("b", where="n > 100")
    await client.ask(type="unsubscribe", subscription="a")
    await until(lambda: len(world.coordinator.registry) == 1)
    await world.produce({"n": 1}, {"n": 200})
    assert (await client.next())["subscriptions"] == ["b"]
    assert (await client.subscribe("a", from_="earliest"))["type"] == "subscribed"
    assert await client.events(2) == [(0, 1), (0, 2)]


async def test_unsubscribing_before_the_answer_ends_it_too() -> None:
    coordinator = FakeCoordinator(adopting=False)
    async with running(coordinator=coordinator) as world:
        client = await world.connection()
        client.say(type="subscribe", id="a", topic="flights")
        await until(lambda: bool(coordinator.registry))
        assert (await client.ask(type="unsubscribe", subscription="a"))["type"] == "unsubscribed"
        await until(lambda: not coordinator.registry)
        coordinator.adopt()
        coordinator.adopting = True
        assert (await client.subscribe("a"))["type"] == "subscribed"


@pytest.mark.parametrize(
    ("filter_", "matching"),
    [
        pytest.param([{"field": "n", "op": ">", "value": 2}], [3, 4], id="one condition"),
        pytest.param(
            [{"field": "n", "op": ">=", "value": 2}, {"field": "n", "op": "!=", "value": 3}],
            [2, 4],
            id="all must hold",
        ),
        pytest.param([{"field": "n", "op": "in", "value": [1, 4.0]}], [1, 4], id="in"),
        pytest.param([{"field": "a.b c", "op": "prefix", "value": 'x"'}], [2], id="path, prefix"),
        pytest.param([{"field": "tags", "op": "contains", "value": "t"}], [3], id="contains"),
        pytest.param([{"field": "tags", "op": "exists"}], [3], id="exists"),
        pytest.param([{"field": "n", "op": "exists", "value": False}], [], id="exists not"),
    ],
)
async def test_structured_filter_selects_like_an_expression(
    world: World, filter_: list[object], matching: list[int]
) -> None:
    documents: list[object] = [{"n": 1}, {"n": 2, "a": {"b c": 'x"y'}}]
    documents += [{"n": 3, "tags": ["t"]}, {"n": 4}]
    client = await world.connection()
    assert (await client.subscribe("a", filter=filter_))["type"] == "subscribed"
    await client.subscribe("end", where="n == 99")
    await world.produce(*documents, {"n": 99})
    heard = []
    while "end" not in (event := await client.next())["subscriptions"]:
        heard.append(event["document"]["n"])
    assert heard == matching


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [(0, 1), (0, 2), (0, 3), (1, 1)]),
        ("0:2,1:1", [(0, 2), (0, 3), (1, 1)]),
        ({"0": 3, "1": 1}, [(0, 3), (1, 1)]),
    ],
    ids=["earliest", "text", "object"],
)
async def test_positions_may_be_text_or_an_object(
    world: World, start: object, expected: list[tuple[int, int]]
) -> None:
    for n in range(3):
        world.log.append({"n": n})
    world.log.append({"n": 4}, partition=1)
    client = await world.connection()
    await client.subscribe("a", from_=start)
    assert sorted(await client.events(len(expected))) == expected


async def test_ping_is_answered_with_its_id(world: World) -> None:
    client = await world.connection()
    assert await client.ask(type="ping", id="7") == {"type": "pong", "id": "7"}
    assert await client.ask(type="ping") == {"type": "pong", "id": ""}


async def test_message_may_come_in_several_frames(world: World) -> None:
    client = await world.connection()
    client.transport.send(WSMsgType.TEXT, b'{"type":"pi', fin=False)
    client.transport.send(WSMsgType.CONTINUATION, b'ng","id":', fin=False)
    client.transport.send(WSMsgType.CONTINUATION, b'"x"}')
    assert await client.next() == {"type": "pong", "id": "x"}


async def test_topic_that_is_deleted_ends_its_subscriptions_and_no_others() -> None:
    coordinator = FakeCoordinator(topology=topology(names=("flights", "ships")))
    async with running(coordinator=coordinator) as world:
        client = await world.connection()
        await client.subscribe("a")
        await client.subscribe("b", topic="ships")
        coordinator.publish(topology(2, names=("flights",), deleted=("ships",)))
        ended = await client.next()
        assert (ended["subscription"], ended["error"]["code"]) == ("b", "unknown_topic")
        await world.produce({"n": 1})
        assert await client.events(1) == [(0, 1)]


# --- acknowledgements ----------------------------------------------------------------------------


async def test_acknowledged_positions_are_known_and_measured(world: World) -> None:
    client = await world.connection()
    await client.subscribe("a")
    await world.produce(*({"n": n} for n in range(10)))
    await client.events(10)
    assert await world.metric("headgate_unacknowledged") == 0, "it never acknowledges"
    client.say(type="ack", subscription="a", positions={"0": 4})
    await client.ask(type="ping")
    assert await world.metric("headgate_unacknowledged") == 6
    client.say(type="ack", subscription="a", positions={"0": 2})
    await client.ask(type="ping")
    assert await world.metric("headgate_unacknowledged") == 6, "it can't take anything back"


@pytest.mark.parametrize(
    ("name", "positions", "code"),
    [
        pytest.param("a", {"0": 6}, "invalid", id="beyond what was sent"),
        pytest.param("a", {"7": 1}, "invalid", id="no such partition"),
        pytest.param("a", {"x": 1}, "invalid", id="no partition at all"),
        pytest.param("a", {"0": -1}, "invalid", id="negative"),
        pytest.param("a", {"0": 10**40}, "invalid", id="absurd"),
        pytest.param("a", {}, "invalid", id="nothing"),
        pytest.param("b", {"0": 1}, "not_found", id="unknown subscription"),
    ],
)
async def test_impossible_acknowledgement_is_refused_and_nothing_ends(
    world: World, name: str, positions: dict[str, int], code: str
) -> None:
    client = await world.connection()
    await client.subscribe("a")
    await world.produce(*({"n": n} for n in range(5)))
    await client.events(5)
    answer = await client.ask(type="ack", subscription=name, positions=positions)
    assert (answer["type"], answer["subscription"]) == ("error", name)
    assert answer["error"]["code"] == code
    await world.produce({"n": 6})
    assert await client.events(1) == [(0, 6)]


# --- versions ------------------------------------------------------------------------------------


async def test_version_may_be_named_as_a_subprotocol(world: World) -> None:
    listener = WsSubscriber()
    transport, _ = await ws_connect(
        lambda: listener,
        world.gateway.ws_url,
        extra_headers={"Sec-WebSocket-Protocol": "chat, headgate.v1"},
    )
    world.sockets.append(listener)
    assert transport.response.headers["Sec-WebSocket-Protocol"] == "headgate.v1"
    assert (await listener.subscribe("a"))["type"] == "subscribed"


async def test_unknown_version_is_told_what_is_spoken(world: World) -> None:
    client = await world.connection("?v=2")
    error = (await client.next())["error"]
    assert "version 1" in error["message"]
    assert error["details"] == {"parameter": "v", "supported": ["1"]}
    assert await client.closed() == 1008
    async with world.sse(v="2") as stream:
        assert (await stream.answer.json())["error"] == error


async def test_unknown_subprotocol_is_refused_before_the_upgrade(world: World) -> None:
    with pytest.raises(WSInvalidStatusError) as caught:
        await ws_connect(
            WsSubscriber,
            world.gateway.ws_url,
            extra_headers={"Sec-WebSocket-Protocol": "headgate.v9"},
        )
    assert caught.value.response is not None
    assert caught.value.response.status == 400
    assert b"headgate.v1" in (caught.value.raw_body or b"")


async def test_connection_that_asks_for_nothing_is_told_when_the_gateway_goes() -> None:
    async with running(bounds=Bounds(topic_grace_s=0.05)) as world:
        client = await world.connection("")
        await client.ask(type="ping")
        await world.gateway.stop()
        assert (await client.next())["error"]["code"] == "unavailable"
        assert await client.closed() == 1001


async def test_a_tenant_is_named_in_a_message_or_a_parameter(world: World) -> None:
    connection = await world.connection()
    await connection.subscribe("a", tenant="acme")
    await world.websocket(tenant="umbrella")
    async with world.sse(tenant="tyrell"):
        await until(lambda: len(world.coordinator.registry) == 3)
    tenants = {one.tenant for one in world.coordinator.registry.values()}
    assert {"acme", "umbrella"} <= tenants <= {"acme", "umbrella", "tyrell"}


async def test_a_tenant_that_is_no_name_is_refused(world: World) -> None:
    connection = await world.connection()
    answer = await connection.subscribe("a", tenant="a b")
    assert answer["subscription"] == "a"
    assert answer["error"]["details"] == {"parameter": "tenant"}
    assert "tenant 'a b' is not a name" in answer["error"]["message"]
