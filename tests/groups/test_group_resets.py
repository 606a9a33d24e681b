"""An operator resets a consumer group in a whole cluster: what comes again comes in order, what is
left out is told, and nobody hands out what somebody else has."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from headgate.client.consumer import Consumer
from headgate.errors import HeadgateError, InvalidRequest, NotFound
from headgate.model.client_messages import Event, Resync
from headgate.model.groups_api import GroupInfo, GroupList, GroupReset, ResetGroup
from headgate.services.coordinator.groups import GroupRoutes
from tests.explaining.world import TOPIC, ExplainWorld, world
from tests.virtual_time import run_virtual

GROUP = f"/v1/groups/{TOPIC}/g"


class Shared:
    """What the consumers of the group were handed: of each key the numbers, in their order."""

    def __init__(self, made: ExplainWorld) -> None:
        self.made = made
        self.numbers: defaultdict[str, list[int]] = defaultdict(list)
        self.told: list[Resync] = []
        self.consumers: list[Consumer] = []

    async def join(self, **options: Any) -> Consumer:
        consumer = self.made.cluster.consumer(self.made.url, TOPIC, "g", **options)
        await consumer.__aenter__()
        self.made.subscribers[f"consumer {len(self.consumers)}"] = consumer
        self.consumers.append(consumer)
        self.made.crew.start("reading", self._read(consumer))
        await asyncio.sleep(15.0)
        return consumer

    async def _read(self, consumer: Consumer) -> None:
        async for item in consumer:
            if isinstance(item, Event):
                self.numbers[item.key or ""].append(item.document["number"])
            elif isinstance(item, Resync):
                self.told.append(item)

    async def produce(self, *numbers: int) -> None:
        for number in numbers:
            await self.made.produce(f"key-{number % 3}", number=number)
        await asyncio.sleep(5.0)

    async def reset(self, to: str, *, dry_run: bool = False) -> GroupReset:
        async with self.made.cluster.http(self.made.url) as client:
            done = await client.post(f"{GROUP}/reset", ResetGroup(to, dry_run), GroupReset)
        await asyncio.sleep(20.0)
        return done

    async def described(self) -> GroupInfo:
        async with self.made.cluster.http(self.made.url) as client:
            return await client.get(GROUP, GroupInfo)


async def by_hand(group: Shared) -> Consumer:
    """One that acknowledges when it is told to."""
    consumer = group.made.cluster.consumer(group.made.url, TOPIC, "g", acks="manual")
    await consumer.__aenter__()
    group.made.subscribers["by hand"] = consumer
    await asyncio.sleep(15.0)
    return consumer


async def handed_to(consumer: Consumer) -> list[Any]:
    """All that comes, but for what it is told."""
    found: list[Any] = []
    while True:
        try:
            async with asyncio.timeout(5.0):
                found.append(await anext(consumer))
        except TimeoutError:
            return [one for one in found if isinstance(one, Event)]


def numbers_of(items: list[Any]) -> list[int]:
    return sorted(item.document["number"] for item in items)


def shared(scenario: Callable[[Shared], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with world(**options) as made, asyncio.timeout(3_600):
            await scenario(Shared(made))

    run_virtual(run())


def time_of(wall_ms: int) -> str:
    seconds, rest = divmod(wall_ms, 1_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03}Z"


def once() -> dict[str, list[int]]:
    return {f"key-{k}": [n for n in range(9) if n % 3 == k] for k in range(3)}


def twice() -> dict[str, list[int]]:
    return {key: numbers * 2 for key, numbers in once().items()}


def test_all_of_it_comes_again_in_order_and_is_told() -> None:
    async def scenario(group: Shared) -> None:
        await group.join()
        await group.produce(*range(9))
        assert group.numbers == once()
        planned = await group.reset("earliest", dry_run=True)
        assert sum(one.repeats_max for one in planned.partitions) == 9
        assert group.numbers == once(), "that was a dry run"
        await group.reset("earliest")
        assert group.numbers == twice()
        assert {one.reason for one in group.told} == {"reset"}

    shared(scenario)


def test_what_was_appended_since_a_time_comes_again() -> None:
    async def scenario(group: Shared) -> None:
        await group.join()
        await group.produce(*range(6))
        since = time_of(group.made.now_ms())
        await group.produce(6, 7, 8)
        await group.reset(since)
        assert group.numbers == {f"key-{k}": [*once()[f"key-{k}"], 6 + k] for k in range(3)}, (
            "only what came after it"
        )

    shared(scenario)


def test_what_is_passed_over_is_told_and_never_comes() -> None:
    async def scenario(group: Shared) -> None:
        consumer = await group.join()
        await group.produce(0, 1, 2)
        await group.made.leave("consumer 0")
        del consumer
        await group.produce(3, 4, 5)
        planned = await group.reset("latest")
        assert sum(one.skips_max for one in planned.partitions) >= 3
        await group.produce(6, 7, 8)
        group.told.clear()
        await group.join()
        assert group.numbers == {f"key-{k}": [k, 6 + k] for k in range(3)}
        assert {one.reason for one in group.told} == {"gap"}
        await group.reset("latest")
        await group.produce(9)
        assert group.numbers["key-0"] == [0, 6, 9], "what comes from then on comes"

    shared(scenario)


def test_it_goes_past_what_a_consumer_has_before_it() -> None:
    """While it reads: what waits for it at its gateway is left out, and it goes on."""

    async def scenario(group: Shared) -> None:
        made = group.made
        consumer = made.cluster.consumer(made.url, TOPIC, "g", acks="manual")
        await consumer.__aenter__()
        made.subscribers["consumer"] = consumer
        await asyncio.sleep(15.0)
        await group.produce(*range(9))
        await group.reset("latest")
        found: list[Any] = []
        while True:
            try:
                async with asyncio.timeout(5.0):
                    item = await anext(consumer)
            except TimeoutError:
                break
            found.append(item)
            if isinstance(item, Event):
                await consumer.acknowledge(item)
        assert any(isinstance(one, Resync) and one.reason == "gap" for one in found)
        await made.leave("consumer")
        await group.produce(9)
        await group.join()
        assert group.numbers == {"key-0": [9]}, "nothing of before is handed out by the next owner"

    shared(scenario)


def test_whoever_takes_over_just_then_begins_there_too() -> None:
    async def scenario(group: Shared) -> None:
        await group.join()
        await group.produce(*range(9))
        joining = asyncio.create_task(group.join())
        await asyncio.sleep(0.5)
        await group.reset("earliest")
        await joining
        assert group.numbers == twice()

    shared(scenario)


def test_it_goes_back_across_a_repartition() -> None:
    async def scenario(group: Shared) -> None:
        from tests.sim.test_repartition import repartition

        await group.join()
        await group.produce(*range(5))
        await repartition(group.made.cluster, 3)
        await group.produce(*range(5, 9))
        assert group.numbers == once()
        await group.reset("earliest")
        assert group.numbers == twice()

    shared(scenario)


def test_what_was_processed_ahead_of_a_position_comes_again() -> None:
    """Of each partition the first event takes long, and no target's position is past that."""

    async def scenario(group: Shared) -> None:
        consumer = await by_hand(group)
        await group.produce(*range(9))
        items = await handed_to(consumer)
        slow = {item.partition: item for item in reversed(items)}
        for item in items:
            if item is not slow[item.partition]:
                await consumer.acknowledge(item)
        await group.reset("earliest")
        assert numbers_of(await handed_to(consumer)) == list(range(9))

    shared(scenario)


def test_newer_events_come_along_though_nothing_of_their_partition_was_saved() -> None:
    """Something of the former version takes long, so no position of the new partition is saved
    before it: the target has never claimed one."""

    async def scenario(group: Shared) -> None:
        from tests.sim.test_repartition import repartition

        consumer = await by_hand(group)
        await group.produce(*range(6))
        *items, _slow = await handed_to(consumer)
        await repartition(group.made.cluster, 3)
        await group.produce(*range(6, 12))
        newer = await handed_to(consumer)
        assert {item.partition for item in newer} == {0, 1, 2}
        for item in (*items, *newer):
            await consumer.acknowledge(item)
        await group.reset("earliest")
        assert numbers_of(await handed_to(consumer)) == list(range(12))

    shared(scenario)


def test_what_was_wanted_before_a_crash_can_be_wanted_again() -> None:
    async def scenario(group: Shared) -> None:
        await group.join()
        await group.produce(*range(9))
        await group.made.cluster.stop_coordinator()
        with pytest.raises(HeadgateError):
            async with asyncio.timeout(30):
                await group.reset("earliest")
        await group.made.cluster.start_coordinator()
        await asyncio.sleep(60.0)
        await group.reset("earliest")
        assert group.numbers == twice()

    shared(scenario)


@pytest.mark.parametrize("undone", ["latest", "a time"])
def test_of_two_wishes_that_nobody_has_taken_up_the_last_counts(undone: str) -> None:
    """The group has no consumer at the moment, as where one stops it to reset it."""

    async def scenario(group: Shared) -> None:
        await group.join()
        await group.produce(*range(6))
        since = time_of(group.made.now_ms())
        await group.produce(6, 7, 8)
        await group.made.leave("consumer 0")
        await group.reset("earliest")
        await group.reset("latest" if undone == "latest" else since)
        await group.join()
        again = [] if undone == "latest" else [6, 7, 8]
        assert group.numbers == {
            key: [*numbers, *[n for n in again if f"key-{n % 3}" == key]]
            for key, numbers in once().items()
        }

    shared(scenario)


def test_groups_are_listed_and_described() -> None:
    async def scenario(group: Shared) -> None:
        await group.join()
        await group.produce(*range(9))
        async with group.made.cluster.http(group.made.url) as client:
            [one] = (await client.get("/v1/groups", GroupList)).groups
        assert (one.topic, one.group, one.unowned) == (TOPIC, "g", 0)
        found = await group.described()
        [consumer] = found.consumers
        assert {one.consumer for one in found.targets} == {consumer.id}
        assert sum(one.head for one in found.partitions) == 9
        assert all(0 <= one.lowest <= one.highest <= one.head for one in found.partitions)
        assert max(one.highest for one in found.partitions) > 0

    shared(scenario)


def test_mistakes_are_one_sentence() -> None:
    async def scenario(group: Shared) -> None:
        await group.join()
        with pytest.raises(InvalidRequest, match="neither earliest, latest nor a time"):
            await group.reset("0:15")
        async with group.made.cluster.http(group.made.url) as client:
            wanted = ResetGroup("earliest")
            with pytest.raises(NotFound, match="no consumer group is called flights/h; there are"):
                await client.post(f"/v1/groups/{TOPIC}/h/reset", wanted, GroupReset)

    shared(scenario)


@pytest.mark.parametrize("call", ["describe", "reset"])
def test_one_whose_topic_is_deleted_meanwhile_is_there_no_more(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(group: Shared) -> None:
        await group.join()
        whole = GroupRoutes._extents

        async def extents(routes: GroupRoutes, *asked: Any) -> Any:
            found = await whole(routes, *asked)
            async with group.made.cluster.http(group.made.url) as client:
                await client.delete(f"/v1/topics/{TOPIC}")
            return found

        monkeypatch.setattr(GroupRoutes, "_extents", extents)
        with pytest.raises(NotFound, match="no consumer group is called flights/g"):
            await (group.described() if call == "describe" else group.reset("earliest"))

    shared(scenario)
