"""Slow subscribers, subscribers that come back, and events that come twice."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from headgate.model.event import PartitionRef
from headgate.model.subscription import Priority
from headgate.model.topology import FormerVersion, Topic
from headgate.services.gateway.service import DedupOptions
from headgate.services.gateway.subscriptions.subscriptions import Bounds, SlowPolicies
from tests.services.gateway.doubles import topology
from tests.services.gateway.world import World, WsSubscriber, running, until
from tests.written_log import TOPIC

FILLER = "x" * 10_000
TOTAL = 1_500


def bounds(**changes: Any) -> Bounds:
    return Bounds(queue=20, topic_grace_s=0.05, **changes)


async def flood(world: World, count: int = TOTAL) -> None:
    """Far more than a client that doesn't read gets into its socket's buffers."""
    for begin in range(0, count, 100):
        documents = ({"n": n, "f": FILLER} for n in range(begin, begin + 100))
        await world.produce(*documents)


# --- slow ----------------------------------------------------------------------------------------


async def test_low_priority_loses_the_oldest_and_is_told_which() -> None:
    async with running(bounds=bounds()) as world:
        slow = await world.connection()
        await slow.subscribe("low", priority="low")
        slow.stop_reading()
        await flood(world)
        assert await world.metric("headgate_waiting") <= 20 + 1
        slow.read_on()
        came: list[int] = []
        left_out: list[int] = []
        while len(came) + len(left_out) < TOTAL:
            message = await slow.next()
            if message["type"] == "resync":
                assert message["subscription"] == "low"
                assert (message["topic"], message["partition"]) == ("flights", 0)
                assert message["reason"] == "slow"
                left_out += range(message["after"] + 1, message["from"])
            else:
                came.append(message["seq"])
        assert left_out
        assert sorted(came + left_out) == list(range(1, TOTAL + 1))
        assert came == sorted(came)
        assert came[-1] == TOTAL, "the newest is what is kept"
        assert await world.metric("headgate_dropped_total") == len(left_out)
        assert await world.metric('headgate_resyncs_total{reason="slow"}') >= 1
        await world.produce({"n": TOTAL})
        assert await slow.events(1) == [(0, TOTAL + 1)]


async def test_low_priority_over_sse_is_told_the_same() -> None:
    async with running(bounds=bounds()) as world, world.sse(priority="low") as slow:
        await slow.next()
        await flood(world)
        seen = 0
        kinds = set()
        while seen < TOTAL:
            message = await slow.next()
            kinds.add(message["event"])
            resync = message["event"] == "resync"
            seen = message["data"]["from"] - 1 if resync else message["data"]["seq"]
            assert int(message["id"].split(",")[0].partition(":")[2]) >= seen
        assert kinds == {"event", "resync"}


@pytest.mark.parametrize("priority", ["high", "normal"])
async def test_higher_priorities_are_parked_and_miss_nothing(priority: Priority) -> None:
    async with running(bounds=bounds()) as world:
        slow = await world.connection()
        await slow.subscribe("a", priority=priority)
        slow.stop_reading()
        await flood(world)
        slow.read_on()
        assert await slow.events(TOTAL) == [(0, seq) for seq in range(1, TOTAL + 1)]
        assert await world.metric("headgate_dropped_total") == 0


async def test_disconnected_for_slowness_it_is_told_how_to_resume() -> None:
    policies = SlowPolicies(high="disconnect")
    async with running(bounds=bounds(when_slow=policies)) as world:
        slow = await world.connection()
        await slow.subscribe("a", priority="high")
        slow.stop_reading()
        await flood(world)
        slow.read_on()
        got = []
        while (message := await slow.next())["type"] == "event":
            got.append(message["seq"])
        assert message["error"]["code"] == "overloaded"
        assert await slow.closed() == 1013
        resume = message["error"]["details"]["resume"]
        assert f"from={resume}" in message["error"]["message"]
        again = await world.websocket(from_=resume)
        await again.next()
        got += [seq for _, seq in await again.events(TOTAL - len(got))]
        assert got == list(range(1, TOTAL + 1))


async def test_acknowledged_position_is_what_a_slow_subscriber_resumes_from() -> None:
    policies = SlowPolicies(normal="disconnect")
    async with running(bounds=bounds(when_slow=policies)) as world:
        slow = await world.connection()
        await slow.subscribe("a")
        await world.produce({"n": 1}, {"n": 2}, {"n": 3})
        await slow.events(3)
        slow.say(type="ack", subscription="a", positions={"0": 2})
        await slow.ask(type="ping")
        slow.stop_reading()
        await flood(world)
        slow.read_on()
        while (message := await slow.next())["type"] == "event":
            pass
        assert message["error"]["details"]["resume"] == "0:3,1:1"


async def test_memory_for_all_together_is_bounded_and_nobody_starves() -> None:
    limit = 200_000
    async with running(bounds=Bounds(memory_bytes=limit, topic_grace_s=0.05)) as world:
        clients = [await world.connection() for _ in range(5)]
        for client in clients:
            await client.subscribe("a")
            client.stop_reading()
        largest = 0.0
        for _ in range(6):
            await flood(world, 200)
            largest = max(largest, await world.metric("headgate_waiting_bytes"))
        first_reads = 5 * 16 * (len(FILLER) + 200)
        assert limit / 10 < largest <= limit + first_reads
        for client in clients:
            client.read_on()
        for client in clients:
            assert await client.events(1_200) == [(0, seq) for seq in range(1, 1_201)]
        assert await world.metric("headgate_waiting_bytes") == 0
        assert await world.metric("headgate_waiting") == 0


async def test_depth_counts_every_subscription_and_goes_with_it() -> None:
    async with running(bounds=Bounds(queue=50, topic_grace_s=0.05)) as world:
        client = await world.connection()
        await client.subscribe("a")
        await client.subscribe("b")
        client.stop_reading()
        await flood(world)
        assert 50 < await world.metric("headgate_waiting") <= 100
        client.leave()
        await until(lambda: not world.coordinator.registry)
        assert await world.metric("headgate_waiting") == 0


# --- coming back ---------------------------------------------------------------------------------


async def test_resuming_at_another_gateway_has_no_gap_and_no_repeat() -> None:
    async with running() as first, running() as second:
        second.log.stored = first.log.stored
        client = await first.connection()
        await client.subscribe("a", where="n % 2 == 0")
        await first.produce(*({"n": n} for n in range(20)))
        before = await client.events(10)
        client.leave()
        await first.produce(*({"n": n} for n in range(20, 40)))
        again = await second.connection()
        last = before[-1][1]
        await again.subscribe("a", where="n % 2 == 0", from_={"0": last + 1, "1": 1})
        second.lanes.cursor[PartitionRef(TOPIC, 0)] = 40
        await second.produce(*({"n": n} for n in range(40, 60)))
        after = await again.events(20)
        assert before + after == [(0, seq) for seq in range(1, 60, 2)]


@pytest.mark.parametrize("kept", [3, 5], ids=["something is left", "nothing is left"])
async def test_position_that_retention_has_passed_is_answered_with_a_resync(
    world: World, kept: int
) -> None:
    for n in range(4):
        world.log.append({"n": n})
    world.log.keep_from(PartitionRef(TOPIC, 0), kept)
    client = await world.connection()
    subscribed = await client.subscribe("a", from_="0:2,1:1")
    assert subscribed["positions"] == {"0": 1, "1": 0}, "it hasn't heard of the gap yet"
    assert await client.next() == {
        "type": "resync",
        "subscription": "a",
        "topic": "flights",
        "partition": 0,
        "after": 1,
        "from": kept,
        "reason": "retention",
    }
    assert await client.events(5 - kept) == [(0, seq) for seq in range(kept, 5)]
    await world.produce({"n": 5})
    assert await client.events(1) == [(0, 5)]


async def test_last_event_id_that_retention_has_passed_is_answered_the_same(world: World) -> None:
    for n in range(4):
        world.log.append({"n": n})
    world.log.keep_from(PartitionRef(TOPIC, 0), 4)
    async with world.sse({"Last-Event-ID": "0:1,1:0"}) as stream:
        await stream.next()
        resync = await stream.next()
        assert (resync["event"], resync["id"]) == ("resync", "0:3,1:0")
        assert (resync["data"]["after"], resync["data"]["from"]) == (1, 4)
        assert await stream.events(1) == [(0, 4)]


async def test_a_log_that_ends_with_a_hole_is_said_without_a_newer_record(world: World) -> None:
    for n in range(3):
        world.log.append({"n": n})
    world.log.move_on(PartitionRef(TOPIC, 0), 1_000)
    client = await world.connection()
    await client.subscribe("s", from_="0:3")
    assert (await client.next())["seq"] == 3
    resync = await client.next()
    assert (resync["type"], resync["after"], resync["from"]) == ("resync", 3, 1_001)
    world.lanes.cursor[PartitionRef(TOPIC, 0)] = 3
    await world.produce({"n": 3})
    assert (await client.next())["seq"] == 1_001


async def test_retention_that_overtakes_a_reader_is_said_where_it_happened(world: World) -> None:
    for n in range(10):
        world.log.append({"n": n})
    world.log.gate = asyncio.Event()
    client = await world.websocket(from_="earliest")
    await client.next()
    await until(lambda: world.log.reads > 0)
    world.log.keep_from(PartitionRef(TOPIC, 0), 8)
    world.log.gate.set()
    resync = await client.next()
    assert (resync["type"], resync["after"], resync["from"]) == ("resync", 0, 8)
    assert resync["reason"] == "retention"
    assert await client.events(3) == [(0, 8), (0, 9), (0, 10)]
    assert await world.metric('headgate_resyncs_total{reason="retention"}') == 1


async def test_large_records_are_read_few_at_a_time(world: World) -> None:
    raw = msgspec.json.encode({"blob": "x" * 3_000_000})
    for _ in range(20):
        world.log.append(raw)
    asked: list[int] = []
    read = world.log.read

    async def counted(ref: PartitionRef, *, after_seq: int, limit: int) -> Any:
        asked.append(limit)
        return await read(ref, after_seq=after_seq, limit=limit)

    world.log.read = counted  # type: ignore[method-assign]
    client = await world.websocket(from_="earliest")
    await client.next()
    assert await client.events(20) == [(0, seq) for seq in range(1, 21)]
    assert asked[0] <= 16
    assert max(asked[1:]) == 1


async def test_who_is_cut_off_before_it_heard_of_a_gap_hears_of_it_when_it_is_back(
    world: World,
) -> None:
    for n in range(1, 11):
        world.log.append({"n": n})
    world.log.keep_from(PartitionRef(TOPIC, 0), 8)
    async with world.sse({"Last-Event-ID": "0:2,1:0"}) as stream:
        first = await stream.next()
    assert (first["event"], first["id"]) == ("subscribed", "0:2,1:0")
    async with world.sse({"Last-Event-ID": first["id"]}) as stream:
        heard = [await stream.next() for _ in range(3)]
    assert [one["event"] for one in heard] == ["subscribed", "resync", "event"]
    socket = await world.websocket(from_="0:3,1:1")
    assert (await socket.next())["positions"] == {"0": 2, "1": 0}


# --- the same event twice ------------------------------------------------------------------------


async def twice(
    world: World, client: WsSubscriber, *, redelivery: bool = False, wait_s: float = 0.0
) -> list[str]:
    """One event that a retry put into both partitions; the verdicts of its two deliveries."""
    copies = [world.log.append({"n": 1}, partition=number) for number in (0, 1)]
    verdicts: list[str] = []
    for record in copies:
        matched = world.lanes.match(msgspec.structs.replace(record, event_id="the same"))
        assert matched is not None
        matched = msgspec.structs.replace(matched, redelivery=redelivery)
        verdicts += (await world.lanes.deliver([matched])).verdicts
        world.clock.now_s += wait_s
    return verdicts


async def test_event_that_is_in_the_log_twice_is_delivered_once(world: World) -> None:
    client = await world.connection()
    await client.subscribe("a")
    # Both are settled; that it was here before is found out after the answer.
    assert await twice(world, client) == ["accepted", "accepted"]
    assert await client.events(1) == [(0, 1)]
    assert (await client.ask(type="ping"))["type"] == "pong"
    assert await world.metric("headgate_repeats_dropped_total") == 1


async def test_an_event_that_is_in_the_log_again_behind_a_repartition_comes_again(
    world: World,
) -> None:
    """Its owner has asked its predecessors: no producer's retry, but a connector's change that is
    read once more, and may be the last word on its key."""
    client = await world.connection()
    await client.subscribe("a")
    name = tuple(world.coordinator.registry)
    for version, partition in ((1, 1), (2, 0)):
        record = world.log.append({"n": 1}, partition=partition, version=version)
        record = msgspec.structs.replace(record, event_id="the same")
        await world.lanes.deliver([world.lanes.delivery(record, name)])
        former = FormerVersion(1, (0, 0), (0, 1))
        topic = Topic(TOPIC, 1, version=2, after=(0,), former=(former,))
        said = msgspec.structs.replace(topology(partitions=2), generation=9, topics=(topic,))
        world.coordinator.publish(said)
        await until(lambda: world.gateway._control.topology.generation == 9)
    assert await client.events(2) == [(1, 1), (0, 1)]


@pytest.mark.parametrize(
    ("dedup", "redelivery", "wait_s"),
    [
        pytest.param(DedupOptions(enabled=False), False, 0.0, id="switched off"),
        pytest.param(DedupOptions(), True, 0.0, id="redelivered on purpose"),
        pytest.param(DedupOptions(ttl_s=60), False, 61.0, id="long ago"),
    ],
)
async def test_repeat_passes(dedup: DedupOptions, redelivery: bool, wait_s: float) -> None:
    async with running(dedup=dedup) as world:
        client = await world.connection()
        await client.subscribe("a")
        verdicts = await twice(world, client, redelivery=redelivery, wait_s=wait_s)
        assert verdicts == ["accepted", "accepted"]
        assert await client.events(2) == [(0, 1), (1, 1)]


async def test_what_a_former_topic_had_in_a_partition_that_is_no_more_is_no_repeat(
    world: World,
) -> None:
    """It is created anew with fewer partitions, and filled with the same events."""
    client = await world.connection()
    await client.subscribe("a")
    first = world.log.append({"n": 1}, partition=1)
    match = world.lanes.match(msgspec.structs.replace(first, event_id="the same"))
    assert match is not None
    await world.lanes.deliver([match])
    assert await client.events(1) == [(1, 1)]
    world.coordinator.publish(topology(2, names=(), deleted=(TOPIC,)))
    assert (await client.next())["type"] == "error"
    world.coordinator.publish(topology(3, partitions=1, epoch=7))
    world.lanes.epoch = 7
    again = await world.connection()
    await again.subscribe("b")
    second = world.log.append({"n": 1})
    match = world.lanes.match(msgspec.structs.replace(second, event_id="the same"))
    assert match is not None
    await world.lanes.deliver([match])
    assert await again.events(1) == [(0, 1)]


async def test_repeat_reaches_a_subscriber_that_began_after_the_first(world: World) -> None:
    early, late = await world.connection(), await world.connection()
    await early.subscribe("a")
    first = world.log.append({"n": 1})
    match = world.lanes.match(msgspec.structs.replace(first, event_id="the same"))
    assert match is not None
    await world.lanes.deliver([match])
    await late.subscribe("b")
    second = world.log.append({"n": 1}, partition=1)
    match = world.lanes.match(msgspec.structs.replace(second, event_id="the same"))
    assert match is not None
    assert (await world.lanes.deliver([match])).verdicts == ("accepted",)
    assert await early.events(1) == [(0, 1)]
    assert await late.events(1) == [(1, 1)]
    assert (await early.ask(type="ping"))["type"] == "pong"
