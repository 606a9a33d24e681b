"""A partition that takes nothing for a while, as one between two owners: its keys wait, in their
order and within their deadlines, and nobody else's."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any

import pytest

from headgate.adapters.memory.machine import ScriptedMachine
from headgate.client.producer import Producer, ProducerOptions
from headgate.client.producing.connections import Connections
from headgate.client.producing.exchange import ANSWER_MARGIN_S
from headgate.client.producing.outgoing import OutgoingEvent, Receipt
from headgate.client.producing.route import Route
from headgate.decide.produce.placement import partition_of
from headgate.errors import NotNow, OutcomeUnknown, Timeout
from headgate.model.api import (
    ErrorBody,
    ProduceAnswer,
    ProduceEvent,
    ProduceRequest,
    ProduceResult,
    TopologyAnswer,
)
from headgate.tasks import deaths
from tests.client.cancelling import Cancelled, Cancelling, cancel_everywhere
from tests.decide.produce.test_routing_cache import topology
from tests.virtual_time import run_virtual

PARTITIONS = 4
BETWEEN = 2
"""The partition that each of two nodes takes for the other's."""
OWNERS = ["a", "a", "a", "b"]
FOR_S = 6.0
TAKES_S = 0.01
KEYS = [f"k{number}" for number in range(4)]
Refusal = Callable[["Nodes", str], ErrorBody]


def partition_of_key(key: str) -> int:
    return partition_of(key, collection="", count=PARTITIONS)


STUCK = [key for key in KEYS if partition_of_key(key) == BETWEEN]
FREE = [key for key in KEYS if partition_of_key(key) != BETWEEN]


class Nodes:
    """Two of them, `a` and `b`, which take `TAKES_S` for a request."""

    def __init__(self, refusal: Refusal | None) -> None:
        self.refusal = refusal
        self.log: list[tuple[str, int]] = []
        self.written: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.requests = 0
        self.last_s = 0.0
        self.version = 1
        self.silent: set[str] = set()
        """Nodes that take a request and don't answer it."""
        self.knows_topology = 1_000
        """How often it is told; from then on nobody answers."""

    def topology(self) -> TopologyAnswer:
        return TopologyAnswer(topology(1, OWNERS))

    def answer(self, node: str, events: list[ProduceEvent]) -> list[ProduceResult]:
        self.requests += 1
        self.last_s = asyncio.get_running_loop().time()
        return [self._result(node, event) for event in events]

    def _result(self, node: str, event: ProduceEvent) -> ProduceResult:
        key, number = event.key or "", int(bytes(event.document)[5:-1])
        event_id = event.event_id or ""
        if partition_of_key(key) == BETWEEN and self.refusal is not None:
            self.asked[event_id] += 1
            return ProduceResult(event_id, error=self.refusal(self, node))
        if event_id not in self.written:
            self.written.add(event_id)
            self.log.append((key, number))
        return ProduceResult(event_id, 0, len(self.log))


def sent_on(nodes: Nodes, node: str) -> ErrorBody:
    """Where it comes from."""
    other = "b" if node == "a" else "a"
    owners = {str(number): f"http://{one}" for number, one in enumerate(OWNERS)}
    owners[str(BETWEEN)] = f"http://{other}"
    details = {"version": nodes.version, "partitions": PARTITIONS, "owners": owners}
    return ErrorBody("stale_version", "they don't belong here", details)


def unowned(_nodes: Nodes, _node: str) -> ErrorBody:
    return ErrorBody("unavailable", "partition 2 of t has no owner here yet; try again")


def full(_nodes: Nodes, _node: str) -> ErrorBody:
    return ErrorBody("overloaded", "too much waits for partition 2; try again")


KINDS = pytest.mark.parametrize("refusal", [sent_on, unowned, full], ids=lambda one: one.__name__)


class Client:
    def __init__(self, nodes: Nodes, url: str) -> None:
        self.url = url
        self._nodes = nodes
        self._node = url.removeprefix("http://")

    async def get(self, _path: str, _answer: type) -> TopologyAnswer:
        if not self._nodes.knows_topology:
            await asyncio.sleep(1_000.0)
        self._nodes.knows_topology -= 1
        return self._nodes.topology()

    async def post(
        self, _path: str, body: ProduceRequest, _answer: type, *, timeout_s: float, **_: Any
    ) -> ProduceAnswer:

        await asyncio.sleep(TAKES_S)
        if self._node in self._nodes.silent:
            await asyncio.sleep(timeout_s)
            raise Timeout("no answer", no_answer="unknown")
        return ProduceAnswer(self._nodes.answer(self._node, body.events))

    async def close(self) -> None: ...


class ToNodes(Connections):
    def __init__(self, nodes: Nodes) -> None:
        super().__init__("http://127.0.0.1:1")
        public: Any = Client(nodes, "http://a")
        self.public = public
        self._nodes = nodes

    @asynccontextmanager
    async def to(self, url: str) -> AsyncIterator[Any]:
        yield Client(self._nodes, url or "http://a")


def producer_of(nodes: Nodes, **options: Any) -> Producer:
    machine = ScriptedMachine()
    route = Route("http://127.0.0.1:1", machine=machine)
    route.connections = ToNodes(nodes)
    return Producer("", ProducerOptions(**options), route=route, machine=machine)


async def send_on(producer: Producer, key: str, done: Counter[str]) -> None:
    """One after the other, for as long as nobody ends it."""
    for number in itertools.count():
        await producer.send("t", {"n": number}, key=key)
        done[key] += 1


async def sent_in_a_while(nodes: Nodes) -> Counter[str]:
    done: Counter[str] = Counter()
    async with producer_of(nodes) as producer:
        sending = [asyncio.create_task(send_on(producer, key, done)) for key in KEYS]
        await asyncio.sleep(FOR_S)
        for one in sending:
            one.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
    return done


@cache
def usually() -> Counter[str]:
    return run_virtual(sent_in_a_while(Nodes(None)))


@KINDS
def test_the_keys_of_other_partitions_go_on_at_their_pace(refusal: Refusal) -> None:
    beside = run_virtual(sent_in_a_while(Nodes(refusal)))
    for key in FREE:
        assert beside[key] > 0.9 * usually()[key], (key, beside)
    assert not any(beside[key] for key in STUCK)


@KINDS
def test_a_coordinator_that_does_not_answer_meanwhile_holds_nobody_either(
    refusal: Refusal,
) -> None:
    """Whoever was sent on would like to know more, and goes on with what is known."""
    nodes = Nodes(refusal)
    nodes.knows_topology = 1
    beside = run_virtual(sent_in_a_while(nodes))
    for key in FREE:
        assert beside[key] > 0.9 * usually()[key], (key, beside)


def test_a_node_that_says_nothing_holds_what_it_was_sent_and_nobody_else() -> None:
    """Also where its partitions get another owner meanwhile: what it was sent may be written."""

    async def scenario() -> tuple[Counter[str], Nodes]:
        nodes, done = Nodes(None), Counter[str]()
        async with producer_of(nodes) as producer:
            sending = [asyncio.create_task(send_on(producer, key, done)) for key in KEYS]
            await asyncio.sleep(1.0)
            nodes.silent.add("b")
            await asyncio.sleep(1.0)
            await producer._route._apply(topology(2, ["a"] * PARTITIONS))
            await asyncio.sleep(FOR_S - 2.0)
            for one in sending:
                one.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        return done, nodes

    done, nodes = run_virtual(scenario())
    for key in KEYS:
        if OWNERS[partition_of_key(key)] == "a":
            assert done[key] > 0.9 * usually()[key], (key, done)
        numbers = [number for one, number in nodes.log if one == key]
        assert numbers == list(range(len(numbers)))


@KINDS
def test_its_own_keys_keep_their_order_and_go_on_as_soon_as_they_may(refusal: Refusal) -> None:
    async def scenario() -> None:
        nodes = Nodes(refusal)
        async with producer_of(nodes) as producer:
            sending = []
            for number in range(60):
                events = [OutgoingEvent({"n": number}, key=key) for key in KEYS]
                sending.append(asyncio.create_task(producer.send_many("t", events)))
                await asyncio.sleep(0.1)
            nodes.refusal = None
            async with asyncio.timeout(producer._options.backoff_max_s + 0.1):
                outcomes = [one for call in sending for one in await call]
        assert all(isinstance(one, Receipt) for one in outcomes)
        for key in KEYS:
            assert [n for one, n in nodes.log if one == key] == list(range(60))

    run_virtual(scenario())
    assert deaths.counts() == {}


@KINDS
def test_it_is_asked_after_pauses_that_grow(refusal: Refusal) -> None:
    """Up to the longest one, also where further events of it come in meanwhile."""

    async def scenario() -> None:
        nodes = Nodes(refusal)
        async with producer_of(nodes, deadline_s=20.0, backoff_max_s=2.0) as producer:
            sending = [
                asyncio.create_task(
                    producer.send("t", {"n": number}, key=STUCK[0], event_id=str(number))
                )
                for number in range(3)
            ]
            await asyncio.sleep(15.0)
            assert 8 <= nodes.asked["0"] <= 5 + 6 + 15
            requests = nodes.requests
            nodes.refusal = None
            await asyncio.gather(*sending)
            assert nodes.requests <= requests + 3

    run_virtual(scenario())


@KINDS
def test_its_calls_end_at_their_deadline_and_hear_that_nothing_was_written(
    refusal: Refusal,
) -> None:
    async def scenario() -> None:
        nodes, ended_s = Nodes(refusal), []
        now_s = asyncio.get_running_loop().time
        async with producer_of(nodes, deadline_s=3.0) as producer:

            async def send(key: str) -> None:
                began_s = now_s()
                with pytest.raises(NotNow) as failure:
                    await producer.send("t", {"n": 0}, key=key)
                assert not isinstance(failure.value, OutcomeUnknown)
                ended_s.append(now_s() - began_s)

            sending = []
            for key in [*STUCK, *STUCK]:
                sending.append(asyncio.create_task(send(key)))
                await asyncio.sleep(0.2)
            await asyncio.gather(*sending)
            last_s = now_s()
        assert max(ended_s) <= 3.0 + ANSWER_MARGIN_S
        assert nodes.last_s <= last_s
        assert nodes.log == []

    run_virtual(scenario())
    assert deaths.counts() == {}


@KINDS
def test_closing_waits_for_it_until_the_deadline(refusal: Refusal) -> None:
    async def scenario() -> None:
        nodes = Nodes(refusal)
        now_s = asyncio.get_running_loop().time
        producer = producer_of(nodes, deadline_s=3.0)
        sending = asyncio.create_task(producer.send("t", {"n": 0}, key=STUCK[0]))
        await asyncio.sleep(1.0)
        began_s = now_s()
        await producer.close()
        assert now_s() - began_s <= 3.0 + 2 * ANSWER_MARGIN_S
        with pytest.raises(NotNow):
            await sending
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(scenario())


def test_a_repartition_takes_what_is_set_aside_along() -> None:
    """And the pause of it: nodes that disagree on the version are not asked over and over."""

    async def scenario() -> None:
        nodes = Nodes(None)

        def disagree(nodes: Nodes, node: str) -> ErrorBody:
            nodes.version += 1
            return sent_on(nodes, node)

        nodes.refusal = disagree
        async with producer_of(nodes) as producer:
            sending = [
                asyncio.create_task(producer.send("t", {"n": n}, key=STUCK[0], event_id=str(n)))
                for n in range(3)
            ]
            await asyncio.sleep(10.0)
            assert nodes.asked["0"] < 30
            nodes.refusal = None
            await asyncio.gather(*sending)
        assert [n for _, n in nodes.log] == [0, 1, 2]

    run_virtual(scenario())


def test_what_is_sent_on_for_ever_says_so_in_the_end() -> None:
    async def scenario() -> None:
        async with producer_of(Nodes(sent_on), deadline_s=3.0) as producer:
            with pytest.raises(NotNow, match=r"from node to node \d+ times"):
                await producer.send("t", {"n": 0}, key=STUCK[0])

    run_virtual(scenario())


async def troubled(cancelling: Cancelling) -> None:
    """A partition takes nothing, gets another owner while its former one says nothing, and the
    topic other partitions in the end."""
    nodes = Nodes(sent_on)
    producer = producer_of(nodes, deadline_s=4.0, backoff_max_s=0.2, request_timeout_s=0.5)
    written: list[tuple[str, int]] = []

    async def send(name: str, number: int, *keys: str) -> None:
        events = [OutgoingEvent({"n": number}, key=key) for key in keys]
        with suppress(Cancelled):
            outcomes = await cancelling.call(name, producer.send_many("t", events))
            assert all(isinstance(one, Receipt) for one in outcomes), outcomes
            written.extend((key, number) for key in keys)

    if not await _entered(cancelling, producer):
        await producer.__aenter__()
    sending = [asyncio.create_task(send("first", 1, *KEYS))]
    await asyncio.sleep(0.3)
    sending.append(asyncio.create_task(send("second", 2, *KEYS)))
    nodes.silent.add("b")
    await asyncio.sleep(0.1)
    await producer._route._apply(topology(2, ["a"] * PARTITIONS))
    sending.append(asyncio.create_task(send("third", 3, *KEYS)))
    await asyncio.sleep(0.1)
    nodes.refusal = None
    nodes.silent.clear()
    await asyncio.gather(*sending)
    sending = [asyncio.create_task(send("fourth", 4, *KEYS))]
    await asyncio.sleep(0)
    await producer._route._apply(topology(3, ["b"] * PARTITIONS, version=2))
    await send("fifth", 5, *FREE)
    with suppress(Cancelled):
        await cancelling.call("close", producer.close())
    await asyncio.gather(*sending)
    await producer.close()
    assert set(written) <= set(nodes.log)
    for key in KEYS:
        numbers = [number for one, number in nodes.log if one == key]
        assert numbers == sorted(set(numbers))


async def _entered(cancelling: Cancelling, producer: Producer) -> bool:
    try:
        await cancelling.call("enter", producer.__aenter__())
    except Cancelled:
        return False
    return True


def test_calls_may_be_cancelled_at_any_await_meanwhile() -> None:
    assert cancel_everywhere(troubled) > 8
