"""A producer in a simulated cluster that repartitions, moves owners, loses requests and answers.
Its nodes may hear of that late, and send events to each other, or know of no owner, meanwhile.

Virtual time and a seed: what must hold is that nothing acknowledged is missing, nothing is there
twice, and the events of a key are in the log in the order they were sent.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from headgate.client.producer import Producer, ProducerOptions
from headgate.client.producing.connections import Connections
from headgate.client.producing.outgoing import OutgoingEvent, Receipt
from headgate.client.producing.route import Route
from headgate.decide.produce.placement import partition_of
from headgate.errors import HeadgateError, NotNow, OutcomeUnknown, PeerUnreachable, StaleVersion
from headgate.model.api import (
    ErrorBody,
    ProduceAnswer,
    ProduceEvent,
    ProduceRequest,
    ProduceResult,
    TopologyAnswer,
)
from tests.decide.produce.test_routing_cache import topology
from tests.virtual_time import run_virtual

NODES = "abc"
KEYS = 6
EVENTS = 150


class SimulatedCluster:
    """One keyed topic `t`; a log that finds an idempotency key in whatever partition it is. Nodes
    hear of a change up to `late_s` after it."""

    def __init__(self, seed: int, *, late_s: float) -> None:
        self.random = random.Random(seed)
        self.late_s = late_s
        self.generation = 1
        self.version = 1
        self.owners = ["a", "b", "c"]
        self.log: list[ProduceEvent] = []
        self.places: dict[str, tuple[int, int]] = {}
        self.views = {node: View(1, self.version, tuple(self.owners)) for node in ["", *NODES]}
        self.faults = True
        self.redirects = 0
        self.set_back = 0

    def change(self) -> None:
        """Another count, or other owners."""
        self.generation += 1
        if self.random.random() < 0.6:
            self.version += 1
            self.owners *= 0
        count = len(self.owners) or self.random.randint(1, 5)
        self.owners = [self.random.choice(NODES) for _ in range(count)]
        view = View(self.generation, self.version, tuple(self.owners))
        for node in self.views:
            after_s = self.random.uniform(0, self.late_s) if node else 0.0
            asyncio.get_running_loop().call_later(after_s, self._hears, node, view)

    def _hears(self, node: str, view: View) -> None:
        self.views[node] = max(view, self.views[node], key=lambda one: one.generation)

    def topology(self) -> TopologyAnswer:
        return TopologyAnswer(topology(self.generation, self.owners, version=self.version))

    async def produce(self, node: str, request: ProduceRequest) -> ProduceAnswer:
        """`node` is "" for the public address, which forwards to the owners."""
        await self._travel(NotNow("overloaded"), PeerUnreachable("refused", no_answer="not sent"))
        view = self.views[node]
        if node and request.version is not None and request.version != view.version:
            if request.version > view.version:
                raise NotNow("this node has not heard of it yet")
            self.redirects += 1
            raise view.stale()
        results = [self._result(node, view, event) for event in request.events]
        await self._travel(
            OutcomeUnknown("who knows"), PeerUnreachable("broken", no_answer="unknown")
        )
        return ProduceAnswer(results)

    async def _travel(self, *failures: HeadgateError) -> None:
        await asyncio.sleep(self.random.uniform(0, 0.01))
        if self.faults and self.random.random() < 0.15:
            raise self.random.choice(failures)

    def _result(self, node: str, view: View, event: ProduceEvent) -> ProduceResult:
        """A part for one partition is taken or not; `unheard` is the node's that owns it, but
        doesn't know, or the other way round."""
        assert event.event_id is not None
        key = event.key or ""
        number = partition_of(key, collection="", count=len(self.owners))
        seen = partition_of(key, collection="", count=len(view.owners))
        if event.event_id in self.places:
            return ProduceResult(event.event_id, *self.places[event.event_id])
        if node and view.owners[seen] != node:
            self.set_back += self.owners[number] == node
            return ProduceResult(event.event_id, error=view.error())
        is_late = view.version != self.version or (node and self.owners[number] != node)
        if is_late or number in self._failing():
            return ProduceResult(event.event_id, error=ErrorBody("unavailable", "not now"))
        self.log.append(event)
        self.places[event.event_id] = (number, len(self.log))
        if self.faults and self.random.random() < 0.02:
            return ProduceResult(event.event_id, error=ErrorBody("outcome_unknown", "who knows"))
        return ProduceResult(event.event_id, *self.places[event.event_id])

    def _failing(self) -> set[int]:
        """The same ones for all that is asked in a moment, so that no key overtakes itself."""
        moment = random.Random(f"{asyncio.get_running_loop().time()}")
        return {n for n in range(len(self.owners)) if self.faults and moment.random() < 0.1}


@dataclass(frozen=True)
class View:
    """What a node knows of the topic."""

    generation: int
    version: int
    owners: tuple[str, ...]

    def stale(self) -> StaleVersion:
        owners = {str(number): f"http://{node}" for number, node in enumerate(self.owners)}
        return StaleVersion(
            "stale", version=self.version, partitions=len(self.owners), owners=owners
        )

    def error(self) -> ErrorBody:
        return ErrorBody("stale_version", "moved", dict(self.stale().details))


class SimulatedClient:
    def __init__(self, cluster: SimulatedCluster, node: str) -> None:
        self.url = f"http://{node}"
        self._cluster = cluster
        self._node = node

    async def get(self, _path: str, _answer: type) -> TopologyAnswer:
        await asyncio.sleep(self._cluster.random.uniform(0, 0.05))
        if self._cluster.faults and self._cluster.random.random() < 0.5:
            raise NotNow("no coordinator")
        return self._cluster.topology()

    async def post(
        self, _path: str, body: ProduceRequest, _answer: type, *, timeout_s: float, **_: float
    ) -> ProduceAnswer:
        return await self._cluster.produce(self._node, body)

    async def close(self) -> None:
        pass


class SimulatedConnections(Connections):
    """Leads to the simulated nodes."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__("http://127.0.0.1:1")
        self._cluster = cluster
        public: Any = SimulatedClient(cluster, "")
        self.public = public

    @asynccontextmanager
    async def to(self, url: str) -> AsyncIterator[Any]:
        yield SimulatedClient(self._cluster, url.removeprefix("http://"))


async def simulate(seed: int, late_s: float = 0.0) -> SimulatedCluster:
    cluster = SimulatedCluster(seed, late_s=late_s)
    route = Route("http://127.0.0.1:1")
    route.connections = SimulatedConnections(cluster)
    # Calls that are too long for one request, and wait for room more than once.
    options = ProducerOptions(
        batch_events=8, linger_s=0.001, deadline_s=120.0, hops=2, outstanding_events=20
    )

    async def changes() -> None:
        for _ in range(12):
            await asyncio.sleep(cluster.random.uniform(0, 0.15))
            cluster.change()
            if cluster.random.random() < 0.7:
                await asyncio.sleep(cluster.random.uniform(0, 0.02))
                await route._apply(cluster.topology().topology)
        cluster.faults = False

    async def send(producer: Producer, numbers: range) -> list[Any]:
        events = [OutgoingEvent({"n": n}, key=f"k{n % KEYS}") for n in numbers]
        return await producer.send_many("t", events)

    async with Producer("", options, route=route) as producer:
        changing = asyncio.create_task(changes())
        sending = []
        sent = 0
        while sent < EVENTS:
            numbers = range(sent, min(EVENTS, sent + cluster.random.choice((1, 5, 20))))
            sending.append(asyncio.create_task(send(producer, numbers)))
            sent = numbers.stop
            await asyncio.sleep(cluster.random.uniform(0, 0.02))
        outcomes = [outcome for call in sending for outcome in await call]
        await changing
        assert producer._outstanding_events == 0
    assert all(isinstance(outcome, Receipt) for outcome in outcomes), outcomes
    return cluster


@pytest.mark.parametrize("late_s", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(60))
def test_every_key_keeps_its_order_through_failures_and_repartitions(
    seed: int, late_s: float
) -> None:
    cluster = run_virtual(simulate(seed, late_s))
    numbers = [int(bytes(event.document)[5:-1]) for event in cluster.log]
    assert sorted(numbers) == list(range(EVENTS))
    for key in range(KEYS):
        assert [n for n in numbers if n % KEYS == key] == list(range(key, EVENTS, KEYS))


def test_the_simulation_redirects() -> None:
    """Otherwise it would show nothing; about one redirect in each of these."""
    assert any(run_virtual(simulate(seed)).redirects for seed in range(20))
    assert any(run_virtual(simulate(seed, 1.0)).set_back for seed in range(5))
