"""`headgate.client.subscriber` against a real gateway with a coordinator and lanes in the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

from headgate import errors
from headgate.adapters.http.server import HttpServer
from headgate.answering import HttpApp
from headgate.client.subscriber import Event, Resync, Subscriber
from headgate.model.api import Status
from headgate.model.event import PartitionRef
from headgate.model.http import Request, Response, Route, json_response
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from tests.services.gateway.doubles import FakeCoordinator, topology
from tests.services.gateway.world import WAIT_S, World, running, until


class StatusServer:
    """Stands for the coordinator's /v1/status, which the gateway passes on."""

    def __init__(self) -> None:
        self.ws_url = self.url = ""
        self.server = HttpServer()

    async def answer(self, _request: Request) -> Response:
        if not self.ws_url:
            raise errors.NotNow("not yet")
        return json_response(Status("0", 1, 1, [], [], [], [], [], 0, self.ws_url))

    async def start(self) -> str:
        port = await self.server.start(
            HttpApp([Route("GET", "/v1/status", self.answer)]), "127.0.0.1", 0
        )
        self.url = f"http://127.0.0.1:{port}"
        return self.url


@contextlib.asynccontextmanager
async def system(
    *, bounds: Bounds | None = None, coordinator: FakeCoordinator | None = None
) -> AsyncIterator[tuple[World, StatusServer]]:
    status = StatusServer()
    url = await status.start()
    try:
        async with running(bounds=bounds, coordinator=coordinator, coordinator_url=url) as world:
            status.ws_url = world.gateway.ws_url
            yield world, status
    finally:
        await status.server.stop(1.0)


async def take(subscriber: Subscriber, count: int) -> list[Event]:
    async with asyncio.timeout(2 * WAIT_S):
        items = [await anext(subscriber) for _ in range(count)]
    assert all(isinstance(item, Event) for item in items), items
    return [item for item in items if isinstance(item, Event)]


def places(events: list[Event]) -> list[tuple[int, int]]:
    return [(event.partition, event.seq) for event in events]


async def test_events_come_typed_with_the_document_decoded_on_demand() -> None:
    async with (
        system() as (world, _),
        Subscriber(world.gateway.url, "flights", where="alt > 10") as subscriber,
    ):
        assert subscriber.subscribed.positions == {0: 0, 1: 0}
        await world.produce({"alt": 5}, {"alt": 50})
        (event,) = await take(subscriber, 1)
        assert (event.topic, event.partition, event.seq, event.op) == ("flights", 0, 2, "insert")
        assert event.document == {"alt": 50}
        assert bytes(event.raw) == b'{"alt":50}'
        assert event.subscriptions == (subscriber.subscribed.subscription,)


async def test_start_from_earliest_replays_then_goes_on_live() -> None:
    async with system() as (world, _):
        for n in range(5):
            world.log.append({"n": n})
        async with Subscriber(world.gateway.url, "flights", start="earliest") as subscriber:
            assert places(await take(subscriber, 5)) == [(0, seq) for seq in range(1, 6)]
            world.lanes.cursor[next(iter(world.log.records))] = 5
            await world.produce({"n": 5})
            assert places(await take(subscriber, 1)) == [(0, 6)]


@pytest.mark.parametrize(
    ("topic", "where", "start", "kind"),
    [
        pytest.param("nothing", None, "now", errors.UnknownTopic, id="unknown topic"),
        pytest.param("flights", "alt >", "now", errors.InvalidFilter, id="filter"),
        pytest.param("flights", None, "tomorrow", errors.InvalidRequest, id="start"),
        pytest.param("flights", None, "0:99", errors.InvalidRequest, id="beyond the end"),
    ],
)
async def test_what_is_wrong_is_raised_as_its_own_class(
    topic: str, where: str | None, start: str, kind: type[errors.HeadgateError]
) -> None:
    async with system() as (world, _):
        with pytest.raises(kind):
            async with Subscriber(world.gateway.url, topic, where=where, start=start):
                pass


async def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(errors.PeerUnreachable):
        async with Subscriber("http://127.0.0.1:9", "flights"):
            pass


async def test_opening_fails_when_the_routers_do_not_adopt() -> None:
    bounds = Bounds(subscribe_timeout_s=0.1, topic_grace_s=0.05)
    coordinator = FakeCoordinator(adopting=False)
    async with system(bounds=bounds, coordinator=coordinator) as (world, _):
        with pytest.raises(errors.NotNow):
            async with Subscriber(world.gateway.url, "flights"):
                pass


async def test_lost_connections_are_resumed_without_gap_or_repeat() -> None:
    async with (
        system() as (world, _),
        Subscriber(world.gateway.url, "flights", retry_first_s=0.01) as subscriber,
    ):
        expected: dict[int, list[int]] = {0: [], 1: []}
        got: dict[int, list[int]] = {0: [], 1: []}
        for round_number in range(4):
            for partition in (0, 1):
                await world.produce({"n": round_number}, {"n": -round_number}, partition=partition)
            for event in await take(subscriber, 2):
                got[event.partition].append(event.seq)
            # Cut the connection under its feet, with events on the way and in the buffer.
            for connection in tuple(world.gateway._websocket.connections):
                connection.abort()
            world.log.append({"n": "while away"}, partition=round_number % 2)
            for event in await take(subscriber, 3):
                got[event.partition].append(event.seq)
            await until(lambda: len(world.coordinator.registry) == 1)
        expected = {
            ref.partition: [record.seq for record in records]
            for ref, records in world.log.records.items()
        }
        assert got == expected
        assert subscriber.reconnects >= 3


class Repeater(WSListener):
    """A gateway that repeats itself."""

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        asked = json.loads(frame.get_payload_as_bytes())
        if asked["type"] != "subscribe":
            return
        name = asked["id"]
        messages: list[dict[str, object]] = [
            {"type": "subscribed", "subscription": name, "topic": "t", "positions": {"0": 4}}
        ]
        messages += [
            {"type": "event", "topic": "t", "partition": 0, "seq": seq, "event_id": str(seq)}
            | {"key": None, "collection": "", "op": "insert", "document": {}}
            | {"subscriptions": [name]}
            for seq in (4, 5, 5, 6, 5, 7)
        ]
        messages.append({"type": "novelty"})
        for message in messages:
            transport.send(WSMsgType.TEXT, json.dumps(message).encode())


async def test_repeats_are_dropped_and_unknown_messages_are_not_passed_over() -> None:
    status = StatusServer()
    url = await status.start()
    server = await ws_create_server(lambda _: Repeater(), "127.0.0.1", 0)
    status.ws_url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/subscribe"
    try:
        async with Subscriber(url, "t") as subscriber:
            assert places(await take(subscriber, 3)) == [(0, 5), (0, 6), (0, 7)]
            with pytest.raises(errors.InvalidRequest, match="upgrade headgate"):
                await take(subscriber, 1)
    finally:
        server.close()
        await status.server.stop(1.0)


async def test_reconnects_to_where_status_says() -> None:
    async with (
        system() as (first, status),
        running() as second,
        Subscriber(status.url, "flights", retry_first_s=0.01) as subscriber,
    ):
        await first.produce({"n": 1})
        await take(subscriber, 1)
        second.log.stored = first.log.stored
        status.ws_url = second.gateway.ws_url
        for connection in tuple(first.gateway._websocket.connections):
            connection.abort()
        second.log.append({"n": 2})
        assert places(await take(subscriber, 1)) == [(0, 2)]
        assert len(second.coordinator.registry) == 1


async def test_a_log_that_lost_what_came_from_it_is_waited_for_until_it_is_moved_on() -> None:
    async with (
        system() as (world, _),
        Subscriber(world.gateway.url, "flights", retry_first_s=0.01) as subscriber,
    ):
        await world.produce({"n": 1}, {"n": 2})
        await take(subscriber, 2)
        world.log.lose_history(PartitionRef("flights", 0))
        for connection in tuple(world.gateway._websocket.connections):
            connection.abort()
        lost = PartitionRef("flights", 0)
        following = asyncio.ensure_future(anext(subscriber))
        await until(lambda: subscriber._following.beyond_since_s is not None)
        world.log.move_on(lost, 1_000)
        async with asyncio.timeout(WAIT_S):
            resync = await following
        assert isinstance(resync, Resync)
        assert (resync.after_seq, resync.from_seq) == (2, 1_001)
        world.lanes.cursor[lost] = 0
        await world.produce({"n": 3})
        assert places(await take(subscriber, 1)) == [(0, 1_001)]


async def test_a_log_that_is_not_moved_on_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.client.subscriber.BEYOND_END_S", 0.02)
    async with (
        system() as (world, _),
        Subscriber(world.gateway.url, "flights", retry_first_s=0.01) as subscriber,
    ):
        await world.produce({"n": 1}, {"n": 2})
        await take(subscriber, 2)
        world.log.lose_history(PartitionRef("flights", 0))
        for connection in tuple(world.gateway._websocket.connections):
            connection.abort()
        with pytest.raises(errors.InvalidRequest, match="beyond its end"):
            await take(subscriber, 1)


async def test_gateway_that_goes_away_is_not_an_error_until_retries_are_used_up() -> None:
    async with (
        system() as (world, _),
        Subscriber(
            world.gateway.url, "flights", retry_first_s=0.01, retry_attempts=2
        ) as subscriber,
    ):
        waiting = asyncio.ensure_future(anext(subscriber))
        await asyncio.sleep(0.05)
        await world.gateway.stop()
        with pytest.raises(errors.NotNow):
            await asyncio.wait_for(waiting, WAIT_S)


async def test_topic_deleted_under_a_subscriber_is_raised() -> None:
    async with (
        system() as (world, _),
        Subscriber(world.gateway.url, "flights") as subscriber,
    ):
        world.coordinator.publish(topology(2, names=(), deleted=("flights",)))
        with pytest.raises(errors.UnknownTopic, match="was deleted"):
            await take(subscriber, 1)


async def test_slow_loop_bounds_what_waits_and_misses_nothing() -> None:
    bounds = Bounds(queue=20, topic_grace_s=0.05)
    async with (
        system(bounds=bounds) as (world, _),
        Subscriber(world.gateway.url, "flights", buffer=5) as subscriber,
    ):
        total = 1_500
        for begin in range(0, total, 100):
            await world.produce(*({"n": n, "f": "x" * 10_000} for n in range(begin, begin + 100)))
        assert len(subscriber._following.waiting) < 200
        assert places(await take(subscriber, total)) == [(0, seq) for seq in range(1, total + 1)]


async def test_close_ends_a_pending_loop() -> None:
    async with system() as (world, _):
        async with Subscriber(world.gateway.url, "flights") as subscriber:
            waiting = asyncio.ensure_future(anext(subscriber, None))
            await asyncio.sleep(0.02)
            await subscriber.close()
            assert await asyncio.wait_for(waiting, WAIT_S) is None
        await until(lambda: not world.coordinator.registry)


async def test_silent_connection_is_given_up_and_opened_again() -> None:
    async with (
        system() as (world, _),
        Subscriber(world.gateway.url, "flights", silence_s=0.1, retry_first_s=0.01) as subscriber,
    ):
        waiting = asyncio.ensure_future(anext(subscriber))
        await until(lambda: subscriber.reconnects > 0)
        await until(lambda: len(world.coordinator.registry) == 1)
        await world.produce({"n": 1})
        event = await asyncio.wait_for(waiting, WAIT_S)
        assert isinstance(event, Event)
        assert event.seq == 1
