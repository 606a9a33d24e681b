"""The join part of `bench rebalance`: one more router while events flow through all partitions.

The newcomer's process is warm before the clock starts, as a router's Spark is before it connects.
The join lasts from its connection until its lane has read every partition of its share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headgate.bench.rebalance.orders import workers
from headgate.bench.rebalance.plan import fewest_moves
from headgate.bench.rebalance.router import Done, Join, Serve, Tell, Told
from headgate.bench.rebalance.stage import Stage
from headgate.bench.rebalance.traffic import Sample, Traffic, traffic
from headgate.bench.result import Failed, Say
from headgate.bench.worker import Worker
from headgate.client.http import HttpClient, topic_path
from headgate.errors import NotNow
from headgate.model.api import CreateTopic, Status, TopicInfo

TOPIC = "load"
START_TIMEOUT_S = 120.0
JOIN_TIMEOUT_S = 60.0
LOOK_EVERY_S = 0.25
AFTER_S = 2.0
"""How long events flow on after the join, so that whatever it has held up is seen."""


@dataclass(frozen=True, slots=True)
class JoinSizes:
    nodes: int
    partitions: int
    per_s: float
    warm_s: float
    before_s: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of deliveries, in order: in the minute before the join, and in the join."""

    before_ms: Sequence[float]
    unmoved_ms: Sequence[float]
    moved_ms: Sequence[float]

    @property
    def unmoved_delayed(self) -> int:
        """Later than the slowest in the minute before."""
        slowest_ms = max(self.before_ms, default=0.0)
        return sum(latency_ms > slowest_ms for latency_ms in self.unmoved_ms)


@dataclass(frozen=True, slots=True)
class Joined:
    """`pauses_ms` is, for each moved partition, from its lane being asked to let go until the
    newcomer's first read; `planned_s` is when the first lane was asked."""

    join_s: float
    planned_s: float
    moved: int
    minimum: int
    share: int
    pauses_ms: Sequence[float]
    latencies: Latencies


async def measure_join(stage: Stage, sizes: JoinSizes, say: Say) -> Joined:
    say(f"starting {sizes.nodes} routers without Spark, and one more that waits")
    async with (
        workers("headgate.bench.rebalance.router", sizes.nodes + 1) as routers,
        HttpClient(stage.coordinator_url, timeout_s=START_TIMEOUT_S) as http,
    ):
        # Answered when everything is imported.
        await asyncio.gather(*(router.ask(Tell(), Told) for router in routers))
        *first, newcomer = routers
        await asyncio.gather(
            *(one.ask(_join(stage, number), Done) for number, one in enumerate(first))
        )
        await _until_there(http, sizes.nodes)
        say(f"creating {sizes.partitions} partitions")
        await _create(http, sizes.partitions)
        least = sizes.partitions // sizes.nodes
        await asyncio.gather(*(one.ask(Serve(least, START_TIMEOUT_S), Done) for one in first))
        await _until_settled(http)
        async with traffic(stage.url, TOPIC, sizes.partitions, sizes.per_s) as flow:
            await asyncio.sleep(sizes.warm_s)
            return await _watched_join(stage, sizes, http, flow, first, newcomer, say)


async def _watched_join(
    stage: Stage,
    sizes: JoinSizes,
    http: HttpClient,
    flow: Traffic,
    first: Sequence[Worker],
    newcomer: Worker,
    say: Say,
) -> Joined:
    owners = await _owners(http)
    share = sizes.partitions // (sizes.nodes + 1)
    say(f"watching {sizes.per_s:g} events/s for {sizes.before_s:g} s")
    before_s = time.monotonic()
    await asyncio.sleep(sizes.before_s)
    say("another router joins")
    began = await newcomer.ask(_join(stage, sizes.nodes), Done)
    served = await newcomer.ask(Serve(share, JOIN_TIMEOUT_S), Done)
    await asyncio.sleep(AFTER_S)
    await flow.finish()
    await _until_settled(http)
    owners_after = await _owners(http)
    moved = {number for number, owner in owners_after.items() if owner != owners[number]}
    told = await newcomer.ask(Tell(), Told)
    let_go_s: dict[int, float] = {}
    for router in first:
        let_go_s |= (await router.ask(Tell(), Told)).let_go_s
    loads = [sum(owner == one for owner in owners.values()) for one in set(owners.values())]
    return Joined(
        join_s=served.at_s - began.at_s,
        planned_s=min(let_go_s.values(), default=began.at_s) - began.at_s,
        moved=len(moved),
        minimum=fewest_moves([*loads, 0]),
        share=sum(owner == _name(sizes.nodes) for owner in owners_after.values()),
        pauses_ms=pauses_ms(moved, let_go_s, told.first_read_s),
        latencies=latencies(
            flow.samples, moved, before_s=before_s, began_s=began.at_s, served_s=served.at_s
        ),
    )


def pauses_ms(
    moved: Iterable[int], let_go_s: Mapping[int, float], first_read_s: Mapping[int, float]
) -> list[float]:
    return sorted(
        (first_read_s[number] - let_go_s[number]) * 1_000
        for number in moved
        if number in let_go_s and number in first_read_s
    )


def latencies(
    samples: Iterable[Sample],
    moved: Collection[int],
    *,
    before_s: float,
    began_s: float,
    served_s: float,
) -> Latencies:
    """A delivery is in the join when any part of its way was."""
    samples = list(samples)
    joining = [s for s in samples if s.received_s >= began_s and s.appended_s <= served_s]
    return Latencies(
        sorted(s.latency_ms for s in samples if before_s <= s.received_s < began_s),
        sorted(s.latency_ms for s in joining if s.partition not in moved),
        sorted(s.latency_ms for s in joining if s.partition in moved),
    )


# --- the coordinator ----------------------------------------------------------------------------


def _name(number: int) -> str:
    return f"router-{number + 1:02}"


def _join(stage: Stage, number: int) -> Join:
    return Join(_name(number), stage.routers_connect, str(stage.data), stage.lane)


async def _create(http: HttpClient, partitions: int) -> None:
    """A thousand files take a while to make, longer than the coordinator waits for them."""
    try:
        wanted = CreateTopic(TOPIC, partitions, "keyed")
        await http.post("/v1/topics", wanted, TopicInfo)
    except NotNow:
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                status = await http.get("/v1/status", Status)
                [topic] = [topic for topic in status.topics if topic.name == TOPIC]
                if topic.adopted == status.generation:
                    return
                await asyncio.sleep(LOOK_EVERY_S)


async def _until_there(http: HttpClient, routers: int) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            status = await http.get("/v1/status", Status)
            if sum(node.role == "router" for node in status.nodes) == routers:
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def _until_settled(http: HttpClient) -> None:
    """No partition is on its way."""
    async with asyncio.timeout(JOIN_TIMEOUT_S):
        while True:
            status = await http.get("/v1/status", Status)
            if not status.moves:
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def _owners(http: HttpClient) -> dict[int, str]:
    topic = await http.get(topic_path(TOPIC), TopicInfo)
    owners = {each.partition: each.router for each in topic.details}
    if not all(owners.values()):
        raise Failed("some partitions have no router")
    return {number: owner for number, owner in owners.items() if owner}
