"""The producer among several ingest nodes, each a real HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from headgate.client.producer import Producer, ProducerOptions
from headgate.client.producing.outgoing import OutgoingEvent, Receipt
from headgate.decide.produce.homes import home
from headgate.decide.produce.placement import partition_of
from headgate.errors import (
    Forbidden,
    HeadgateError,
    InvalidRequest,
    NotNow,
    OutcomeUnknown,
    StaleVersion,
    Unauthorized,
    UnknownTopic,
)
from headgate.model.api import ProduceAnswer, ProduceEvent, TopologyAnswer
from headgate.model.event import PartitionRef
from headgate.model.topology import Node, Owner, Placement, Topic, Topology
from tests.client.producing.produce_server import ProduceServer, produce_server

QUICK = ProducerOptions(backoff_first_s=0.001, backoff_max_s=0.01)
KEYS = [f"k{number}" for number in range(40)]


@dataclass
class Cluster:
    public: ProduceServer
    a: ProduceServer
    b: ProduceServer

    def publish(
        self,
        generation: int,
        *owners: ProduceServer,
        version: int = 1,
        placement: Placement = "keyed",
    ) -> None:
        self.public.topology = TopologyAnswer(
            Topology(
                generation,
                (Topic("t", len(owners), placement, version),),
                (Node("a", "ingest", self.a.url), Node("b", "ingest", self.b.url)),
                tuple(
                    Owner(PartitionRef("t", number), "a" if owner is self.a else "b", 1)
                    for number, owner in enumerate(owners)
                ),
            )
        )
        for server in (self.public, self.a, self.b):
            server.add_topic("t", len(owners))

    def refuse(self, server: ProduceServer, version: int, *owners: ProduceServer) -> None:
        """`server` redirects every produce to `owners`."""

        def script(_events: list[ProduceEvent]) -> ProduceAnswer | None:
            urls = {str(number): owner.url for number, owner in enumerate(owners)}
            raise StaleVersion("stale", version=version, partitions=len(owners), owners=urls)

        server.script = script


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(produce_server()) for _ in range(3)]
        yield Cluster(*servers)


def keys_at(server: ProduceServer) -> set[str]:
    return {event.key or "" for events in server.requests for event in events}


def keys_of(partitions: set[int], count: int) -> set[str]:
    return {key for key in KEYS if partition_of(key, collection="", count=count) in partitions}


async def test_each_event_goes_to_the_owner_of_its_key_with_the_version(cluster: Cluster) -> None:
    cluster.publish(1, cluster.a, cluster.b, cluster.a, version=4)
    async with Producer(cluster.public.url) as producer:
        outcomes = await producer.send_many("t", [OutgoingEvent({}, key=key) for key in KEYS])
    assert all(isinstance(outcome, Receipt) for outcome in outcomes)
    assert keys_at(cluster.a) == keys_of({0, 2}, 3)
    assert keys_at(cluster.b) == keys_of({1}, 3)
    assert set(cluster.a.versions + cluster.b.versions) == {4}
    assert cluster.public.requests == []


async def test_receipts_are_in_the_order_of_the_call_also_from_several_nodes(
    cluster: Cluster,
) -> None:
    cluster.publish(1, cluster.a, cluster.b)
    async with Producer(cluster.public.url) as producer:
        events = [OutgoingEvent({}, key=key, event_id=f"id-{key}") for key in KEYS]
        outcomes = await producer.send_many("t", events)
    assert [one.event_id for one in outcomes if isinstance(one, Receipt)] == [
        f"id-{key}" for key in KEYS
    ]


async def test_a_hundred_sends_at_once_fetch_the_topology_once(cluster: Cluster) -> None:
    cluster.publish(1, cluster.a, cluster.b)
    async with Producer(cluster.public.url) as producer:
        await asyncio.gather(*(producer.send("t", {}, key=str(n)) for n in range(100)))
    assert cluster.public.topology_requests == 1


async def test_a_redirected_event_is_hashed_anew_and_goes_to_the_new_owner(
    cluster: Cluster,
) -> None:
    cluster.publish(1, cluster.a, version=1)
    cluster.refuse(cluster.a, 2, cluster.b, cluster.b, cluster.b)
    cluster.b.add_topic("t", 3)
    async with Producer(cluster.public.url, QUICK) as producer:
        await producer.send_many("t", [OutgoingEvent({}, key=key) for key in KEYS])
        await producer.send("t", {}, key="later")
    assert (len(cluster.a.requests), set(cluster.b.versions)) == (1, {2})
    assert keys_at(cluster.b) == {*KEYS, "later"}
    assert cluster.public.requests == []


async def test_an_owner_that_names_itself_again_is_gone_around(cluster: Cluster) -> None:
    cluster.publish(1, cluster.a)
    cluster.refuse(cluster.a, 1, cluster.a)
    async with Producer(cluster.public.url, QUICK) as producer:
        await producer.send("t", {}, key="k")
    assert (len(cluster.a.requests), cluster.public.versions) == (1, [None])


async def test_redirects_are_bounded(cluster: Cluster) -> None:
    cluster.publish(1, cluster.a)
    version = 1

    def onward(owner: ProduceServer) -> None:
        def script(_events: list[ProduceEvent]) -> ProduceAnswer | None:
            nonlocal version
            version += 1
            raise StaleVersion("no", version=version, partitions=1, owners={"0": owner.url})

        (cluster.a if owner is cluster.b else cluster.b).script = script

    onward(cluster.a)
    onward(cluster.b)
    options = ProducerOptions(
        hops=3, deadline_s=1.0, backoff_first_s=0.2, backoff_max_s=0.2, linger_s=0.0
    )
    async with Producer(cluster.public.url, options) as producer:
        with pytest.raises(NotNow, match=r"from node to node \d+ times"):
            await producer.send("t", {}, key="k")
    assert len(cluster.a.requests) + len(cluster.b.requests) < 16, "not over and over at once"


async def test_nodes_that_take_each_other_for_the_owner_are_asked_until_one_of_them_is(
    cluster: Cluster,
) -> None:
    """As while a partition changes hands, and the new owner is slow to hear of it."""
    cluster.publish(1, cluster.a)
    left = iter(range(1, 20))

    def onward(owner: ProduceServer) -> Callable[[list[ProduceEvent]], ProduceAnswer | None]:
        def script(_events: list[ProduceEvent]) -> ProduceAnswer | None:
            for number in left:
                raise StaleVersion("no", version=number, partitions=1, owners={"0": owner.url})
            return None

        return script

    cluster.a.script, cluster.b.script = onward(cluster.b), onward(cluster.a)
    options = ProducerOptions(hops=3, backoff_first_s=0.001, backoff_max_s=0.002)
    async with Producer(cluster.public.url, options) as producer:
        receipt = await producer.send("t", {}, key="k")
    assert receipt.partition == 0


async def test_an_owner_that_died_is_gone_around_through_the_public_address(
    cluster: Cluster, unused_tcp_port: int
) -> None:
    cluster.a.url = f"http://127.0.0.1:{unused_tcp_port}"
    cluster.publish(1, cluster.a)
    async with Producer(cluster.public.url, QUICK) as producer:
        await producer.send("t", {}, key="k")
        await producer.send("t", {}, key="k")
    assert cluster.public.versions == [None, None]


@pytest.mark.parametrize(
    "topology", [None, TopologyAnswer(Topology(3))], ids=["cold cache", "standalone"]
)
async def test_without_owners_everything_goes_to_the_public_address(
    cluster: Cluster, topology: TopologyAnswer | None
) -> None:
    cluster.public.topology = topology
    cluster.public.add_topic("t", 1)
    async with Producer(cluster.public.url) as producer:
        receipt = await producer.send("t", {}, key="k")
    assert (receipt.partition, cluster.public.versions) == (0, [None])


async def test_opportunistic_requests_go_whole_to_nodes_that_own_partitions(
    cluster: Cluster,
) -> None:
    cluster.publish(1, cluster.a, cluster.b, placement="opportunistic")
    async with Producer(cluster.public.url) as producer:
        await producer.send_many("t", [OutgoingEvent({"n": n}) for n in range(20)])
    for node in (cluster.a, cluster.b):
        assert node.written("t")
        for event in node.written("t"):
            assert home([cluster.a.url, cluster.b.url], event.event_id or "") == node.url
    assert set(cluster.a.versions + cluster.b.versions) == {None}


async def test_an_unknown_outcome_is_asked_for_again_at_the_same_node(cluster: Cluster) -> None:
    cluster.publish(1, cluster.a, cluster.b, placement="opportunistic")
    failures = [OutcomeUnknown("who knows", partition=0) for _ in range(3)]

    def script(_events: list[ProduceEvent]) -> ProduceAnswer | None:
        if failures:
            raise failures.pop()
        return None

    cluster.a.script = cluster.b.script = script
    async with Producer(cluster.public.url, QUICK) as producer:
        receipt = await producer.send("t", {})
    asked, other = sorted((cluster.a, cluster.b), key=lambda node: -len(node.requests))
    assert [[event.event_id for event in events] for events in asked.requests] == [
        [receipt.event_id]
    ] * 4
    assert (other.requests, cluster.public.requests) == ([], [])


async def test_what_may_have_been_written_is_not_said_to_have_failed(cluster: Cluster) -> None:
    cluster.publish(1, cluster.a)
    answers = [OutcomeUnknown("who knows", partition=0), *[NotNow("no")] * 1_000]

    def script(_events: list[ProduceEvent]) -> ProduceAnswer | None:
        raise answers.pop(0)

    cluster.a.script = script
    options = ProducerOptions(deadline_s=0.2, backoff_first_s=0.01, backoff_max_s=0.02)
    async with Producer(cluster.public.url, options) as producer:
        # In what the first answer said where the machine leaves no time for a second one.
        with pytest.raises(OutcomeUnknown, match=r"may or may not be in the log|who knows"):
            await producer.send("t", {}, key="k")


@pytest.mark.parametrize(
    "refusal",
    [
        Unauthorized("the token is not valid any more"),
        Forbidden("you may not any more"),
        UnknownTopic("there is no topic any more"),
    ],
    ids=lambda refusal: str(refusal.code),
)
async def test_what_may_have_been_written_is_not_undone_by_what_changed_since(
    cluster: Cluster, refusal: HeadgateError
) -> None:
    cluster.publish(1, cluster.a)
    answers: list[HeadgateError] = [OutcomeUnknown("who knows", partition=0), *[refusal] * 10]

    def script(_events: list[ProduceEvent]) -> ProduceAnswer | None:
        raise answers.pop(0)

    cluster.a.script = cluster.public.script = script
    async with Producer(cluster.public.url, QUICK) as producer:
        with pytest.raises(OutcomeUnknown, match="any more"):
            await producer.send("t", {}, key="k")


async def test_a_cancelled_call_is_not_tried_again(cluster: Cluster) -> None:
    cluster.publish(1, cluster.a)
    asked = asyncio.Event()

    def script(events: list[ProduceEvent]) -> ProduceAnswer | None:
        if events[0].key == "doomed":
            asked.set()
            raise NotNow("later")
        return None

    cluster.a.script = script
    options = ProducerOptions(backoff_first_s=0.01, backoff_max_s=0.02, outstanding_events=1)
    async with Producer(cluster.public.url, options) as producer:
        doomed = asyncio.create_task(producer.send("t", {}, key="doomed"))
        await asyncio.wait_for(asked.wait(), 30)
        doomed.cancel()
        await asyncio.wait_for(producer.send("t", {}, key="next"), 30)
    assert [event.key for event in cluster.a.written("t")] == ["next"]


async def test_a_key_that_can_not_be_hashed_fails_nobody_else(cluster: Cluster) -> None:
    cluster.publish(1, cluster.a, cluster.b)
    async with Producer(cluster.public.url) as producer:
        keys = ["before", "half \ud800", "after"]
        before, bad, after = await asyncio.gather(
            *(producer.send("t", {}, key=key) for key in keys), return_exceptions=True
        )
    assert isinstance(before, Receipt)
    assert isinstance(bad, InvalidRequest)
    assert isinstance(after, Receipt)
