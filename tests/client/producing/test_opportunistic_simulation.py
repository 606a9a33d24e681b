"""Producers on an opportunistic topic, with nodes that change hands and answers that get lost.

The nodes do what docs/produce.md says, and no more: one finds a request that is repeated as it was,
and whatever is in a partition that it has taken over. What must hold is that nothing is there twice
and nothing acknowledged is missing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from headgate.adapters.memory.machine import ScriptedMachine
from headgate.client.producer import Producer, ProducerOptions
from headgate.client.producing.connections import Connections
from headgate.client.producing.outgoing import OutgoingEvent, Receipt
from headgate.client.producing.route import Route
from headgate.decide.produce.homes import home
from headgate.decide.produce.passing_on import by_request
from headgate.errors import NotNow, OutcomeUnknown, PeerUnreachable
from headgate.model.api import ProduceAnswer, ProduceRequest, ProduceResult, TopologyAnswer
from headgate.model.event import PartitionRef
from headgate.model.topology import Node, Owner, Topic, Topology
from tests.virtual_time import run_virtual

NODES = "abc"
CALLS = 60


class Nodes:
    """Each always has a partition of its own; the others change hands."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.partitions: list[list[str]] = [[] for _ in range(6)]
        self.owners = [NODES[number % 3] for number in range(6)]
        self.has_moved: set[int] = set()
        self.generation = 1
        self.lost = 0
        self.silent = ""
        """A node that takes requests, and never answers."""
        self.unheard: list[list[str]] = []
        """What was sent to it."""
        self.dead = ""
        self._first_ids: dict[str, dict[str, int]] = {name: {} for name in NODES}
        self._turn = 0

    def change(self) -> None:
        self.generation += 1
        for number in (3, 4, 5):
            owner = self.random.choice(NODES)
            if owner != self.owners[number]:
                self.owners[number] = owner
                self.has_moved.add(number)

    def topology(self) -> Topology:
        return Topology(
            self.generation,
            (Topic("t", len(self.owners), "opportunistic"),),
            tuple(Node(name, "ingest", f"http://{name}") for name in NODES),
            tuple(Owner(PartitionRef("t", n), name, 1) for n, name in enumerate(self.owners)),
        )

    async def produce(self, name: str, ids: list[str]) -> ProduceAnswer:
        await asyncio.sleep(self.random.choice((0.001, 0.01, 0.05, 0.4)))
        if self.random.random() < 0.05:
            raise NotNow("overloaded")
        results = self._write(name, ids)
        if self.random.random() < 0.1:
            self.lost += 1
            raise PeerUnreachable("the connection broke", no_answer="unknown")
        return ProduceAnswer(results)

    def _write(self, name: str, ids: list[str]) -> list[ProduceResult]:
        known = self._first_ids[name].get(ids[0])
        if known is not None and self.owners[known] != name:
            return self._write(self.owners[known], ids)
        own = [number for number, owner in enumerate(self.owners) if owner == name]
        looked_at = {*(self.has_moved & {*own}), *(() if known is None else (known,))}
        places = {one: n for n in looked_at for one in ids if one in self.partitions[n]}
        self._turn += 1
        chosen = own[self._turn % len(own)]
        for one in ids:
            if one not in places:
                places[one] = chosen
                self.partitions[chosen].append(one)
        self._first_ids[name][ids[0]] = places[ids[0]]
        return [ProduceResult(one, places[one], 1) for one in ids]


class Client:
    """A node, or the public address, which passes requests on as a gateway does."""

    def __init__(self, nodes: Nodes, name: str = "") -> None:
        self.url = f"http://{name}"
        self._nodes, self._name = nodes, name

    async def get(self, _path: str, _answer: type) -> TopologyAnswer:
        return TopologyAnswer(self._nodes.topology())

    async def post(
        self, _path: str, body: ProduceRequest, _answer: type, *, timeout_s: float, **_: float
    ) -> ProduceAnswer:
        ids = [event.event_id or "" for event in body.events]
        alive = [f"http://{node}" for node in NODES if node != self._nodes.dead]
        home_url = by_request(alive, msgspec.json.encode(body), 0)[0]
        name = self._name or home_url.removeprefix("http://")
        if name == self._nodes.dead:
            raise PeerUnreachable("nothing answers", no_answer="not sent")
        if name == self._nodes.silent:
            self._nodes.unheard.append(ids)
            await asyncio.sleep(timeout_s)
            raise OutcomeUnknown("no answer", no_answer="unknown")
        return await self._nodes.produce(name, ids)

    async def close(self) -> None:
        pass


class ToNodes(Connections):
    def __init__(self, nodes: Nodes) -> None:
        super().__init__("http://127.0.0.1:1")
        self._nodes = nodes
        public: Any = Client(nodes)
        self.public = public

    @asynccontextmanager
    async def to(self, url: str) -> AsyncIterator[Any]:
        yield Client(self._nodes, url.removeprefix("http://"))


def route_to(nodes: Nodes) -> Route:
    route = Route("http://127.0.0.1:1", machine=ScriptedMachine())
    route.connections = ToNodes(nodes)
    return route


async def simulate(seed: int) -> Nodes:
    nodes = Nodes(seed)
    route = route_to(nodes)
    options = ProducerOptions(batch_events=8, linger_s=0.001, deadline_s=120.0)

    async def changes() -> None:
        for _ in range(10):
            await asyncio.sleep(nodes.random.uniform(0, 0.3))
            nodes.change()
            await route._apply(nodes.topology())

    async with Producer("", options, route=route, machine=ScriptedMachine()) as producer:
        changing = asyncio.create_task(changes())
        sending = []
        for number in range(CALLS):
            ids = [f"{number}-{one}" for one in range(nodes.random.choice((1, 3, 5)))]
            events = [OutgoingEvent({}, event_id=one) for one in ids]
            sending.append(asyncio.create_task(producer.send_many("t", events)))
            await asyncio.sleep(nodes.random.uniform(0, 0.01))
        outcomes = [outcome for call in sending for outcome in await call]
        await changing
    assert all(isinstance(outcome, Receipt) for outcome in outcomes), outcomes
    return nodes


@pytest.mark.parametrize("seed", range(8))
def test_what_is_sent_again_is_not_written_twice(seed: int) -> None:
    nodes = run_virtual(simulate(seed))
    written = [one for partition in nodes.partitions for one in partition]
    assert sorted(written) == sorted(set(written))


def test_the_simulation_loses_answers() -> None:
    """Otherwise it would show nothing."""
    assert all(run_virtual(simulate(seed)).lost for seed in range(3))


def test_nobody_travels_with_a_request_that_one_node_alone_knows() -> None:
    """One that is silent has some of the events: each request to it is repeated as it was, nothing
    that it isn't the home of waits, and when it speaks again all is there."""

    async def main() -> None:
        nodes = Nodes(1)
        options = ProducerOptions(linger_s=0.0, request_timeout_s=1.0, deadline_s=20.0)
        route = route_to(nodes)
        async with Producer("", options, route=route, machine=ScriptedMachine()) as producer:
            await producer.send("t", {})
            nodes.silent = "a"
            sends = {}
            for number in range(30):
                event_id = f"e{number}"
                sends[event_id] = asyncio.create_task(producer.send("t", {}, event_id=event_id))
                await asyncio.sleep(0.001)
            await asyncio.sleep(10.0)
            assert {one for one in sends if home_of(one) == "a"} == {
                one for one, send in sends.items() if not send.done()
            }
            requests = {tuple(ids) for ids in nodes.unheard}
            assert 1 < len(requests) < len(nodes.unheard)
            assert len({one for ids in requests for one in ids}) == sum(map(len, requests))
            nodes.silent = ""
            assert all([isinstance(await one, Receipt) for one in sends.values()])
        written = [one for partition in nodes.partitions for one in partition]
        assert len(written) == len(set(written)) == 31

    run_virtual(main())


def test_a_request_that_only_a_dead_node_knew_goes_to_whoever_takes_its_place() -> None:
    async def main() -> None:
        nodes = Nodes(1)
        nodes.lost = 0
        options = ProducerOptions(request_timeout_s=1.0, deadline_s=30.0)
        route = route_to(nodes)
        async with Producer("", options, route=route, machine=ScriptedMachine()) as producer:
            await producer.send("t", {})
            nodes.silent = "a"
            ids = [one for one in (f"e{n}" for n in range(99)) if home_of(one) == "a"]
            send = asyncio.create_task(
                producer.send_many("t", [OutgoingEvent({}, event_id=one) for one in ids])
            )
            await asyncio.sleep(2.0)
            nodes.silent, nodes.dead = "", "a"
            assert all(isinstance(one, Receipt) for one in await send)
        assert ids

    run_virtual(main())


def home_of(event_id: str) -> str:
    return home([f"http://{name}" for name in NODES], event_id).removeprefix("http://")
