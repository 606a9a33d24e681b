"""What no subscriber should send: refused with a sentence, and the gateway stays as it was."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from picows import WSFrame, WSMsgType, WSTransport, ws_connect

from headgate import errors
from headgate.adapters.picows.server import PingTimes
from headgate.services.gateway.subscriptions.protocol import MAX_FRAME_BYTES, Misfit, parse
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from tests.services.gateway.doubles import FakeCoordinator
from tests.services.gateway.world import WAIT_S, World, WsSubscriber, running, until


@pytest.mark.parametrize(
    ("kind", "payload", "close_code"),
    [
        pytest.param(WSMsgType.TEXT, b"", 1008, id="nothing"),
        pytest.param(WSMsgType.TEXT, b"hello", 1008, id="no JSON"),
        pytest.param(WSMsgType.TEXT, b"\xff\xfe{", 1008, id="no UTF-8"),
        pytest.param(WSMsgType.TEXT, b"[1,2]", 1008, id="no object"),
        pytest.param(WSMsgType.TEXT, b"[" * 60_000, 1008, id="too deep"),
        pytest.param(WSMsgType.TEXT, b'{"type":"dance"}', 1008, id="unknown type"),
        pytest.param(WSMsgType.TEXT, b'{"type":7}', 1008, id="type is no text"),
        pytest.param(WSMsgType.BINARY, b'{"type":"ping"}', 1008, id="binary"),
        pytest.param(WSMsgType.TEXT, b"x" * (MAX_FRAME_BYTES + 1), 1009, id="oversize"),
    ],
)
async def test_what_is_not_a_message_ends_the_connection(
    world: World, kind: WSMsgType, payload: bytes, close_code: int
) -> None:
    client = await world.connection()
    await client.subscribe("a")
    client.transport.send(kind, payload)
    assert await client.closed() == close_code
    await until(lambda: not world.coordinator.registry)


async def test_oversize_message_in_small_frames_is_cut_off(world: World) -> None:
    client = await world.connection()
    client.transport.send(WSMsgType.TEXT, b'{"type":"ping","id":"', fin=False)
    for _ in range(3):
        client.transport.send(WSMsgType.CONTINUATION, b"x" * 30_000, fin=False)
    assert (await client.next())["error"]["code"] == "too_large"
    assert await client.closed() == 1009


@pytest.mark.parametrize(
    ("message", "code"),
    [
        pytest.param({"topic": "nothing"}, "unknown_topic", id="unknown topic"),
        pytest.param({"topic": 5}, "invalid", id="topic is no text"),
        pytest.param({"where": "alt >"}, "invalid_filter", id="broken filter"),
        pytest.param({"where": "(" * 3_000}, "invalid_filter", id="filter that explodes"),
        pytest.param({"where": "a || " * 5_000 + "a"}, "invalid_filter", id="endless filter"),
        pytest.param({"where": "a", "filter": []}, "invalid", id="two filters"),
        pytest.param({"filter": "a > 5"}, "invalid_filter", id="filter is no list"),
        pytest.param(
            {"filter": [{"field": "", "op": "==", "value": 1}]}, "invalid_filter", id="no field"
        ),
        pytest.param(
            {"filter": [{"field": "a`b", "op": "==", "value": 1}]}, "invalid_filter", id="quote"
        ),
        pytest.param(
            {"filter": [{"field": "a", "op": "~", "value": 1}]}, "invalid_filter", id="unknown op"
        ),
        pytest.param(
            {"filter": [{"field": "a", "op": "in", "value": 1}]}, "invalid_filter", id="in what"
        ),
        pytest.param(
            {"filter": [{"field": "a", "op": "==", "value": {}}]}, "invalid_filter", id="object"
        ),
        pytest.param(
            {"filter": [{"field": "a", "op": "==", "value": 10**30}]}, "invalid_filter", id="huge"
        ),
        pytest.param(
            {"filter": [{"field": "a", "op": "exists"}] * 101}, "invalid_filter", id="too many"
        ),
        pytest.param({"from": "yesterday"}, "invalid", id="unknown start"),
        pytest.param({"from": {}}, "invalid", id="no positions"),
        pytest.param({"from": {"0": 0}}, "invalid", id="seq 0"),
        pytest.param({"from": {"0": -5}}, "invalid", id="negative seq"),
        pytest.param({"from": {"0": 2}}, "invalid", id="beyond the end"),
        pytest.param({"from": {"9": 1}}, "invalid", id="no such partition"),
        pytest.param({"from": {"zero": 1}}, "invalid", id="no partition"),
        pytest.param({"from": {"0": "one"}}, "invalid", id="no seq"),
        pytest.param({"from": {"0": 10**40}}, "invalid", id="absurd seq"),
        pytest.param({"from": 5}, "invalid", id="start is a number"),
        pytest.param({"priority": "urgent"}, "invalid", id="unknown priority"),
        pytest.param({"colour": "red"}, "invalid", id="unknown field"),
    ],
)
async def test_impossible_subscription_is_refused_and_the_others_go_on(
    world: World, message: dict[str, Any], code: str
) -> None:
    client = await world.connection()
    await client.subscribe("good")
    answer = await client.ask(**{"type": "subscribe", "id": "bad", "topic": "flights", **message})
    assert (answer["type"], answer["subscription"]) == ("error", "bad")
    assert answer["error"]["code"] == code
    assert answer["error"]["message"]
    await world.produce({"n": 1})
    assert (await client.next())["subscriptions"] == ["good"]
    assert len(world.coordinator.registry) == 1


@pytest.mark.parametrize("name", ["", "x" * 129, 7, None], ids=["empty", "long", "number", "null"])
async def test_impossible_name_is_refused(world: World, name: object) -> None:
    client = await world.connection()
    answer = await client.ask(type="subscribe", id=name, topic="flights")
    assert answer["type"] == "error"
    assert answer["error"]["code"] == "invalid"


async def test_name_that_is_taken_is_refused_even_before_it_has_begun() -> None:
    async with running(coordinator=FakeCoordinator(adopting=False)) as world:
        client = await world.connection()
        client.say(type="subscribe", id="a", topic="flights")
        answer = await client.subscribe("a")
        assert "already" in answer["error"]["message"]
        await until(lambda: bool(world.coordinator.registry))
        world.coordinator.adopt()
        assert (await client.next())["type"] == "subscribed"


async def test_nobody_can_touch_anothers_subscription(world: World) -> None:
    owner, stranger = await world.connection(), await world.connection()
    await owner.subscribe("mine")
    registered = next(iter(world.coordinator.registry))
    for name in ("mine", registered, "never"):
        for message in ({"type": "unsubscribe"}, {"type": "ack", "positions": {"0": 0}}):
            answer = await stranger.ask(**message, subscription=name)
            assert answer["error"]["code"] == "not_found"
            assert answer["subscription"] == name
    await world.produce({"n": 1})
    assert await owner.events(1) == [(0, 1)]


async def test_ten_thousand_subscriptions_on_one_connection_stop_at_the_bound() -> None:
    bound = 100
    async with running(bounds=Bounds(per_connection=bound, topic_grace_s=0.05)) as world:
        client = await world.connection()
        for number in range(10_000):
            client.say(type="subscribe", id=f"s{number}", topic="flights")
        answers = [await client.next() for _ in range(10_000)]
        refused = [one for one in answers if one["type"] == "error"]
        assert len(refused) == 10_000 - bound
        assert {one["error"]["code"] for one in refused} == {"too_large"}
        assert refused[0]["error"]["details"] == {"limit": bound}
        assert "gateway.max_subscriptions" in refused[0]["error"]["message"]
        assert len(world.coordinator.registry) == bound
        await client.ask(type="unsubscribe", subscription="s0")
        await until(lambda: len(world.coordinator.registry) == bound - 1)
        assert (await client.subscribe("another"))["type"] == "subscribed"


async def test_many_at_once_are_few_messages_to_the_coordinator(world: World) -> None:
    from headgate.model.control.to_coordinator import Register

    client = await world.connection()
    for number in range(500):
        client.say(type="subscribe", id=f"s{number}", topic="flights")
    for _ in range(500):
        assert (await client.next())["type"] == "subscribed"
    assert len(world.coordinator.of_kind(Register)) < 250
    client.leave()
    await until(lambda: not world.coordinator.registry)


async def test_client_that_floods_and_does_not_read_is_not_read_either(world: World) -> None:
    client, other = await world.connection(), await world.connection()
    client.stop_reading()
    frame = json.dumps({"type": "ping", "id": "x" * 128}).encode()
    for _ in range(200_000):
        client.transport.send(WSMsgType.TEXT, frame)
    connections = world.gateway._websocket.connections
    await until(lambda: any(one.outlet.deaf for one in connections))
    unsent = client.transport.underlying_transport.get_write_buffer_size
    before = -1
    while before != unsent():  # until the gateway takes no more of it
        before = unsent()
        for _ in range(10):
            assert (await other.ask(type="ping"))["type"] == "pong"
    assert before > 0
    (deaf,) = [one for one in connections if one.outlet.deaf]
    assert deaf.outlet.unsent_bytes < 1_000_000
    assert len(deaf.outlet.answers) < 50_000
    client.read_on()
    await until(lambda: not deaf.outlet.deaf)


async def test_half_open_connection_is_cut_when_it_does_not_answer_a_ping() -> None:
    pings = PingTimes(after_idle_s=0.1, timeout_s=0.1)
    async with running(pings=pings) as world:
        host, _, port = world.gateway.ws_url.split("/")[2].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"GET /v1/subscribe?topic=flights HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        await until(lambda: len(world.coordinator.registry) == 1)
        await asyncio.wait_for(reader.read(), WAIT_S)
        await until(lambda: not world.coordinator.registry)
        writer.close()


class PingCounter(WsSubscriber):
    """Answers no ping by itself, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.pings = 0

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        self.pings += frame.msg_type == WSMsgType.PING
        super().on_ws_frame(transport, frame)


@pytest.mark.parametrize("path", ["/v1/subscribe", "/v1/consume"])
async def test_one_that_is_never_silent_is_pinged_too_and_need_not_answer(path: str) -> None:
    """Or it hears nothing for as long as there is nothing to say, and takes that for a fault. One
    that doesn't read for a while can't answer, and shows otherwise that it is there."""
    pings = PingTimes(after_idle_s=0.1, timeout_s=0.1)
    async with running(pings=pings) as world:
        client = PingCounter()
        url = world.gateway.ws_url.replace("/v1/subscribe", path)
        await ws_connect(lambda: client, url, enable_auto_pong=False)
        world.sockets.append(client)
        async with asyncio.timeout(WAIT_S):
            while client.pings < 4:
                client.say(type="ping")
                await asyncio.sleep(0.01)
        assert not client.gone.is_set()


async def test_more_connections_than_subscribers_may_be_are_refused() -> None:
    async with running(bounds=Bounds(subscribers=3, topic_grace_s=0.05)) as world:
        clients = [await world.connection() for _ in range(3)]
        for client in clients:
            await client.ask(type="ping")
        fourth = await world.connection()
        assert (await fourth.next())["error"]["code"] == "overloaded"
        assert await fourth.closed() == 1013


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=10)
        | st.sampled_from(["subscribe", "unsubscribe", "ack", "ping"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "id", "topic", "subscription", "positions", "from", "filter"]
                ),
                inner,
                max_size=5,
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_arrives_is_a_message_or_an_invalid_request(payload: bytes) -> None:
    with contextlib.suppress(errors.InvalidRequest):
        message = parse(payload)
        assert not isinstance(message, Misfit) or str(message.error)
