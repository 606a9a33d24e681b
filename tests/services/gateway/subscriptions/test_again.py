"""Records that lanes couldn't read, and those that an operator has delivered again."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from headgate.decide.delivery.gaps import Gap, notice
from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef
from headgate.model.position import Position
from headgate.model.topology import FormerVersion, Topic
from headgate.services.gateway.subscriptions import log_ends
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from tests.services.gateway.doubles import topology
from tests.services.gateway.world import World, running, until
from tests.written_log import TOPIC

REF = PartitionRef(TOPIC, 0)


def lost(first_seq: int, last_seq: int, epoch: int = 1) -> Delivery:
    return notice(Gap(first_seq, last_seq), REF, epoch=epoch, time_ms=0)


def again(delivery: Delivery, epoch: int = 1) -> Delivery:
    return msgspec.structs.replace(delivery, redelivery=True, epoch=epoch)


async def test_everybody_on_the_topic_hears_of_a_gap_once_and_in_its_place(world: World) -> None:
    client = await world.connection()
    await client.subscribe("all")
    await client.subscribe("some", where="n > 5")
    await world.produce({"n": 9})
    assert (await client.next())["seq"] == 1
    assert (await world.lanes.deliver([lost(2, 4)])).verdicts == ("accepted",)
    heard = [await client.next() for _ in range(2)]
    assert [one.pop("subscription") for one in heard] == ["all", "some"]
    assert heard[0] == heard[1] == {
        "type": "resync", "topic": TOPIC, "partition": 0, "after": 1, "from": 5, "reason": "gap",
    }  # fmt: skip
    assert (await world.lanes.deliver([lost(2, 4)])).verdicts == ("duplicate",)
    assert await world.metric('headgate_resyncs_total{reason="gap"}') == 2


async def test_a_gap_without_subscribers_is_settled(world: World) -> None:
    assert (await world.lanes.deliver([lost(1, 4)])).verdicts == ("no_subscriber",)


async def test_server_sent_events_carry_a_gap_with_the_position_after_it(world: World) -> None:
    async with world.sse() as stream:
        await stream.next()
        await world.lanes.deliver([lost(1, 4)])
        event = await stream.next()
        assert (event["event"], event["id"].split(",")[0]) == ("resync", "0:4")


async def test_who_reads_the_log_is_told_by_it_alone(world: World) -> None:
    """Also when the hole is in the middle of what one read would bring."""
    for n in range(8):
        world.log.append({"n": n})
    world.log.lose(REF, (3, 4, 5))
    client = await world.connection()
    await client.subscribe("all", from_="earliest")
    assert (await world.lanes.deliver([lost(3, 5)])).verdicts[0] in ("accepted", "duplicate")
    heard = [await client.next() for _ in range(6)]
    assert [one.get("seq", one.get("reason")) for one in heard] == [1, 2, "retention", 6, 7, 8]
    assert (heard[2]["after"], heard[2]["from"]) == (2, 6)
    await world.produce({"n": 8})
    assert (await client.next())["seq"] == 9


async def test_a_gap_hides_nothing_that_lanes_read_without_those_who_hear_of_it(
    world: World,
) -> None:
    """A gateway that is cut off doesn't know that its subscriptions have ended."""
    client = await world.connection()
    await client.subscribe("all")
    await world.produce({"n": 1})
    assert (await client.next())["seq"] == 1
    world.coordinator.disconnect()
    for n in (2, 3, 4):
        world.log.append({"n": n})
    world.log.lose(REF, (3,))
    assert (await world.lanes.deliver([lost(3, 3)])).verdicts == ("accepted",)
    record, told = [await client.next() for _ in range(2)]
    assert record["seq"] == 2
    assert (told["type"], told["after"], told["from"]) == ("resync", 2, 4)


async def test_who_comes_back_to_a_log_that_lost_its_history_hears_of_all_that_is_lost(
    world: World,
) -> None:
    """Lanes have read further than it reaches, and only know what is lost behind that."""
    records = [world.log.append({"n": n}) for n in range(1, 6)]
    world.checkpoints.put(REF, Position(settled=5))
    world.log.lose_history(REF, behind=2)
    client = await world.connection()
    await client.subscribe("all", from_="earliest")
    assert await client.events(2) == [(0, 1), (0, 2)]
    was_parked = world.lanes.match(records[3])
    assert was_parked is not None
    await world.lanes.deliver([was_parked])
    world.log.move_on(REF, 50)
    await world.lanes.deliver([lost(6, 50)])
    told = await client.next()
    assert (told["type"], told["after"], told["from"]) == ("resync", 2, 51)


async def test_who_comes_before_lanes_have_saved_what_a_log_lost_hears_of_all_of_it_too(
    world: World,
) -> None:
    for n in range(1, 6):
        world.log.append({"n": n})
    world.log.lose_history(REF, behind=2)
    client = await world.connection()
    await client.subscribe("all", from_="earliest")
    assert await client.events(2) == [(0, 1), (0, 2)]
    world.log.move_on(REF, 50)
    await world.lanes.deliver([lost(6, 50)])
    told = await client.next()
    assert (told["type"], told["after"], told["from"]) == ("resync", 2, 51)


async def test_nobody_waits_for_the_store_of_positions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_ends, "MOMENT_S", 0.01)
    world.checkpoints.takes_s = 60.0
    world.log.append({"n": 1})
    client = await world.connection()
    await client.subscribe("all", from_="earliest")
    assert await client.events(1) == [(0, 1)]


async def test_nothing_of_a_version_passes_what_lanes_settled_without_a_gateway_that_is_cut_off(
    world: World,
) -> None:
    """A lane that is cut off, too, delivers behind what another one settled for those it knew."""
    client = await world.connection()
    await client.subscribe("all")
    await world.produce({"n": 1}, partition=1)
    assert (await client.next())["seq"] == 1
    former = FormerVersion(1, (0, 0), (0, 2))
    topic = Topic(TOPIC, 1, version=2, after=(0,), former=(former,))
    world.coordinator.publish(replace(topology(partitions=2), generation=9, topics=(topic,)))
    await until(lambda: world.gateway._control.topology.generation == 9)
    world.log.append({"n": 2}, partition=1)
    world.coordinator.disconnect()
    newer = world.lanes.delivery(
        world.log.append({"n": 3}, version=2), tuple(world.coordinator.registry)
    )
    assert (await world.lanes.deliver([newer])).verdicts == ("accepted",)
    assert await client.events(2) == [(1, 2), (0, 1)]


async def test_a_redelivery_comes_though_it_was_here_before_and_is_marked(world: World) -> None:
    client = await world.connection()
    await client.subscribe("all")
    delivery = world.lanes.delivery(world.log.append({"n": 1}), tuple(world.coordinator.registry))
    assert (await world.lanes.deliver([delivery])).verdicts == ("accepted",)
    assert (await world.lanes.deliver([delivery])).verdicts == ("duplicate",)
    assert (await world.lanes.deliver([again(delivery)])).verdicts == ("accepted",)
    first, second = [await client.next() for _ in range(2)]
    assert "redelivery" not in first
    assert second.pop("redelivery") is True
    assert first == second


async def test_the_same_redelivery_comes_once_and_anew_after_another_reset(world: World) -> None:
    client = await world.connection()
    await client.subscribe("all")
    delivery = world.lanes.delivery(world.log.append({"n": 1}), tuple(world.coordinator.registry))
    for epoch, verdict in ((1, "accepted"), (1, "duplicate"), (2, "accepted"), (2, "duplicate")):
        answer = await world.lanes.deliver([again(delivery, epoch)])
        assert answer.verdicts == (verdict,)
    assert [(await client.next())["seq"] for _ in range(2)] == [1, 1]


async def test_a_redelivery_leaves_the_position_where_it_is(world: World) -> None:
    async with world.sse() as stream:
        await stream.next()
        first, second = world.log.append({"n": 1}), world.log.append({"n": 2})
        ids = tuple(world.coordinator.registry)
        await world.lanes.deliver([world.lanes.delivery(second, ids)])
        assert (await stream.next())["id"].split(",")[0] == "0:2"
        await world.lanes.deliver([again(world.lanes.delivery(first, ids))])
        event = await stream.next()
        assert event["id"].split(",")[0] == "0:2"
        assert event["data"]["redelivery"] is True


async def test_without_room_for_it_a_redelivery_comes_later() -> None:
    async with running(bounds=Bounds(queue=8, topic_grace_s=0.05)) as world:
        client = await world.connection()
        await client.subscribe("all")
        (subscriber,) = world.gateway._subscriptions
        ids = tuple(world.coordinator.registry)
        made = [again(world.lanes.delivery(world.log.append({"n": n}), ids)) for n in range(5)]
        subscriber.ready, ready = (lambda: None), subscriber.ready
        verdicts = (await world.lanes.deliver(made)).verdicts
        assert verdicts == ("retry",) * 5
        subscriber.ready = ready
        ready()
        await until(lambda: len(subscriber.feed) == 0)
        verdicts = (await world.lanes.deliver(made[:4])).verdicts
        assert verdicts == ("duplicate", "duplicate", "accepted", "accepted")
        assert [(await client.next())["seq"] for _ in range(4)] == [1, 2, 3, 4]


async def test_one_that_does_not_read_holds_its_own_redeliveries_alone() -> None:
    async with running(bounds=Bounds(queue=8, topic_grace_s=0.05)) as world:
        idle, reader = await world.connection(), await world.connection()
        await idle.subscribe("idle")
        await reader.subscribe("reader")
        (waiting,) = [one for one in world.gateway._subscriptions if one.name == "idle"]
        waiting.ready, ready = (lambda: None), waiting.ready
        ids = tuple(world.coordinator.registry)
        made = [again(world.lanes.delivery(world.log.append({"n": n}), ids)) for n in range(4)]
        for one in made:
            assert (await world.lanes.deliver([one])).verdicts == ("retry",)
        assert await reader.events(4) == [(0, seq) for seq in (1, 2, 3, 4)]
        waiting.ready = ready
        ready()
        await until(lambda: len(waiting.feed) == 0)
        verdicts = (await world.lanes.deliver(made)).verdicts
        assert verdicts == ("duplicate", "duplicate", "accepted", "accepted")
        assert await idle.events(4) == [(0, seq) for seq in (1, 2, 3, 4)]
        assert (await reader.ask(type="ping"))["type"] == "pong", "nothing came to it twice"


async def test_a_new_record_comes_behind_the_redeliveries_before_it(world: World) -> None:
    """Over WebSocket, alone on its connection and with another, and over server-sent events."""
    alone, shared = await world.websocket(), await world.connection()
    await alone.next()
    for name in ("one", "two"):
        await shared.subscribe(name)
    async with world.sse() as stream:
        await stream.next()
        ids = tuple(world.coordinator.registry)
        made = [world.lanes.delivery(world.log.append({"n": n}), ids) for n in range(5)]
        held = [(one, one.ready) for one in world.gateway._subscriptions]
        for subscriber, _ in held:
            subscriber.ready = lambda: None
        sent = [*map(again, made[:4]), made[4]]
        assert (await world.lanes.deliver(sent)).verdicts == (*("retry",) * 4, "accepted")
        for subscriber, ready in held:
            subscriber.ready = ready
            ready()
        expected = [(0, seq) for seq in (1, 2, 3, 4, 5)]
        assert await alone.events(5) == expected
        assert await stream.events(5) == expected
        heard = [await shared.next() for _ in range(5)]
        assert [(one["seq"], one["subscriptions"]) for one in heard] == [
            (seq, ["one", "two"]) for _, seq in expected
        ]


async def test_a_redelivery_for_nobody_is_settled(world: World) -> None:
    delivery = world.lanes.delivery(world.log.append({"n": 1}), ("gone",))
    assert (await world.lanes.deliver([again(delivery)])).verdicts == ("no_subscriber",)
