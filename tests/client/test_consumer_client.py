"""`headgate.client.Consumer` with real gateways and the coordinator's real decisions."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headgate import errors
from headgate.client import Consumer, Event
from headgate.decide.conversation.owned_target import OwnedTarget
from headgate.services.gateway.groups.bounds import ConsumerBounds
from tests.client.group_system import WAIT_S, GroupSystem, Worker, group_system, position_ref
from tests.services.gateway.world import until

Processed = list[tuple[str, str, int]]


@contextlib.asynccontextmanager
async def crew(
    system: GroupSystem, *ids: str, each_s: float = 0.0, **options: Any
) -> AsyncIterator[tuple[dict[str, Worker], Processed]]:
    """Workers that share the topic; those that are still there leave at the end."""
    processed: Processed = []
    workers = {name: Worker(system, name, processed, options, each_s) for name in ids}
    for worker in workers.values():
        await worker.start()
    await balanced(system, len(ids))
    try:
        yield workers, processed
    finally:
        for worker in workers.values():
            await worker.die()


async def balanced(system: GroupSystem, consumers: int) -> None:
    """Until everybody has a share, and nothing moves any more."""
    await until(
        lambda: (
            len(set(system.coordinator.owners().values())) == consumers
            and not system.coordinator.cluster.groups.handoffs.by_ref
        )
    )


async def all_processed(system: GroupSystem, processed: Processed) -> None:
    async with asyncio.timeout(WAIT_S):
        while {number for _, _, number in processed} != {n for _, n in system.produced}:  # noqa: ASYNC110 - nothing signals what consumers do
            await asyncio.sleep(0.01)


def check(system: GroupSystem, processed: Processed, *, repeats: bool = False) -> None:
    """Nothing is missed, every key is in order, and nothing comes twice unless that is expected."""
    by_key: dict[str, list[int]] = defaultdict(list)
    for _, key, number in processed:
        if not repeats or number not in by_key[key]:
            by_key[key].append(number)
    expected: dict[str, list[int]] = defaultdict(list)
    for key, number in system.produced:
        expected[key].append(number)
    assert by_key == expected


# --- sharing -------------------------------------------------------------------------------------


async def test_three_consumers_share_the_keys_and_each_key_has_one_of_them() -> None:
    async with group_system() as system, crew(system, "a", "b", "c") as (workers, processed):
        await system.produce(300)
        await all_processed(system, processed)
        check(system, processed)
        owners: dict[str, set[str]] = defaultdict(set)
        for consumer, key, _ in processed:
            owners[key].add(consumer)
        assert all(len(who) == 1 for who in owners.values())
        assert {who for some in owners.values() for who in some} == {"a", "b", "c"}
        assert sum(len(worker.consumer.targets) for worker in workers.values()) == 6
        assert all(worker.consumer.joined.targets == 6 for worker in workers.values())  # type: ignore[union-attr]


async def test_a_consumer_that_joins_takes_over_without_a_gap_or_a_repeat() -> None:
    async with (
        group_system() as system,
        crew(system, "a", each_s=0.001) as (workers, processed),
    ):
        await system.produce(200)
        late = workers["b"] = Worker(system, "b", processed, each_s=0.001)
        await late.start()
        for _ in range(10):
            await system.produce(30)
            await asyncio.sleep(0.02)
        await balanced(system, 2)
        await system.produce(100)
        await all_processed(system, processed)
        check(system, processed)
        assert any(consumer == "b" for consumer, _, _ in processed)


async def test_who_leaves_hands_over_at_once_without_a_repeat() -> None:
    async with group_system() as system, crew(system, "a", "b", "c") as (workers, processed):
        await system.produce(150)
        await all_processed(system, processed)
        leaving = workers.pop("b")
        await asyncio.wait_for(leaving.leave(), WAIT_S)
        await balanced(system, 2)
        await system.produce(150)
        await all_processed(system, processed)
        check(system, processed)
        assert "b" not in {consumer for consumer, _, _ in processed[150:]}


async def test_what_a_dead_consumer_had_not_acknowledged_goes_to_the_others() -> None:
    async with (
        group_system() as system,
        crew(system, "a", "b", "c", each_s=0.002) as (workers, processed),
    ):
        await system.produce(300)
        await until(lambda: len(processed) > 60)
        await workers.pop("c").die()
        before = len(processed)
        await balanced(system, 2)
        await system.produce(100)
        await all_processed(system, processed)
        check(system, processed, repeats=True)
        numbers = [number for _, _, number in processed]
        twice = len(numbers) - len(set(numbers))
        assert twice <= 32 + 1, "no more than it had not said, and the one in its hands"
        assert "c" not in {consumer for consumer, _, _ in processed[before:]}


async def test_a_slow_consumer_gives_up_what_it_has_not_begun_with() -> None:
    async with (
        group_system(consumers=ConsumerBounds(save_s=0.05, release_s=5.0)) as system,
        crew(system, "slow", each_s=0.05) as (workers, processed),
    ):
        await system.produce(60)
        await until(lambda: len(processed) > 2)
        quick = workers["quick"] = Worker(system, "quick", processed)
        await quick.start()
        await balanced(system, 2)
        assert len(processed) < 60, "the slow one had far more in its buffer when it was asked"
        await all_processed(system, processed)
        check(system, processed)
        assert "quick" in {consumer for consumer, _, _ in processed}


# --- failing -------------------------------------------------------------------------------------


async def test_consumers_of_a_gateway_that_stops_go_on_at_another_one() -> None:
    async with (
        group_system(gateways=2) as system,
        crew(system, "a", "b", each_s=0.001) as (workers, processed),
    ):
        await system.produce(200)
        await until(lambda: len(processed) > 50)
        await system.stop_gateway(0)
        await system.produce(100)
        await until(lambda: all(w.consumer.reconnects == 1 for w in workers.values()))
        await system.produce(100)
        await all_processed(system, processed)
        check(system, processed)


async def test_a_coordinator_that_restarts_is_not_noticed() -> None:
    async with group_system() as system, crew(system, "a", "b") as (workers, processed):
        await system.produce(100)
        owners = system.coordinator.owners()
        system.coordinator.restart()
        await system.produce(100)
        await all_processed(system, processed)
        await asyncio.sleep(0.6)
        assert system.coordinator.owners() == owners
        await system.produce(100)
        await all_processed(system, processed)
        check(system, processed)
        assert all(worker.consumer.reconnects == 0 for worker in workers.values())


async def test_a_lost_connection_repeats_nothing_that_was_processed() -> None:
    async with (
        group_system(consumers=ConsumerBounds(save_s=60)) as system,
        crew(system, "a", each_s=0.001) as (workers, processed),
    ):
        await system.produce(200)
        for count in (40, 100):
            await until(lambda: len(processed) > count)  # noqa: B023 - awaited at once
            workers["a"].lose_connection()
        await all_processed(system, processed)
        check(system, processed)
        assert workers["a"].consumer.reconnects == 2


# --- what comes again ----------------------------------------------------------------------------


async def sent_again(system: GroupSystem) -> None:
    """All that was produced, as after a reset: matched anew until everybody has it."""
    pending = [record for records in system.log.records.values() for record in records]
    while pending:
        for record in tuple(pending):
            verdicts: list[str] = []
            for lanes in system.lanes:
                if (matched := lanes.match(record)) is not None:
                    again = msgspec.structs.replace(matched, redelivery=True, wish=7)
                    verdicts += (await lanes.deliver([again])).verdicts
            if verdicts and {"accepted", "duplicate"}.issuperset(verdicts):
                pending.remove(record)
        await asyncio.sleep(0)


async def test_what_comes_again_is_processed_whoever_dies_and_comes() -> None:
    """While it comes, a consumer is killed, another one joins, and one loses its connection."""
    bounds = ConsumerBounds(save_s=0.05, prefetch=5)
    async with (
        group_system(consumers=bounds) as system,
        crew(system, "a", "b", each_s=0.002) as (workers, processed),
    ):
        await system.produce(120)
        await all_processed(system, processed)
        processed.clear()
        sending = asyncio.create_task(sent_again(system))
        await until(lambda: len(processed) > 15)
        await workers.pop("b").die()
        workers["c"] = Worker(system, "c", processed, each_s=0.002)
        await workers["c"].start()
        await until(lambda: len(processed) > 60)
        workers["a"].lose_connection()
        async with asyncio.timeout(WAIT_S):
            await sending
        assert {number for _, _, number in processed} == {n for _, n in system.produced}
        twice = len(processed) - len(system.produced)
        assert twice <= 3 * 32, "no more than was processed and not said, of each that was lost"


# --- acknowledging -------------------------------------------------------------------------------


async def test_what_was_not_acknowledged_by_hand_comes_again() -> None:
    async with group_system() as system:
        options: dict[str, Any] = {"keys_expected": 600, "consumer": "a", "acks": "manual"}
        async with Consumer(system.url, "flights", "radar", **options) as consumer:
            await system.produce(10, keys=1)
            first = [await take(consumer) for _ in range(10)]
            for number in (0, 1, 2, 5):
                await consumer.acknowledge(first[number])
        async with Consumer(system.url, "flights", "radar", **options) as consumer:
            again = [await take(consumer) for _ in range(7)]
            assert [event.document["n"] for event in again] == [3, 4, 5, 6, 7, 8, 9]
            stale = first[7]
            await consumer.acknowledge(stale)
            for event in again:
                await consumer.acknowledge(event)
        saved = {system.checkpoints.stored[position_ref(target, 0)].settled for target in range(6)}
        assert 10 in saved


async def take(consumer: Consumer) -> Event:
    async with asyncio.timeout(WAIT_S):
        item = await anext(consumer)
    assert isinstance(item, Event)
    return item


async def test_the_message_in_hand_when_it_leaves_is_not_taken_for_processed() -> None:
    async with group_system() as system:
        async with Consumer(system.url, "flights", "radar", consumer="a") as consumer:
            await system.produce(3, keys=1)
            assert (await take(consumer)).document["n"] == 0
            assert (await take(consumer)).document["n"] == 1
        async with Consumer(system.url, "flights", "radar", consumer="b") as consumer:
            assert (await take(consumer)).document["n"] == 1


def test_positions_move_over_what_is_acknowledged_in_any_order() -> None:
    share = OwnedTarget(0, 1)
    for seq in (3, 5, 9):
        share.hand_out(0, seq)
    assert share.acknowledge(0, 5) == 0
    assert share.unsaid() == {}
    assert share.acknowledge(0, 3) == 5
    assert share.unsaid() == {"positions": {"0": 5}}
    assert share.acknowledge(0, 3) == 0
    assert share.in_hand == 1
    with pytest.raises(errors.InvalidRequest, match="nothing of partition 7"):
        share.acknowledge(7, 1)


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        pytest.param({"topic": "boats"}, errors.UnknownTopic, "no topic boats", id="topic"),
        pytest.param({"group": "a/b"}, errors.InvalidRequest, "group", id="group"),
        pytest.param({"group": ""}, errors.InvalidRequest, "name a topic and a group", id="none"),
        pytest.param({"where": "n >"}, errors.InvalidFilter, "column 4", id="filter"),
        pytest.param({"where": "n > 5"}, errors.InvalidRequest, "has no filter", id="another"),
        pytest.param({"consumer": "a"}, errors.InvalidRequest, "connected already", id="twice"),
    ],
)
async def test_what_is_wrong_is_raised_as_its_own_class(
    options: dict[str, Any], kind: type[errors.HeadgateError], words: str
) -> None:
    async with group_system() as system, crew(system, "a"):
        with pytest.raises(kind, match=words):
            async with Consumer(
                **{"url": system.url, "topic": "flights", "group": "radar", **options}
            ):
                pass


async def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(errors.PeerUnreachable):
        async with Consumer("http://127.0.0.1:9", "flights", "radar"):
            pass


@pytest.mark.parametrize("restored", [False, True], ids=["lost", "restored from a backup"])
async def test_a_group_goes_on_after_its_positions_were(restored: bool) -> None:
    """Where its gateways know it to be, which they write down again."""
    async with group_system() as system, crew(system, "a") as (workers, processed):
        await system.produce(60)
        await all_processed(system, processed)
        stored = system.checkpoints.stored
        backup = dict(stored) if restored else {}
        workers["a"].lose_connection()  # it is back at once, under new epochs
        await system.produce(60)
        await all_processed(system, processed)
        await until(lambda: all(stored[ref].epoch > one.epoch for ref, one in backup.items()))
        places = {ref: one.settled for ref, one in stored.items()}
        stored.clear()
        stored.update(backup)
        await system.produce(60)
        await all_processed(system, processed)
        await until(lambda: places.keys() <= stored.keys())
        await until(lambda: all(stored[ref].settled >= seq for ref, seq in places.items()))
        numbers = [number for _, _, number in processed]
        assert sorted(numbers) == sorted(set(numbers)), "nothing comes again"
