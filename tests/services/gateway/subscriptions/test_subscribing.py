"""Subscribing, live delivery, catching up and resuming, over both transports."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from picows import WSInvalidStatusError, WSMsgType, ws_connect

from headgate.model.control.to_coordinator import AckTopology, Unregister
from headgate.model.event import PartitionRef, Record
from headgate.model.topology import FormerVersion, Repartition, Topic, Topology
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from tests.services.gateway.doubles import FakeCoordinator, topology
from tests.services.gateway.world import WAIT_S, World, WsSubscriber, running, until
from tests.written_log import TOPIC

DOCUMENTS = [{"alt": altitude} for altitude in (100, 20_000, 300, 40_000)]


async def test_websocket_subscriber_gets_live_matches_only(world: World) -> None:
    world.log.append({"alt": 99_000})
    subscriber = await world.websocket(where="alt > 10000")
    subscribed = await subscriber.next()
    assert subscribed["type"] == "subscribed"
    assert subscribed["topic"] == "flights"
    assert subscribed["positions"] == {"0": 1, "1": 0}
    world.lanes.cursor.update(dict.fromkeys(world.log.records, 1))
    assert await world.produce(*DOCUMENTS) == ["accepted", "accepted"]
    event = await subscriber.next()
    assert event == {
        "type": "event",
        "topic": "flights",
        "partition": 0,
        "seq": 3,
        "event_id": "flights:0-3",
        "key": None,
        "collection": "",
        "op": "insert",
        "document": {"alt": 20_000},
        "subscriptions": [subscribed["subscription"]],
    }
    assert await subscriber.events(1) == [(0, 5)]


async def test_sse_subscriber_gets_the_same_with_ids_to_resume_from(world: World) -> None:
    async with world.sse(where="alt > 10000") as subscriber:
        assert subscriber.answer.status == 200
        assert subscriber.answer.get_header("content-type").startswith("text/event-stream")
        first = await subscriber.next()
        assert first["event"] == "subscribed"
        assert first["id"] == "0:0,1:0"
        await world.produce(*DOCUMENTS)
        await world.produce({"alt": 50_000}, partition=1)
        got = [await subscriber.next() for _ in range(3)]
    assert [one["event"] for one in got] == ["event"] * 3
    assert [one["id"] for one in got] == ["0:2,1:0", "0:4,1:0", "0:4,1:1"]
    assert [one["data"]["document"]["alt"] for one in got] == [20_000, 40_000, 50_000]
    assert got[0]["data"]["subscriptions"] == [first["data"]["subscription"]]


async def test_document_passes_through_as_it_was_produced(world: World) -> None:
    raw = b'{"b": 1.50,\r\n "a":"\\u00e5", "big":123456789012345678901234567890}'
    subscriber = await world.websocket()
    await subscriber.next()
    seen: list[bytes] = []
    subscriber.on_ws_frame = lambda transport, frame: seen.append(  # type: ignore[method-assign]
        frame.get_payload_as_bytes()
    )
    async with world.sse() as stream:
        await stream.next()
        world.log.append(raw)
        await world.lanes.run()
        event = await stream.next()
    assert event["data"]["document"] == json.loads(raw)
    await until(lambda: bool(seen))
    assert raw in seen[0]


@pytest.mark.parametrize("transport", ["websocket", "sse"])
@pytest.mark.parametrize(
    ("start", "expected"),
    [
        pytest.param("earliest", [(0, 2), (0, 4), (1, 1)], id="earliest"),
        pytest.param("0:3,1:1", [(0, 4), (1, 1)], id="positions are the first seqs wanted"),
        pytest.param("0:3", [(0, 4)], id="partitions that are not named start now"),
        pytest.param("0:5,1:2", [], id="right after the end"),
    ],
)
async def test_replay_then_live_without_gap_or_repeat(
    world: World, transport: str, start: str, expected: list[tuple[int, int]]
) -> None:
    for document in DOCUMENTS:
        world.log.append(document)
    world.log.append({"alt": 11_000}, partition=1)
    if transport == "websocket":
        subscriber = await world.websocket(where="alt > 10000", from_=start)
        await subscriber.next()
        assert sorted(await subscriber.events(len(expected))) == expected
        await world.produce({"alt": 60_000})
        assert await subscriber.events(1) == [(0, 5)]
    else:
        async with world.sse(where="alt > 10000", from_=start) as stream:
            await stream.next()
            assert sorted(await stream.events(len(expected))) == expected
            await world.produce({"alt": 60_000})
            assert await stream.events(1) == [(0, 5)]


async def test_last_event_id_resumes_after_it_and_wins_over_from(world: World) -> None:
    for document in DOCUMENTS:
        world.log.append(document)
    async with world.sse({"Last-Event-ID": "0:2,1:0"}, from_="earliest") as stream:
        assert (await stream.next())["data"]["positions"] == {"0": 2, "1": 0}
        assert await stream.events(2) == [(0, 3), (0, 4)]


async def test_records_between_request_and_adoption_come_from_the_log() -> None:
    coordinator = FakeCoordinator(adopting=False)
    async with running(coordinator=coordinator) as world:
        subscriber = await world.websocket()
        await until(lambda: bool(coordinator.registry))
        missed = world.log.append({"n": 1})
        world.lanes.cursor[next(iter(world.log.records))] = missed.seq
        assert subscriber.messages.empty()
        coordinator.adopt()
        assert (await subscriber.next())["positions"] == {"0": 0, "1": 0}
        await world.produce({"n": 2})
        assert await subscriber.events(2) == [(0, 1), (0, 2)]


async def test_partitions_that_come_before_adoption_are_read_from_the_log_too() -> None:
    """Lanes may have read on in them without the subscription."""
    coordinator = FakeCoordinator(adopting=False)
    async with running(coordinator=coordinator) as world:
        subscriber = await world.websocket()
        await until(lambda: bool(coordinator.registry))
        former = FormerVersion(1, (0, 0), (0, 0))
        grown = Topic(TOPIC, 3, "keyed", 2, (0, 0, 0), (former,), original=2, begins=(0,))
        coordinator.publish(Topology(2, (grown,)))
        await until(lambda: any(coordinator.of_kind(AckTopology)[1:]))
        missed = world.log.append({"n": 1}, partition=2, version=2)
        world.lanes.cursor[PartitionRef(TOPIC, 2)] = missed.seq
        coordinator.adopt()
        assert (await subscriber.next())["type"] == "subscribed"
        assert await subscriber.events(1) == [(2, 1)]


async def test_what_is_gone_of_a_partition_that_is_not_known_here_yet_is_told() -> None:
    """Positions from before it came can't name it, and the gateway has only heard that it comes."""
    coming = Topic(TOPIC, 1, repartition=Repartition(2, "announced", 1))
    async with running(coordinator=FakeCoordinator(topology=Topology(1, (coming,)))) as world:
        world.log.append({"n": 1})
        for n in range(3):
            world.log.append({"n": n}, partition=1, version=2)
        world.log.lose(PartitionRef(TOPIC, 1), [1, 2])
        subscriber = await world.websocket(from_="0:2")
        assert (await subscriber.next())["positions"] == {"0": 1, "1": 0}
        resync = await subscriber.next()
        assert (resync["partition"], resync["after"], resync["from"]) == (1, 0, 3)
        former = FormerVersion(1, (0,), (1,))
        grown = Topic(TOPIC, 2, "keyed", 2, (1, 0), (former,), original=1, begins=(0,))
        world.coordinator.publish(Topology(2, (grown,)))
        assert await subscriber.events(1) == [(1, 3)]


async def test_positions_that_name_a_partition_of_a_repartition_that_was_given_up() -> None:
    """They were told while it was to come, and nothing of it was ever seen. Should it come one day
    it begins with its first record."""
    coming = Topic(TOPIC, 1, repartition=Repartition(2, "announced", 1))
    async with running(coordinator=FakeCoordinator(topology=Topology(1, (coming,)))) as world:
        world.log.append({"n": 1})
        subscriber = await world.websocket(from_="earliest")
        assert (await subscriber.next())["positions"] == {"0": 0, "1": 0}
        assert await subscriber.events(1) == [(0, 1)]
        world.coordinator.publish(Topology(2, (Topic(TOPIC, 1),)))
        await until(lambda: AckTopology(2) in world.coordinator.received)
        resumed = await world.websocket(from_="0:2,1:1")
        assert (await resumed.next())["type"] == "subscribed"
        former = FormerVersion(1, (0,), (1,))
        grown = Topic(TOPIC, 2, "keyed", 2, (1, 0), (former,), original=1, begins=(0,))
        world.coordinator.publish(Topology(3, (grown,)))
        await until(lambda: AckTopology(3) in world.coordinator.received)
        world.log.append({"n": 2}, partition=1, version=2)
        assert (await world.lanes.run())[-1] == "accepted"
        assert await resumed.events(1) == [(1, 1)]


async def test_a_gateway_that_hears_from_nobody_refuses_no_partition_for_good() -> None:
    """Others may have heard that there is one more, and whoever comes may have read it there."""
    async with running() as world:
        world.log.append({"n": 1})
        client = await world.connection()
        refused = await client.subscribe("a", from_="0:2,2:7")
        assert refused["error"]["code"] == "invalid"
        world.coordinator.disconnect()
        await until(lambda: not world.gateway._control.connected)
        refused = await client.subscribe("b", from_="0:2,2:7")
        assert refused["error"]["code"] == "unavailable"
        refused = await client.subscribe("c", from_="0:9")
        assert refused["error"]["code"] == "invalid", "the log is there, and ends before"


async def test_records_of_a_version_that_is_not_known_here_yet_wait_until_it_is() -> None:
    """Only then is it known what comes before them in other partitions."""
    async with running() as world:
        world.log.append({"n": 1})
        world.log.append({"n": 3}, version=2)
        world.log.append({"n": 2}, partition=1)
        subscriber = await world.websocket(from_="earliest")
        assert (await subscriber.next())["type"] == "subscribed"
        assert await subscriber.events(2) == [(0, 1), (1, 1)]
        former = FormerVersion(1, (0, 0), (1, 1))
        world.coordinator.publish(Topology(2, (Topic(TOPIC, 1, "keyed", 2, (1,), (former,), 2),)))
        assert await subscriber.events(1) == [(0, 2)]


async def test_records_of_a_version_that_becomes_known_while_they_are_read_wait_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes before them was not looked at when the read began."""
    async with running() as world:
        former = FormerVersion(1, (0, 0), (1, 1))
        known = Topology(2, (Topic(TOPIC, 1, "keyed", 2, (1,), (former,), 2),))
        read = world.log.read

        async def slow_read(ref: PartitionRef, **asked: int) -> list[Record]:
            found = await read(ref, **asked)
            if ref.partition == 0 and world.coordinator.topology.generation < 2:
                world.coordinator.publish(known)
                await until(lambda: AckTopology(2) in world.coordinator.received)
            return found

        world.log.append({"n": 1})
        world.log.append({"n": 3}, version=2)
        world.log.append({"n": 2}, partition=1)
        monkeypatch.setattr(world.log, "read", slow_read)
        subscriber = await world.websocket(from_="earliest")
        assert (await subscriber.next())["type"] == "subscribed"
        assert await subscriber.events(3) == [(0, 1), (1, 1), (0, 2)]


async def test_deliveries_before_adoption_are_neither_lost_nor_sent_twice() -> None:
    coordinator = FakeCoordinator(adopting=False)
    async with running(coordinator=coordinator) as world:
        subscriber = await world.websocket()
        await until(lambda: bool(coordinator.registry))
        assert await world.produce({"n": 1}, {"n": 2}) == ["accepted", "accepted"]
        coordinator.adopt()
        await subscriber.next()
        assert await subscriber.events(2) == [(0, 1), (0, 2)]
        world.lanes.cursor.clear()
        assert await world.lanes.run() == ["duplicate", "duplicate"]
        await world.produce({"n": 3})
        assert await subscriber.events(1) == [(0, 3)]


async def test_slow_websocket_reader_falls_back_to_the_log_and_misses_nothing() -> None:
    bounds = Bounds(queue=20, topic_grace_s=0.05)
    async with running(bounds=bounds) as world:
        slow, quick = await world.websocket(), await world.websocket()
        await slow.next()
        await quick.next()
        slow.stop_reading()
        filler = "x" * 10_000
        total = 1_500
        for begin in range(0, total, 100):
            verdicts = await world.produce(
                *({"n": n, "f": filler} for n in range(begin, begin + 100))
            )
            # "duplicate" where the log was read ahead of the lane; neither holds the lane up.
            assert set(verdicts) <= {"accepted", "duplicate"}
            assert await world.metric("headgate_waiting") <= 2 * bounds.queue
            for connection in world.gateway._websocket.connections:
                assert connection.outlet.unsent_bytes < 1_000_000
        assert await quick.events(total) == [(0, seq) for seq in range(1, total + 1)]
        slow.read_on()
        assert await slow.events(total) == [(0, seq) for seq in range(1, total + 1)]
        await world.produce({"n": total})
        assert await slow.events(1) == [(0, total + 1)]


async def test_slow_sse_reader_falls_back_to_the_log_and_misses_nothing() -> None:
    bounds = Bounds(queue=20, topic_grace_s=0.05)
    async with running(bounds=bounds) as world, world.sse() as slow:
        await slow.next()
        filler = "x" * 10_000
        total = 1_500
        for begin in range(0, total, 100):
            verdicts = await world.produce(
                *({"n": n, "f": filler} for n in range(begin, begin + 100))
            )
            assert set(verdicts) <= {"accepted", "duplicate"}
        assert await world.metric("headgate_waiting") <= bounds.queue
        assert await slow.events(total) == [(0, seq) for seq in range(1, total + 1)]


async def test_reading_the_log_is_tried_again_when_it_fails(world: World) -> None:
    from headgate import errors

    for document in DOCUMENTS:
        world.log.append(document)
    world.log.gate = asyncio.Event()
    subscriber = await world.websocket(from_="earliest")
    await subscriber.next()
    await until(lambda: world.log.reads > 0)
    world.log.failing = errors.StorageFailed("the disk is away")
    world.log.gate.set()
    await until(lambda: world.log.reads > 1)
    world.log.failing = None
    assert await subscriber.events(4) == [(0, seq) for seq in range(1, 5)]


@pytest.mark.parametrize(
    ("query", "status", "code", "close_code"),
    [
        pytest.param({"topic": "nothing"}, 404, "unknown_topic", 1008, id="unknown topic"),
        pytest.param({"topic": ""}, 400, "invalid", 1008, id="no topic"),
        pytest.param({"where": "alt >"}, 400, "invalid_filter", 1008, id="broken filter"),
        pytest.param({"where": "x" * 9_000}, 400, "invalid_filter", 1008, id="endless filter"),
        pytest.param({"from_": "yesterday"}, 400, "invalid", 1008, id="unknown start"),
        pytest.param({"from_": "0:0"}, 400, "invalid", 1008, id="seq 0"),
        pytest.param({"from_": "0:1,0:2"}, 400, "invalid", 1008, id="partition named twice"),
        pytest.param({"from_": "7:1"}, 400, "invalid", 1008, id="no such partition"),
        pytest.param({"from_": "0:2"}, 400, "invalid", 1008, id="beyond the end"),
        pytest.param({"from_": "0:" + "9" * 30}, 400, "invalid", 1008, id="absurd seq"),
        pytest.param({"colour": "red"}, 400, "invalid", 1008, id="unknown parameter"),
    ],
)
async def test_what_is_wrong_is_said_on_both_transports(
    world: World, query: dict[str, str], status: int, code: str, close_code: int
) -> None:
    async with world.sse(**query) as stream:
        body = await stream.answer.json()
    assert (stream.answer.status, body["error"]["code"]) == (status, code)
    subscriber = await world.websocket(**query)
    message = await subscriber.next()
    assert message["type"] == "error"
    assert message["error"] == body["error"]
    assert await subscriber.closed() == close_code
    assert world.coordinator.registry == {}


async def test_filter_error_names_the_position(world: World) -> None:
    async with world.sse(where="alt > ") as stream:
        error = (await stream.answer.json())["error"]
    assert isinstance(error["details"]["position"], int)


async def test_bad_last_event_id_is_refused(world: World) -> None:
    async with world.sse({"Last-Event-ID": "nonsense"}) as stream:
        assert stream.answer.status == 400


async def test_routers_that_do_not_adopt_mean_not_now_and_no_subscription() -> None:
    coordinator = FakeCoordinator(adopting=False)
    bounds = Bounds(subscribe_timeout_s=0.1, topic_grace_s=0.05)
    async with running(coordinator=coordinator, bounds=bounds) as world:
        async with world.sse() as stream:
            assert stream.answer.status == 503
            assert stream.answer.get_header("retry-after") == "1"
            assert (await stream.answer.json())["error"]["code"] == "timeout"
        subscriber = await world.websocket()
        assert (await subscriber.next())["error"]["code"] == "timeout"
        assert await subscriber.closed() == 1013
        assert coordinator.registry == {}
        assert len(coordinator.of_kind(Unregister)) == 2


async def test_more_subscribers_than_allowed_are_refused_until_one_leaves() -> None:
    async with running(bounds=Bounds(subscribers=1, topic_grace_s=0.05)) as world:
        first = await world.websocket()
        await first.next()
        async with world.sse() as stream:
            assert stream.answer.status == 503
            assert (await stream.answer.json())["error"]["code"] == "overloaded"
        first.leave()
        await until(lambda: not world.coordinator.registry)
        second = await world.websocket()
        assert (await second.next())["type"] == "subscribed"


async def test_leaving_ends_the_subscription_on_both_transports(world: World) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    async with world.sse() as stream:
        await stream.next()
        assert len(world.coordinator.registry) == 2
    await until(lambda: len(world.coordinator.registry) == 1)
    subscriber.leave()
    await until(lambda: not world.coordinator.registry)
    assert await world.produce({"n": 1}) == []


async def test_leaving_before_adoption_ends_the_subscription_too() -> None:
    coordinator = FakeCoordinator(adopting=False)
    async with running(coordinator=coordinator) as world:
        subscriber = await world.websocket()
        await until(lambda: bool(coordinator.registry))
        subscriber.leave()
        await until(lambda: not coordinator.registry)


async def test_quiet_sse_stream_is_kept_alive() -> None:
    async with running(keep_alive_s=0.05) as world, world.sse() as stream:
        await stream.next()
        assert await stream.next() == {"comment": "keep-alive"}
        await world.produce({"n": 1})
        while "comment" in (message := await stream.next()):
            pass
        assert message["event"] == "event"


async def test_websocket_at_another_path_is_404(world: World) -> None:
    url = world.gateway.ws_url.replace("/v1/subscribe", "/elsewhere")
    with pytest.raises(WSInvalidStatusError) as caught:
        await ws_connect(WsSubscriber, url)
    response = caught.value.response
    assert response is not None
    assert response.status == 404


async def test_websocket_upgrade_at_the_http_port_names_the_right_address(world: World) -> None:
    url = world.gateway.url.replace("http://", "ws://") + "/v1/subscribe?topic=flights"
    with pytest.raises(WSInvalidStatusError) as caught:
        await ws_connect(WsSubscriber, url)
    response = caught.value.response
    assert response is not None
    assert response.status == 400
    assert world.gateway.ws_url.encode() in (caught.value.raw_body or b"")


@pytest.mark.parametrize(
    ("kind", "payload", "close_code"),
    [
        pytest.param(WSMsgType.TEXT, b"hello", 1008, id="text"),
        pytest.param(WSMsgType.BINARY, b"\x00\xff", 1008, id="binary"),
        pytest.param(WSMsgType.TEXT, b"x" * 100_000, 1009, id="oversize"),
    ],
)
async def test_frames_from_a_subscriber_are_refused(
    world: World, kind: WSMsgType, payload: bytes, close_code: int
) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    subscriber.transport.send(kind, payload)
    assert await subscriber.closed() == close_code
    await until(lambda: not world.coordinator.registry)


async def test_garbage_on_the_websocket_port_is_cut_off(world: World) -> None:
    host, _, port = world.gateway.ws_url.split("/")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
    await asyncio.wait_for(reader.read(), WAIT_S)
    writer.close()
    assert (await world.produce({"n": 1})) == []


async def test_topic_created_a_moment_ago_is_found_once_the_topology_arrives() -> None:
    async with running(bounds=Bounds(topic_grace_s=WAIT_S)) as world:
        subscriber = await world.websocket(topic="fresh")
        world.coordinator.publish(topology(2, names=("flights", "fresh")))
        assert (await subscriber.next())["topic"] == "fresh"


async def test_one_record_for_many_subscribers_reaches_each_once(world: World) -> None:
    subscribers = [await world.websocket() for _ in range(20)]
    ids = [(await one.next())["subscription"] for one in subscribers]
    assert len(set(ids)) == 20
    await world.produce(*({"n": n} for n in range(50)))
    for own_id, one in zip(ids, subscribers, strict=True):
        got = [await one.next() for _ in range(50)]
        assert [message["seq"] for message in got] == list(range(1, 51))
        assert all(message["subscriptions"] == [own_id] for message in got)
        assert one.messages.empty()


async def test_large_document_passes_a_queue_that_is_bounded_in_bytes(world: World) -> None:
    subscriber = await world.websocket()
    await subscriber.next()
    world.log.append(msgspec.json.encode({"blob": "x" * 9_000_000}))
    assert (await world.lanes.run())[-1] == "accepted"
    assert len((await subscriber.next())["document"]["blob"]) == 9_000_000
