"""A topic is repartitioned while it is written and read: all that is acknowledged arrives, once and
in order per key, at subscribers and in groups, whichever counts follow each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Sequence

import pytest

from headgate.model.api import RepartitionPlan, RepartitionTopic, TopicInfo
from headgate.model.client_messages import Event
from tests.sim.cluster import MemoryCluster, running
from tests.sim.test_cluster import SHARED_S, TOPIC, Reader, _share, send, wanted
from tests.virtual_time import run_virtual

PHASE_S = 30.0
SAVED_S = 3.0
"""Longer than between two saves of what consumers have acknowledged."""


async def repartition(cluster: MemoryCluster, to: int) -> None:
    """Until it is finalized."""
    async with cluster.http(cluster.gateways[0].url) as http:
        path = f"/v1/topics/{TOPIC}"
        await http.post(f"{path}/repartition", RepartitionTopic(to), RepartitionPlan)
        async with asyncio.timeout(PHASE_S):
            while (info := await http.get(path, TopicInfo)).repartition is not None:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.05)
        assert info.partitions == to, info.given_up


async def moved_across(
    seed: int, counts: Sequence[int], events: int
) -> tuple[Reader, Reader, list[Reader]]:
    everything, even, shares = Reader(), Reader(), [Reader(), Reader()]
    first_count, *others = counts
    async with running(seed) as cluster:
        await cluster.create_topic(cluster.gateways[0].url, TOPIC, first_count)
        first, second = (gateway.url for gateway in cluster.gateways)
        async with (
            cluster.subscriber(first, TOPIC) as one,
            cluster.subscriber(second, TOPIC, where="number % 2 == 0") as two,
            cluster.consumer(first, TOPIC, "packers") as three,
            cluster.consumer(second, TOPIC, "packers") as four,
            asyncio.timeout(600),
            asyncio.TaskGroup() as reading,
        ):
            reading.create_task(everything.read(one, lambda: len(everything) == events))
            reading.create_task(even.read(two, lambda: len(even) == events // 2))
            for share, consumer in zip(shares, (three, four), strict=True):
                reading.create_task(_share(share, consumer, shares, events))
            await asyncio.sleep(SHARED_S)
            sending = reading.create_task(send(cluster, events))
            await _repartition_all(cluster, others)
            await sending
    return everything, even, shares


@pytest.mark.parametrize("counts", [(4, 8), (4, 6, 3), (8, 1), (1, 4), (3, 5, 3)])
def test_every_key_stays_in_order(counts: Sequence[int]) -> None:
    events = 3_000
    everything, even, shares = run_virtual(moved_across(1, counts, events))
    assert everything.numbers == wanted(events)
    assert even.numbers == wanted(events, lambda number: number % 2 == 0)
    together = {key: numbers for share in shares for key, numbers in share.numbers.items()}
    assert together == wanted(events)
    assert sum(map(len, shares)) == events, "no key has two consumers"


async def failed_once(counts: Sequence[int], events: int) -> dict[str, list[int]]:
    """What a consumer processes of each key that wants every tenth again a second later."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    failed: set[str] = set()
    first_count, *others = counts
    async with running(1) as cluster:
        url = cluster.gateways[0].url
        await cluster.create_topic(url, TOPIC, first_count)
        async with (
            cluster.consumer(url, TOPIC, "packers", acks="manual") as consumer,
            asyncio.timeout(600),
            asyncio.TaskGroup() as sending,
        ):
            sending.create_task(send(cluster, events))
            sending.create_task(_repartition_all(cluster, others))
            done = 0
            while done < events:
                item = await anext(consumer)
                assert isinstance(item, Event)
                if item.document["number"] % 10 == 0 and item.event_id not in failed:
                    failed.add(item.event_id)
                    await consumer.nack(item, 1.0)
                else:
                    numbers[item.key or ""].append(item.document["number"])
                    await consumer.acknowledge(item)
                    done += 1
    return numbers


async def _repartition_all(cluster: MemoryCluster, counts: Sequence[int]) -> None:
    for to in counts:
        await asyncio.sleep(0.3)
        await repartition(cluster, to)


def test_what_a_consumer_wants_later_is_not_passed_by_its_key_in_the_next_version() -> None:
    assert run_virtual(failed_once((1, 3, 2), 1_500)) == wanted(1_500)


async def taken_over(counts: Sequence[int], events: int) -> dict[str, list[int]]:
    """What two consumers process of each key, the second after the first, who never acknowledges
    the very first event."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    first_count, to = counts
    async with running(1) as cluster, asyncio.timeout(600):
        url = cluster.gateways[0].url
        await cluster.create_topic(url, TOPIC, first_count)
        async with cluster.consumer(url, TOPIC, "packers", acks="manual") as consumer:
            await send(cluster, events)
            for done in range(2 * events):
                if done == events:
                    await repartition(cluster, to)
                    await send(cluster, events, first=events)
                item = await anext(consumer)
                assert isinstance(item, Event)
                numbers[item.key or ""].append(item.document["number"])
                if done:
                    await consumer.acknowledge(item)
            await asyncio.sleep(SAVED_S)
        async with cluster.consumer(url, TOPIC, "packers") as consumer:
            with contextlib.suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(PHASE_S):
                        item = await anext(consumer)
                    assert isinstance(item, Event)
                    numbers[item.key or ""].append(item.document["number"])
    return numbers


def test_whoever_takes_over_ends_with_the_newest_event_of_each_key() -> None:
    """What was not acknowledged comes again with all behind it, the next version's events too."""
    processed = run_virtual(taken_over((1, 3), 80))
    assert {key: some[-1] for key, some in processed.items()} == {
        key: max(some) for key, some in processed.items()
    }
    assert any(len(some) > len(set(some)) for some in processed.values()), "something came again"
