"""The clients' part of `bench rebalance`: how long until everybody routes by a new topology.

The clock starts with the request that changes the topology (a topic is created) and stops when the
coordinator says that the adoption floor of another topic, which all the clients route, has reached
the new generation. The baseline is a server that pushes as much to as many clients and decides
nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median

import msgspec

from headgate.bench.rebalance.bare import Heard, Listen, Listening, Push
from headgate.bench.rebalance.clients import Await, Connect, Done
from headgate.bench.rebalance.orders import workers
from headgate.bench.rebalance.stage import Stage
from headgate.bench.result import Failed, Say
from headgate.bench.worker import Worker, worker
from headgate.client.http import HttpClient, topic_path
from headgate.model.api import CreateTopic, TopicInfo, TopologyAnswer
from headgate.model.topology import Topology
from headgate.tasks import Helpers

TOPIC = "routed"
PARTITIONS = 4
PROCESSES = 2
ROUNDS = 3
LOOK_EVERY_S = 0.02
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Floor:
    """Medians over the changes; `heard_s` is when the last client had acknowledged."""

    clients: int
    connect_s: float
    floor_s: float
    heard_s: float
    bare_s: float


async def measure_floor(stage: Stage, clients: int, say: Say) -> Floor:
    async with HttpClient(stage.coordinator_url, timeout_s=TIMEOUT_S) as http:
        await _create(http, TOPIC, PARTITIONS)
        say(f"connecting {clients} clients")
        began_s = time.monotonic()
        async with _connected(stage.clients_connect, clients) as crowds:
            connect_s = time.monotonic() - began_s
            say("changing the topology")
            changes = [await _change(http, f"change-{n}", crowds) for n in range(ROUNDS)]
        topology = (await http.get("/v1/topology", TopologyAnswer)).topology
        for topic in topology.topics:
            await http.delete(topic_path(topic.name))
    say("measuring bare streams")
    return Floor(
        clients=clients,
        connect_s=connect_s,
        floor_s=median(floor_s for floor_s, _ in changes),
        heard_s=median(heard_s for _, heard_s in changes),
        bare_s=median(await _bare(topology, clients)),
    )


@asynccontextmanager
async def _connected(address: str, clients: int) -> AsyncIterator[Sequence[Worker]]:
    async with workers("headgate.bench.rebalance.clients", PROCESSES) as crowds:
        order = Connect(address, TOPIC, clients // PROCESSES, TIMEOUT_S)
        _check(await asyncio.gather(*(crowd.ask(order, Done) for crowd in crowds)))
        yield crowds


def _check(answers: Sequence[Done]) -> None:
    for done in answers:
        if done.lost:
            raise Failed(f"a client lost its stream: {done.lost}")
        if done.behind:
            raise Failed(f"{done.behind} clients acknowledged nothing within {TIMEOUT_S:g} s")


async def _change(http: HttpClient, name: str, crowds: Sequence[Worker]) -> tuple[float, float]:
    """Seconds until the floor has moved, and until every client has acknowledged."""
    before = await http.get("/v1/topology", TopologyAnswer)
    generation = before.topology.generation + 1
    began_s = time.monotonic()
    async with Helpers() as helpers:
        order = Await(generation, TIMEOUT_S)
        hearing = [helpers.start(crowd.ask(order, Done)) for crowd in crowds]
        await _create(http, name, 1)
        # Asking costs the coordinator time, and the floor can't have moved before they all heard.
        heard = await asyncio.gather(*hearing)
    _check(heard)
    await _until_adopted(http, generation)
    floor_s = time.monotonic() - began_s
    return floor_s, max(done.at_s for done in heard) - began_s


async def _until_adopted(http: HttpClient, generation: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            topic = await http.get(topic_path(TOPIC), TopicInfo)
            if topic.adopted >= generation:
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def _bare(topology: Topology, clients: int) -> list[float]:
    async with worker("headgate.bench.rebalance.bare") as bare:
        listening = await bare.ask(Listen(topology), Listening)
        async with _connected(listening.address, clients):
            times_s = []
            for number in range(1, ROUNDS + 1):
                other = msgspec.structs.replace(topology, generation=topology.generation + number)
                times_s.append((await bare.ask(Push(other, TIMEOUT_S), Heard)).seconds)
            return times_s


async def _create(http: HttpClient, name: str, partitions: int) -> None:
    wanted = CreateTopic(name, partitions, "keyed")
    await http.post("/v1/topics", wanted, TopicInfo, timeout_s=TIMEOUT_S)
