"""Consumers of a group at a gateway: what they get, how they acknowledge, how they let go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headgate import errors
from headgate.decide.groups.targets import target_of
from headgate.model.control.from_coordinator import PushTopology
from headgate.model.control.to_coordinator import EpochTooLow, JoinGroup, NoRoom, StillInHand
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, PartitionRef, Record
from headgate.model.groups import Group, group_id
from headgate.model.position import Tally
from headgate.model.topology import FormerVersion, Topic
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from headgate.tasks import deaths
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.services.gateway.doubles import topology
from tests.services.gateway.groups.doubles import GroupCoordinator
from tests.services.gateway.world import World, WsSubscriber, running, until

TARGETS = 4
KEYS = [f"key-{number}" for number in range(40)]


@contextlib.asynccontextmanager
async def grouped(**options: Any) -> AsyncIterator[tuple[World, GroupCoordinator]]:
    coordinator = GroupCoordinator(targets=TARGETS)
    async with running(coordinator=coordinator, **options) as world:
        yield world, coordinator


async def join(world: World, consumer: str = "one", **asked: Any) -> WsSubscriber:
    socket = await world.consumer_connection()
    answer = await socket.ask(
        **{
            "type": "join",
            "topic": "flights",
            "group": "radar",
            "consumer": consumer,
            "incarnation": "1",
            "keys": 400,
            **asked,
        }
    )
    assert answer == {
        "type": "joined",
        "topic": "flights",
        "group": "radar",
        "consumer": consumer,
        "targets": TARGETS,
        "where": asked.get("where"),
        "tells_lost_history": True,
        "hears_held": True,
    }
    return socket


async def assigned(socket: WsSubscriber, count: int) -> dict[int, dict[str, Any]]:
    """The next messages, which say what the consumer owns."""
    came = [await socket.next() for _ in range(count)]
    assert {message["type"] for message in came} == {"assigned"}, came
    return {message["target"]: message for message in came}


def append(world: World, *numbers: int) -> list[Record]:
    """One record per number, under one of forty keys, in two partitions."""
    return [world.log.append({"n": n}, partition=n % 2, key=KEYS[n % len(KEYS)]) for n in numbers]


async def produce(world: World, *numbers: int) -> list[Record]:
    records = append(world, *numbers)
    await world.lanes.run()
    return records


def of_target(records: list[Record], *targets: int) -> list[tuple[int, int]]:
    return sorted(
        (record.partition, record.seq)
        for record in records
        if target_of(record, TARGETS) in targets
    )


def ack(socket: WsSubscriber, message: dict[str, Any], **changes: Any) -> None:
    positions = {str(message["partition"]): message["seq"]}
    said = {"target": message["target"], "epoch": message["epoch"], "positions": positions}
    socket.say(**{"type": "ack", **said, **changes})


def committed(world: World, target: int, partition: int) -> int:
    ref = PartitionRef(f"@group/flights/radar/{target}-of-{TARGETS}", partition)
    stored = world.checkpoints.stored.get(ref)
    return 0 if stored is None else stored.settled


# --- coming in -----------------------------------------------------------------------------------


async def test_where_a_group_began_means_nothing_to_who_comes_back_to_a_log_without_history() -> (
    None
):
    async with grouped() as (world, coordinator):
        socket = await world.consumer_connection()
        asked = {"type": "join", "topic": "flights", "group": "radar", "consumer": "one"}
        start: dict[str, Any] = {"from": {"0": 500}}
        answer = await socket.ask(**asked, incarnation="1", **start)
        assert answer["error"]["code"] == "invalid", "a new group can't begin beyond the end"
        group = Group(group_id("flights", "radar"), "flights", "radar", TARGETS, None, (499, 0))
        pushed = replace(topology(generation=2), groups=(group,))
        assert coordinator.session is not None
        coordinator.session.push(PushTopology(pushed))
        await until(lambda: world.gateway._control.topology.groups == (group,))
        await join(world, **start)


async def test_a_consumer_hears_nothing_before_it_has_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gateway that is connected again names whoever joins there in this moment a second time, and
    the coordinator gives out anew what it has just given out."""
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0)
        answer = coordinator.answer

        def answer_twice(message: JoinGroup) -> None:
            answer(message)
            coordinator.give("one", 0, epoch=2)

        monkeypatch.setattr(coordinator, "answer", answer_twice)
        socket = await join(world)
        came = [await socket.next() for _ in range(2)]
        assert [(one["type"], one["epoch"]) for one in came] == [("revoked", 1), ("assigned", 2)]


# --- what they get -------------------------------------------------------------------------------


async def test_a_consumer_gets_what_belongs_to_its_targets_and_nothing_else() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 1, 3, epoch=7)
        socket = await join(world)
        owned = await assigned(socket, 2)
        assert owned[3] == {
            "type": "assigned",
            "target": 3,
            "epoch": 7,
            "positions": {"0": 0, "1": 0},
        }
        records = await produce(world, *range(60))
        wanted = of_target(records, 1, 3)
        came = [await socket.next() for _ in wanted]
        assert sorted((m["partition"], m["seq"]) for m in came) == wanted
        assert {(m["type"], m["epoch"]) for m in came} == {("event", 7)}
        assert all(m["target"] in (1, 3) and "subscriptions" not in m for m in came)
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong", "nothing else came"


# --- what comes again ----------------------------------------------------------------------------


def made_for_one_target(world: World, count: int) -> list[Delivery]:
    records = [world.log.append({"n": n}, key="key-1") for n in range(count)]
    return [one for record in records if (one := world.lanes.match(record)) is not None]


def again(deliveries: list[Delivery]) -> list[Delivery]:
    return [msgspec.structs.replace(one, redelivery=True, wish=1) for one in deliveries]


def ack_again(socket: WsSubscriber, *messages: dict[str, Any]) -> None:
    [target], [epoch] = {m["target"] for m in messages}, {m["epoch"] for m in messages}
    seqs = {str(m["partition"]): [m["seq"] for m in messages] for m in messages}
    socket.say(type="ack", target=target, epoch=epoch, redelivered=seqs)


async def test_a_consumer_gets_what_comes_again_before_what_is_new() -> None:
    async with grouped(consumers=ConsumerBounds(prefetch=2, save_s=0.02)) as (world, coordinator):
        coordinator.give("one", *range(TARGETS))
        socket = await join(world)
        await assigned(socket, TARGETS)
        made = made_for_one_target(world, 4)
        await world.lanes.deliver(made[:1])
        first = await socket.next()
        batch = [*again(made[:3]), made[3]]
        assert (await world.lanes.deliver(batch)).verdicts == (*("retry",) * 3, "accepted")
        heard = [await socket.next()]
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong", "two are in hand"
        ack(socket, first)
        heard.append(await socket.next())
        ack_again(socket, *heard)
        heard += [await socket.next() for _ in range(2)]
        assert [(one["seq"], "redelivery" in one) for one in heard] == [
            (1, True), (2, True), (3, True), (4, False),
        ]  # fmt: skip
        verdicts = (await world.lanes.deliver(batch[:3])).verdicts
        assert verdicts == ("duplicate", "duplicate", "retry"), "done when it is acknowledged"
        await until(lambda: committed(world, first["target"], 0) == 1)
        ack_again(socket, heard[2])
        ack(socket, heard[-1])
        await until(lambda: committed(world, first["target"], 0) == 4)
        assert (await world.lanes.deliver(batch[2:3])).verdicts == ("duplicate",)


async def test_what_a_reset_brings_for_the_first_time_is_guarded_by_a_position() -> None:
    """It was parked until then, and its lane may have nobody to send it to later."""
    async with grouped(consumers=ConsumerBounds(save_s=0.02)) as (world, coordinator):
        coordinator.give("one", *range(TARGETS))
        socket = await join(world)
        await assigned(socket, TARGETS)
        made = made_for_one_target(world, 3)
        await world.lanes.deliver(made[:1])
        ack(socket, first := await socket.next())
        reset = [msgspec.structs.replace(one, in_turn=True) for one in again(made[:2])]
        verdicts = (await world.lanes.deliver([*reset, made[2]])).verdicts
        assert verdicts == ("duplicate", "accepted", "accepted"), "its own position goes back"
        heard = [await socket.next() for _ in range(2)]
        assert [(one["seq"], "redelivery" in one) for one in heard] == [(2, False), (3, False)]
        socket.leave()
        await until(lambda: not coordinator.registry)
        assert committed(world, first["target"], 0) == 1


async def test_what_comes_again_is_bounded_like_everything_else() -> None:
    async with grouped(consumers=ConsumerBounds(prefetch=10)) as (world, coordinator):
        coordinator.give("one", *range(TARGETS))
        socket = await join(world)
        await assigned(socket, TARGETS)
        made = made_for_one_target(world, 50)
        await world.lanes.deliver(again(made))
        heard = [await socket.next() for _ in range(10)]
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong", "no more came"
        assert [one["seq"] for one in heard] == list(range(1, 11))


async def test_a_target_is_not_handed_over_while_something_that_came_again_is_in_hand() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", *range(TARGETS))
        socket = await join(world)
        await assigned(socket, TARGETS)
        batch = again(made_for_one_target(world, 2))
        await world.lanes.deliver(batch)
        heard = [await socket.next() for _ in range(2)]
        target = heard[0]["target"]
        coordinator.let_go("one", target)
        assert await socket.next() == {"type": "revoke", "target": target, "epoch": 1}
        ack_again(socket, heard[0])
        assert (await world.lanes.deliver(batch)).verdicts == ("duplicate", "retry")
        assert coordinator.released() == []
        ack_again(socket, heard[1])
        socket.say(type="released", target=target, epoch=1)
        await until(lambda: coordinator.released() == [target])


async def test_what_came_again_to_a_consumer_that_died_is_not_done() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", *range(TARGETS))
        socket = await join(world)
        await assigned(socket, TARGETS)
        batch = again(made_for_one_target(world, 2))
        await world.lanes.deliver(batch)
        ack_again(socket, await socket.next())
        await socket.next()
        socket.transport.disconnect(graceful=False)
        await until(lambda: not coordinator.registry)
        assert (await world.lanes.deliver(batch)).verdicts == ("no_subscriber",) * 2


@pytest.mark.parametrize(
    "said",
    [
        {"redelivered": {"x": [1]}},
        {"redelivered": {"0": ["1"]}},
        {"redelivered": {}},
    ],
)
async def test_an_ack_that_makes_no_sense_is_answered(said: dict[str, Any]) -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        answer = await socket.ask(type="ack", target=0, epoch=1, **said)
        assert answer["error"]["code"] == "invalid"


# --- cut off -------------------------------------------------------------------------------------


async def test_cut_off_from_everybody_it_hands_out_nothing_more() -> None:
    """Somebody else is given the target when its lease has ended."""
    checkpoints = FaultyCheckpoints()
    bounds = ConsumerBounds(save_s=0.01, unsure_s=0.05)
    async with grouped(checkpoints=checkpoints, consumers=bounds) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        [target] = next(iter(world.gateway._consumers._table.values())).targets()
        coordinator.disconnect()
        checkpoints.failing = errors.StorageFailed("the store is away")
        await until(lambda: not target.is_sure)
        records = of_target(await produce(world, *range(0, 40, 2)), 0)
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong", "nothing came"
        checkpoints.failing = None
        came = [await socket.next() for _ in records]
        assert [(m["partition"], m["seq"]) for m in came] == records


async def test_it_is_sure_from_the_last_check_in_that_was_answered() -> None:
    """Not from when it notices: its lease began with that."""
    checkpoints = FaultyCheckpoints()
    bounds = ConsumerBounds(save_s=0.01, unsure_s=0.3, noticed_s=60.0)
    async with grouped(checkpoints=checkpoints, consumers=bounds) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        [target] = next(iter(world.gateway._consumers._table.values())).targets()
        assert coordinator.session is not None
        checkpoints.failing = errors.StorageFailed("the store is away")
        coordinator.session.silent = True
        await until(lambda: not target.is_sure)
        records = of_target(await produce(world, *range(0, 40, 2)), 0)
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong", "nothing came"
        checkpoints.failing = None
        came = [await socket.next() for _ in records]
        assert [(m["partition"], m["seq"]) for m in came] == records, "it has asked the store"


async def test_one_that_stood_still_asks_the_store_before_it_hands_out_more() -> None:
    """It is connected as far as it knows, and its lease has ended long ago."""
    bounds = ConsumerBounds(save_s=0.01, unsure_s=0.05, noticed_s=0.05)
    async with grouped(consumers=bounds) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        assert coordinator.session is not None
        coordinator.session.silent = True
        for number in range(2):
            ref = PartitionRef(f"@group/flights/radar/0-of-{TARGETS}", number)
            await world.checkpoints.claim(ref, Fence(2))
        assert (await socket.next())["type"] == "revoked"


async def test_one_whose_coordinator_says_nothing_goes_on_while_the_store_says_so() -> None:
    bounds = ConsumerBounds(save_s=0.01, unsure_s=0.5, noticed_s=0.0)
    async with grouped(consumers=bounds) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        records = of_target(await produce(world, *range(0, 40, 2)), 0)
        came = [await socket.next() for _ in records]
        assert [(m["partition"], m["seq"]) for m in came] == records


# --- no room -------------------------------------------------------------------------------------


async def test_the_coordinator_hears_of_targets_that_there_is_no_room_for() -> None:
    async with grouped(bounds=Bounds(subscribers=2)) as (world, coordinator):
        coordinator.give("one", 0, 1, 2)
        socket = await join(world)
        came = [await socket.next() for _ in range(3)]
        [asked] = [message for message in came if message["type"] == "revoke"]
        assert {message["target"] for message in came} == {0, 1, 2}
        socket.say(type="released", target=asked["target"], epoch=1)
        await until(lambda: bool(coordinator.of_kind(NoRoom)))
        [declined, *_] = [m.owner for m in coordinator.of_kind(NoRoom) if isinstance(m, NoRoom)]
        assert declined.ref.partition == asked["target"]


# --- a log that has lost its history -------------------------------------------------------------


async def test_a_group_waits_for_a_log_that_ends_before_what_it_has_seen() -> None:
    checkpoints = FaultyCheckpoints()
    await commit(checkpoints, 0, seq=5)
    async with grouped(checkpoints=checkpoints) as (world, coordinator):
        coordinator.give("one", 0, epoch=2)
        socket = await join(world)
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong", "nothing went wrong"
        append(world, *range(0, 12, 2))
        owned = await assigned(socket, 1)
        assert owned[0]["positions"]["0"] == 5


async def test_one_that_is_never_moved_on_is_read_from_its_end_and_the_group_told() -> None:
    checkpoints = FaultyCheckpoints()
    await commit(checkpoints, 0, seq=100)
    bounds = ConsumerBounds(beyond_end_s=0.0, save_s=0.02)
    async with grouped(checkpoints=checkpoints, consumers=bounds) as (world, coordinator):
        append(world, *range(0, 6, 2))
        coordinator.give("one", 0, epoch=2)
        socket = await join(world)
        owned = await assigned(socket, 1)
        assert owned[0]["positions"]["0"] == 3
        resync = await socket.next()
        assert (resync["type"], resync["after"], resync["from"]) == ("resync", 0, 4)
        assert resync["reason"] == "lost_history"
        socket.say(type="ack", target=0, epoch=2, positions={"0": 3})
        later = of_target(await produce(world, *range(6, 80, 2)), 0)
        came = [await socket.next() for _ in later]
        assert [(m["partition"], m["seq"]) for m in came] == later, "nothing is taken for a repeat"
        ack(socket, came[-1])
        await until(lambda: committed(world, 0, 0) == came[-1]["seq"])


async def test_one_that_was_put_back_begins_there_and_the_group_is_told() -> None:
    checkpoints = FaultyCheckpoints()
    async with grouped(checkpoints=checkpoints, consumers=ConsumerBounds(save_s=0.02)) as (
        world,
        coordinator,
    ):
        records = of_target(append(world, *range(0, 80, 2)), 0)
        await commit(checkpoints, 0, seq=records[-1][1])
        await checkpoints.put_back(PartitionRef(f"@group/flights/radar/0-of-{TARGETS}", 0), 3, 0)
        for epoch in (2, 3):
            coordinator.give("one", 0, epoch=epoch)
            socket = await join(world, incarnation=str(epoch))
            owned = await assigned(socket, 1)
            assert owned[0]["positions"]["0"] == 3
            resync = await socket.next()
            assert (resync["type"], resync["reason"]) == ("resync", "reset")
            assert (resync["after"], resync["from"]) == (3, 4), "nothing is left out"
            expected = [record for record in records if record[1] > 3]
            came = [await socket.next() for _ in expected]
            assert [(m["partition"], m["seq"]) for m in came] == expected
            assert not any("redelivery" in message for message in came)
            socket.leave()
            await until(lambda: not coordinator.registry)
            assert committed(world, 0, 0) == 3, "nobody has processed any of it"


async def test_that_it_was_put_back_is_told_before_what_retention_took_of_that() -> None:
    """Or it would go back behind what it was just told to be gone."""
    checkpoints = FaultyCheckpoints()
    async with grouped(checkpoints=checkpoints) as (world, coordinator):
        append(world, *range(0, 80, 2))
        await commit(checkpoints, 0, seq=30)
        await checkpoints.put_back(PartitionRef(f"@group/flights/radar/0-of-{TARGETS}", 0), 3, 0)
        world.log.keep_from(PartitionRef("flights", 0), 10)
        coordinator.give("one", 0, epoch=2)
        socket = await join(world)
        await assigned(socket, 1)
        told = [await socket.next() for _ in range(2)]
        assert [(one["reason"], one["after"], one["from"]) for one in told] == [
            ("reset", 3, 4), ("retention", 3, 10),
        ]  # fmt: skip
        socket.say(type="ack", target=0, epoch=2, positions={"0": 9})
        assert (await socket.next())["seq"] >= 10


@pytest.mark.parametrize("earliest", [20, 35])
async def test_what_is_passed_over_is_told_before_what_retention_took_behind_that(
    earliest: int,
) -> None:
    """And what it took of that isn't news: nobody is sent back behind what was just told."""
    checkpoints = FaultyCheckpoints()
    async with grouped(checkpoints=checkpoints) as (world, coordinator):
        append(world, *range(0, 160, 2))
        await commit(checkpoints, 0, seq=10)
        ref = PartitionRef(f"@group/flights/radar/0-of-{TARGETS}", 0)
        await checkpoints.put_ahead(ref, 30)
        world.log.keep_from(PartitionRef("flights", 0), earliest)
        coordinator.give("one", 0, epoch=2)
        socket = await join(world)
        owned = await assigned(socket, 1)
        assert owned[0]["positions"]["0"] == earliest - 1
        expected = [("gap", 10, 31)] + [("retention", 30, 35)] * (earliest == 35)
        told = [await socket.next() for _ in expected]
        assert [(one["reason"], one["after"], one["from"]) for one in told] == expected
        assert (await socket.next())["seq"] > 30
        assert committed(world, 0, 0) == 10, "it stays until the consumer has heard it"
        socket.say(type="ack", target=0, epoch=2, positions={"0": expected[-1][2] - 1})
        await until(lambda: committed(world, 0, 0) == expected[-1][2] - 1)


@pytest.mark.parametrize(
    ("settled", "begins"), [(5, 5), (0, 40)], ids=["somewhere", "where the group began"]
)
async def test_one_that_was_put_where_it_never_came_stays_and_the_group_is_told(
    settled: int, begins: int
) -> None:
    """Its consumer may have processed some ahead, and would leave these out."""
    checkpoints = FaultyCheckpoints()
    async with grouped(checkpoints=checkpoints) as (world, coordinator):
        records = of_target(append(world, *range(0, 80, 2)), 0)
        await commit(checkpoints, 0, seq=settled)
        await checkpoints.put_back(PartitionRef(f"@group/flights/radar/0-of-{TARGETS}", 0), 50, 60)
        coordinator.give("one", 0, epoch=2)
        socket = await join(world)
        owned = await assigned(socket, 1)
        assert owned[0]["positions"]["0"] == begins
        resync = await socket.next()
        assert (resync["type"], resync["reason"]) == ("resync", "reset")
        assert (resync["after"], resync["from"]) == (begins, begins + 1)
        expected = [record for record in records if record[1] > begins]
        came = [await socket.next() for _ in expected]
        assert [(m["partition"], m["seq"]) for m in came] == expected


async def commit(checkpoints: FaultyCheckpoints, target: int, *, seq: int) -> None:
    ref = PartitionRef(f"@group/flights/radar/{target}-of-{TARGETS}", 0)
    await checkpoints.claim(ref, Fence(1))
    await checkpoints.save(ref, Fence(1), seq, Tally())


# --- where groups begin --------------------------------------------------------------------------


async def test_a_group_that_is_new_begins_where_its_first_consumer_says() -> None:
    async with grouped() as (world, coordinator):
        append(world, *range(20))
        await join(world, from_="earliest")
        [asked] = coordinator.of_kind(JoinGroup)
        assert isinstance(asked, JoinGroup)
        assert asked.starts == (0, 0)
        await join(world, "two")
        assert coordinator.of_kind(JoinGroup)[-1].starts == (10, 10)  # type: ignore[union-attr]


async def test_positions_from_before_a_repartition_leave_nothing_of_a_new_group_out() -> None:
    async with grouped() as (world, coordinator):
        append(world, *range(20))
        flights = Topic(
            "flights",
            2,
            version=2,
            after=(10, 3),
            former=(FormerVersion(1, (0,), (10,)),),
            original=1,
            begins=(3,),
        )
        assert coordinator.session is not None
        pushed = replace(topology(generation=2), topics=(flights,))
        coordinator.session.push(PushTopology(pushed))
        await until(lambda: world.gateway._control.topology.topics == (flights,))
        await join(world, from_={"0": 5})
        [asked] = coordinator.of_kind(JoinGroup)
        assert asked.starts == (4, 3)  # type: ignore[union-attr]


async def test_a_new_group_begins_where_it_says_though_retention_has_passed_that() -> None:
    """Whoever has its targets is told what is gone, as any subscriber is."""
    async with grouped() as (world, coordinator):
        append(world, *range(40))
        world.log.keep_from(PartitionRef("flights", 0), 11)
        await join(world, from_={"0": 5, "1": 3})
        [asked] = coordinator.of_kind(JoinGroup)
        assert asked.starts == (4, 2)  # type: ignore[union-attr]


async def test_the_filter_of_the_group_is_asked_too() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", *range(TARGETS))
        socket = await join(world, where="n >= 30")
        await assigned(socket, TARGETS)
        records = await produce(world, *range(40))
        came = [await socket.next() for _ in range(10)]
        assert sorted(m["document"]["n"] for m in came) == list(range(30, 40))
        assert len(records) == 40


async def test_what_was_committed_is_where_the_next_owner_begins() -> None:
    async with grouped() as (world, coordinator):
        records = append(world, *range(40))
        mine = of_target(records, 2)
        half = [seq for partition, seq in mine if partition == 0][2]
        ref = PartitionRef(f"@group/flights/radar/2-of-{TARGETS}", 0)
        await world.checkpoints.claim(ref, Fence(4))
        await world.checkpoints.save(ref, Fence(4), half, Tally())
        coordinator.give("one", 2, epoch=5)
        socket = await join(world, from_="earliest")
        assert (await assigned(socket, 1))[2]["positions"] == {"0": half, "1": 0}
        wanted = [(partition, seq) for partition, seq in mine if partition or seq > half]
        assert sorted(await socket.events(len(wanted))) == wanted


async def test_records_that_retention_took_are_told_and_passed_over() -> None:
    async with grouped() as (world, coordinator):
        append(world, *range(40))
        world.log.keep_from(PartitionRef("flights", 0), 11)
        coordinator.give("one", 2)
        socket = await join(world)
        coordinator.group = msgspec.structs.replace(coordinator.group, starts=(0, 20))
        coordinator.give("one", 2, epoch=2)
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["type"] != "resync":
            seen.append(await socket.next())
        resync = seen[-1]
        assert (resync["target"], resync["after"], resync["from"]) == (2, 0, 11)
        assert resync["reason"] == "retention", "which is all that a consumer has to go by"
        assert (resync["epoch"], resync["reason"]) == (2, "retention")


# --- acknowledging -------------------------------------------------------------------------------


async def test_what_is_acknowledged_is_committed_and_nothing_more() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0, epoch=3)
        socket = await join(world)
        await assigned(socket, 1)
        wanted = of_target(await produce(world, *range(0, 80, 2)), 0)
        came = [await socket.next() for _ in wanted]
        ack(socket, came[3])
        await until(lambda: committed(world, 0, 0) == came[3]["seq"])
        ack(socket, came[-1])
        await until(lambda: committed(world, 0, 0) == came[-1]["seq"])
        ref = PartitionRef(f"@group/flights/radar/0-of-{TARGETS}", 0)
        assert world.checkpoints.stored[ref].epoch == 3


async def test_what_does_not_concern_a_target_moves_it_on_too() -> None:
    async with grouped() as (world, coordinator):
        append(world, *range(40))
        coordinator.give("one", 0)
        socket = await join(world, where="n > 1000", from_="earliest")
        await assigned(socket, 1)
        await until(lambda: committed(world, 0, 0) == 20 and committed(world, 0, 1) == 20)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        pytest.param({"positions": {"0": 900}}, "invalid", "sent up to seq", id="never sent"),
        pytest.param({"positions": {"9": 1}}, "invalid", "no partition 9", id="partition"),
        pytest.param({"positions": {"a": 1}}, "invalid", "positions", id="no number"),
        pytest.param({"epoch": 1}, "fenced", "not this consumer's any more", id="epoch"),
        pytest.param({"target": 3}, "fenced", "not this consumer's any more", id="target"),
    ],
)
async def test_an_impossible_acknowledgement_is_answered_and_changes_nothing(
    changes: dict[str, Any], code: str, words: str
) -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0, epoch=3)
        socket = await join(world)
        await assigned(socket, 1)
        await produce(world, *range(0, 80, 2))
        first = await socket.next()
        ack(socket, first, **changes)
        while (answer := await socket.next())["type"] == "event":
            pass
        assert answer["type"] == "error"
        assert answer["target"] == changes.get("target", 0)
        assert answer["error"]["code"] == code
        assert words in answer["error"]["message"]
        ack(socket, first)
        await until(lambda: committed(world, 0, 0) == first["seq"])


@pytest.mark.parametrize(
    ("prefetch", "in_hand", "most"),
    [
        pytest.param(5, 8, 8, id="of all targets together"),
        pytest.param(2, 100, 6, id="of each target"),
    ],
)
async def test_no_more_is_sent_than_may_be_in_hand(prefetch: int, in_hand: int, most: int) -> None:
    bounds = ConsumerBounds(prefetch=prefetch, in_hand=in_hand, save_s=0.02)
    async with grouped(consumers=bounds) as (world, coordinator):
        coordinator.give("one", 0, 1, 2)
        socket = await join(world)
        await assigned(socket, 3)
        wanted = of_target(await produce(world, *range(200)), 0, 1, 2)
        came = [await socket.next() for _ in range(most)]
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong", "that is all"
        by_target = [m["target"] for m in came]
        assert max(by_target.count(number) for number in (0, 1, 2)) <= prefetch
        places = [(m["partition"], m["seq"]) for m in came]
        for message in came:
            ack(socket, message)
        while len(places) < len(wanted):
            message = await socket.next()
            places.append((message["partition"], message["seq"]))
            ack(socket, message)
        assert sorted(places) == wanted


async def test_no_more_bytes_are_sent_than_may_be_in_hand_but_for_one() -> None:
    bounds = ConsumerBounds(in_hand_bytes=1, save_s=0.02)
    async with grouped(consumers=bounds) as (world, coordinator):
        coordinator.give("one", 0, 1)
        socket = await join(world)
        await assigned(socket, 2)
        wanted = of_target(await produce(world, *range(80)), 0, 1)
        places: list[tuple[int, int]] = []
        while len(places) < len(wanted):
            message = await socket.next()
            assert (await socket.ask(type="ping", id="p"))["type"] == "pong", "that is all"
            places.append((message["partition"], message["seq"]))
            ack(socket, message)
        assert sorted(places) == wanted


# --- letting go ----------------------------------------------------------------------------------


async def test_a_target_is_handed_over_once_its_consumer_has_finished() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0, 1)
        socket = await join(world)
        await assigned(socket, 2)
        wanted = of_target(await produce(world, *range(0, 80, 2)), 0)
        came: list[dict[str, Any]] = []
        while len(came) < len(wanted):
            message = await socket.next()
            if message["target"] == 0:
                came.append(message)
        coordinator.let_go("one", 0)
        while (message := await socket.next())["type"] != "revoke":
            pass
        assert (message["target"], message["epoch"]) == (0, 1)
        later = of_target(await produce(world, *range(0, 80, 2)), 0)
        assert later
        assert coordinator.released() == [], "the consumer has it in hand"
        ack(socket, came[0])
        socket.say(type="released", target=0, epoch=1)
        await until(lambda: coordinator.released() == [0])
        assert committed(world, 0, 0) == came[0]["seq"]
        rest = [await socket.next() for _ in range(1)]
        while rest[-1]["type"] != "revoked":
            rest.append(await socket.next())
        assert all(m.get("target") != 0 for m in rest[:-1]), "nothing comes after the revoke"


async def test_with_nothing_in_hand_it_goes_when_the_consumer_says_so() -> None:
    """It may work on what it had of the target under an earlier epoch."""
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0, 1)
        socket = await join(world)
        await assigned(socket, 2)
        coordinator.let_go("one", 0)
        assert (await socket.next()) == {"type": "revoke", "target": 0, "epoch": 1}
        assert coordinator.released() == []
        socket.say(type="released", target=0, epoch=1)
        assert (await socket.next()) == {"type": "revoked", "target": 0, "epoch": 1}
        await until(lambda: coordinator.released() == [0])
        await until(lambda: len(coordinator.registry) == 1)


async def test_a_consumer_that_never_finishes_holds_nobody_for_long() -> None:
    bounds = ConsumerBounds(release_s=0.05, save_s=0.02)
    async with grouped(consumers=bounds) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        await produce(world, *range(0, 80, 2))
        await socket.next()
        coordinator.let_go("one", 0)
        await until(lambda: coordinator.released() == [0])
        assert committed(world, 0, 0) == 0


async def test_the_coordinator_hears_that_a_consumer_works_on_what_it_is_asked_for() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", *range(TARGETS))
        socket = await join(world)
        await assigned(socket, TARGETS)
        await world.lanes.deliver(made_for_one_target(world, 1))
        target = (await socket.next())["target"]
        socket.say(type="renew", target=target, epoch=1)
        coordinator.let_go("one", target)
        assert (await socket.next())["type"] == "revoke"
        assert coordinator.of_kind(StillInHand) == [], "nobody wanted it before"
        socket.say(type="renew", target=target, epoch=1)
        await until(lambda: len(coordinator.of_kind(StillInHand)) == 1)


async def test_what_it_does_not_own_cannot_be_renewed() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        assert (await socket.ask(type="renew", target=1, epoch=1))["error"]["code"] == "fenced"


async def test_a_target_that_was_not_asked_for_cannot_be_released() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        answer = await socket.ask(type="released", target=0, epoch=1)
        assert "was not asked for" in answer["error"]["message"]


async def test_a_target_that_somebody_else_has_is_taken_away_at_once() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0, 1)
        socket = await join(world)
        await assigned(socket, 2)
        coordinator.take("one", 1)
        assert (await socket.next()) == {"type": "revoked", "target": 1, "epoch": 1}
        await until(lambda: len(coordinator.registry) == 1)


class SlowToSave(FaultyCheckpoints):
    """Whoever claims a position meanwhile is quicker."""

    async def save(self, ref: PartitionRef, fence: Fence, settled: int, tally: Tally) -> None:
        await asyncio.sleep(0.02)
        await super().save(ref, fence, settled, tally)


@pytest.mark.parametrize("is_given_anew", [False, True])
async def test_what_was_acknowledged_before_it_is_taken_away_is_saved(is_given_anew: bool) -> None:
    checkpoints, bounds = SlowToSave(), ConsumerBounds(save_s=60)
    async with grouped(consumers=bounds, checkpoints=checkpoints) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        await produce(world, *range(0, 80, 2))
        first = await socket.next()
        ack(socket, first)
        socket.say(type="ping", id="p")
        while (await socket.next())["type"] != "pong":
            pass
        if is_given_anew:
            coordinator.give("one", 0, epoch=2)
        else:
            coordinator.take("one", 0)
        await until(lambda: committed(world, 0, 0) == first["seq"])
        while (message := await socket.next())["type"] != "revoked":
            assert message["type"] == "event"
        if is_given_anew:
            assert (await assigned(socket, 1))[0]["positions"]["0"] == first["seq"]


async def test_a_higher_epoch_in_the_store_ends_it_before_the_coordinator_says_so() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        coordinator.disconnect()
        ref = PartitionRef(f"@group/flights/radar/0-of-{TARGETS}", 0)
        await world.checkpoints.claim(ref, Fence(9))
        assert (await socket.next()) == {"type": "revoked", "target": 0, "epoch": 1}
        assert world.checkpoints.stored[ref].settled == 0


async def test_positions_under_a_higher_epoch_are_reported_until_the_target_is_given_anew() -> None:
    checkpoints = FaultyCheckpoints()
    ref = PartitionRef(f"@group/flights/radar/0-of-{TARGETS}", 0)
    await checkpoints.claim(ref, Fence(9))
    async with grouped(checkpoints=checkpoints) as (world, coordinator):
        coordinator.give("one", 0, epoch=2)
        socket = await join(world)
        await until(lambda: bool(coordinator.of_kind(EpochTooLow)))
        said = coordinator.of_kind(EpochTooLow)[0]
        assert said == EpochTooLow(PartitionRef("@group/flights/radar", 0), 9, own=2)
        coordinator.give("one", 0, epoch=10)
        assert (await socket.next())["type"] == "revoked"
        assert (await assigned(socket, 1))[0]["epoch"] == 10


async def test_a_store_that_is_away_delays_a_target_and_loses_nothing() -> None:
    checkpoints = FaultyCheckpoints()
    checkpoints.failing = errors.StorageFailed("the store is away")
    async with grouped(checkpoints=checkpoints) as (world, coordinator):
        coordinator.give("one", *range(TARGETS))
        socket = await join(world, from_="earliest")
        append(world, *range(20))
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong"
        checkpoints.failing = None
        seen = 0
        while seen < 20:
            seen += (await socket.next())["type"] == "event"


# --- coming and going ----------------------------------------------------------------------------


async def test_who_leaves_is_told_when_everything_is_saved() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        await produce(world, *range(0, 80, 2))
        first = await socket.next()
        ack(socket, first)
        socket.say(type="leave")
        while (await socket.next())["type"] != "ended":
            pass
        assert await socket.closed() == 1000
        assert committed(world, 0, 0) == first["seq"]
        assert coordinator.left() == [("one", True)]
        assert not coordinator.registry


async def test_a_connection_that_breaks_saves_what_was_acknowledged() -> None:
    async with grouped(consumers=ConsumerBounds(save_s=60)) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        await produce(world, *range(0, 80, 2))
        first = await socket.next()
        ack(socket, first)
        await socket.ask(type="ping", id="p")
        socket.leave()
        await until(lambda: coordinator.left() == [("one", False)])
        assert committed(world, 0, 0) == first["seq"], "and nothing of what it had in hand"


async def end_by_stopping(world: World) -> None:
    await world.gateway.stop()


async def end_by_deleting_the_topic(world: World) -> None:
    world.coordinator.publish(topology(2, names=(), deleted=("flights",)))


@pytest.mark.parametrize("end", [end_by_stopping, end_by_deleting_the_topic])
async def test_what_waits_when_it_ends_is_not_taken_for_processed(
    end: Callable[[World], Awaitable[None]],
) -> None:
    bounds = ConsumerBounds(prefetch=2, save_s=60)
    async with grouped(consumers=bounds) as (world, coordinator):
        coordinator.give("one", 0)
        socket = await join(world)
        await assigned(socket, 1)
        await produce(world, *range(0, 80, 2))
        assert of_target(await produce(world, *range(1, 81, 2)), 0), "and of the other partition"
        first, second = await socket.next(), await socket.next()
        ack(socket, first)
        ack(socket, second)
        assert [(await socket.next())["type"] for _ in range(2)] == ["event", "event"]
        await end(world)
        await until(lambda: coordinator.left() == [("one", False)])
        assert (committed(world, 0, 0), committed(world, 0, 1)) == (second["seq"], 0)


async def test_the_same_process_may_connect_again_before_it_is_missed() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0)
        former = await join(world)
        await assigned(former, 1)
        again = await join(world)
        await assigned(again, 1)
        assert await former.closed() is not None
        await produce(world, *range(0, 80, 2))
        assert (await again.next())["type"] == "event"
        assert coordinator.left() == [("one", False)]


async def test_a_coordinator_that_comes_back_hears_who_is_there_and_what_they_own() -> None:
    async with grouped() as (world, coordinator):
        coordinator.give("one", 0, 2, epoch=4)
        socket = await join(world)
        await assigned(socket, 2)
        coordinator.disconnect()
        coordinator.received.clear()
        coordinator.connect()
        await until(lambda: bool(coordinator.of_kind(JoinGroup)))
        [said] = coordinator.of_kind(JoinGroup)
        assert isinstance(said, JoinGroup)
        assert said.known == coordinator.group
        assert {(o.ref.partition, o.epoch) for o in said.owns} == {(0, 4), (2, 4)}
        names = [type(message).__name__ for message in coordinator.received]
        assert names.index("JoinGroup") < names.index("RegistrationComplete")
        await produce(world, *range(0, 80, 2))
        assert (await socket.next())["type"] == "event"


# --- bad input -----------------------------------------------------------------------------------


async def test_who_connects_again_before_it_was_taken_in_is_told_so_on_the_former_connection() -> (
    None
):
    async with grouped() as (world, coordinator):
        coordinator.answering = False
        former = await world.consumer_connection()
        asked = {"topic": "flights", "group": "radar", "consumer": "one", "incarnation": "1"}
        former.say(type="join", **asked)
        await until(lambda: bool(coordinator.of_kind(JoinGroup)))
        coordinator.answering = True
        await join(world)
        answer = await former.next()
        assert answer["error"]["code"] == "unavailable"
    assert deaths.counts() == {}


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        pytest.param({"topic": "boats"}, "unknown_topic", "no topic boats", id="topic"),
        pytest.param({"where": "alt >"}, "invalid_filter", "", id="filter"),
        pytest.param({"from_": "tomorrow"}, "invalid", "from=tomorrow", id="from"),
        pytest.param({"where": "a", "filter": []}, "invalid", "not both", id="two filters"),
    ],
)
async def test_who_cannot_join_is_told_and_disconnected(
    asked: dict[str, Any], code: str, words: str
) -> None:
    async with grouped() as (world, coordinator):
        socket = await world.consumer_connection()
        request = {
            "type": "join",
            "topic": "flights",
            "group": "radar",
            "consumer": "one",
            "incarnation": "1",
        }
        answer = await socket.ask(**{**request, **asked})
        assert answer["error"]["code"] == code
        assert words in answer["error"]["message"]
        await socket.closed()
        assert not coordinator.of_kind(JoinGroup)


async def test_what_the_coordinator_refuses_is_passed_on_as_it_is() -> None:
    async with grouped() as (world, coordinator):
        coordinator.refusal = ("invalid", "a consumer one of group radar is connected already")
        socket = await world.consumer_connection()
        answer = await socket.ask(
            type="join", topic="flights", group="radar", consumer="one", incarnation="2"
        )
        assert answer["error"] == {
            "code": "invalid",
            "message": "a consumer one of group radar is connected already",
            "details": {},
        }
        await socket.closed()


async def test_a_coordinator_that_gives_no_answer_is_not_waited_for() -> None:
    async with grouped(consumers=ConsumerBounds(join_s=0.05)) as (world, coordinator):
        coordinator.answering = False
        socket = await world.consumer_connection()
        answer = await socket.ask(
            type="join", topic="flights", group="radar", consumer="one", incarnation="2"
        )
        assert answer["error"]["code"] == "timeout"
        await socket.closed()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        pytest.param({"type": "join", "topic": "flights", "group": "a/b"}, "wrong", id="group"),
        pytest.param({"type": "ack"}, "target", id="ack without a target"),
        pytest.param(
            {"type": "ack", "target": 0, "epoch": 1, "positions": {}}, "join a group", id="early"
        ),
    ],
)
async def test_a_message_that_makes_no_sense_is_answered(
    message: dict[str, Any], words: str
) -> None:
    async with grouped() as (world, _):
        socket = await world.consumer_connection()
        answer = await socket.ask(**message)
        assert answer["type"] == "error"
        assert words in answer["error"]["message"]
        assert (await socket.ask(type="ping", id="p"))["type"] == "pong"


async def test_a_second_join_on_a_connection_is_refused() -> None:
    async with grouped() as (world, _):
        socket = await join(world)
        answer = await socket.ask(
            type="join", topic="flights", group="tower", consumer="two", incarnation="1"
        )
        assert "has joined already" in answer["error"]["message"]


@pytest.mark.parametrize("message", [{"type": "subscribe"}, {"type": 7}, {}], ids=str)
async def test_what_is_not_this_protocol_ends_the_connection(message: dict[str, Any]) -> None:
    async with grouped() as (world, _):
        socket = await world.consumer_connection()
        answer = await socket.ask(**message)
        assert "join, ack, nack, held, renew, released, leave or ping" in answer["error"]["message"]
        await socket.closed()


async def test_parameters_have_no_place_in_the_address() -> None:
    async with grouped() as (world, _):
        socket = await world.consumer_connection("?topic=flights")
        assert "consume has no parameter topic" in (await socket.next())["error"]["message"]
        await socket.closed()
