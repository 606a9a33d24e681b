"""Every call of a producer ends, within its deadline and one margin, and with the truth: whatever
the node does, whatever fails inside the producer, and whoever closes it meanwhile."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headgate.adapters.memory.machine import ScriptedMachine
from headgate.client.producer import Producer, ProducerOptions
from headgate.client.producing.calls import LOOK_AGAIN_S
from headgate.client.producing.connections import Connections
from headgate.client.producing.exchange import ANSWER_MARGIN_S, Attempt
from headgate.client.producing.outgoing import Outcome, OutgoingEvent, Receipt
from headgate.client.producing.pending import Pending
from headgate.client.producing.route import Route
from headgate.client.producing.topic_stream import TopicStream
from headgate.errors import HeadgateError, InvalidRequest, NotNow, OutcomeUnknown, Timeout
from headgate.model.api import ProduceAnswer, ProduceRequest, ProduceResult, TopologyAnswer
from tests.decide.produce.test_routing_cache import topology
from tests.virtual_time import run_virtual
from tests.waiting import until

DEADLINE_S = 1.0
BOUND_S = DEADLINE_S + ANSWER_MARGIN_S + LOOK_AGAIN_S
KEYS = ["k0", "k1", "k2", "k3", "k4"]


class Node:
    """Answers for every address. Silent, it writes what it gets and says nothing until the client
    gives up; refusing, it takes `refuses_s` to say not now."""

    def __init__(self) -> None:
        self.url = "http://node"
        self.log: list[str] = []
        self.requests = 0
        self.is_silent = False
        self.refuses_s: float | None = None

    async def get(self, _path: str, _answer: type) -> TopologyAnswer:
        return TopologyAnswer(topology(1, ["a", "b", "c"]))

    async def post(
        self, _path: str, body: ProduceRequest, _answer: type, *, timeout_s: float, **_: float
    ) -> ProduceAnswer:
        self.requests += 1
        await asyncio.sleep(0.001)
        if self.refuses_s is not None:
            await asyncio.sleep(min(self.refuses_s, timeout_s))
            raise NotNow("not now")
        ids = [event.event_id or "" for event in body.events]
        self.log += [one for one in ids if one not in self.log]
        if self.is_silent:
            await asyncio.sleep(timeout_s)
            raise Timeout("no answer", no_answer="unknown")
        return ProduceAnswer([ProduceResult(one, 0, self.log.index(one) + 1) for one in ids])

    async def close(self) -> None:
        pass


class ToOneNode(Connections):
    def __init__(self, node: Any) -> None:
        super().__init__("http://127.0.0.1:1")
        self.public = node

    @asynccontextmanager
    async def to(self, _url: str) -> AsyncIterator[Any]:
        yield self.public


def producer_of(node: Node, **options: Any) -> Producer:
    machine = ScriptedMachine()
    route = Route("http://127.0.0.1:1", machine=machine)
    route.connections = ToOneNode(node)
    options = {"deadline_s": DEADLINE_S, "batch_events": 3} | options
    return Producer("", ProducerOptions(**options), route=route, machine=machine)


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def outcome_of(producer: Producer, event_id: str, key: str | None = None) -> Outcome:
    try:
        return await producer.send("t", {}, key=key, event_id=event_id)
    except HeadgateError as error:
        return error


def assert_true(outcomes: dict[str, Outcome], node: Node) -> None:
    for event_id, outcome in outcomes.items():
        if isinstance(outcome, Receipt):
            assert event_id in node.log
        elif not isinstance(outcome, OutcomeUnknown):
            assert event_id not in node.log, (event_id, outcome)


async def gathered(producer: Producer, ids: list[str]) -> dict[str, Outcome]:
    """Each id in a call of its own, all at once; fails when one doesn't end in time."""
    keys = [KEYS[number % len(KEYS)] for number in range(len(ids))]
    sends = (outcome_of(producer, one, key) for one, key in zip(ids, keys, strict=True))
    async with asyncio.timeout(BOUND_S + 0.01):
        return dict(zip(ids, await asyncio.gather(*sends), strict=True))


# --- mistakes ------------------------------------------------------------------------------------

LIFE = {"__init__", "hurry", "abandon", "tasks", "close", "begin"}
"""Not steps of an event on its way, but of the producer."""


def steps() -> Iterator[tuple[type, str]]:
    for kind in (TopicStream, Route, Attempt, Pending):
        for name, _ in inspect.getmembers(kind, inspect.isfunction):
            if name in kind.__dict__ and name not in LIFE and not name.startswith("__"):
                yield kind, name


def failing(real: Callable[..., Any], at: int) -> Callable[..., Any]:
    """`real`, whose call number `at` is a mistake."""
    calls = 0

    def is_mistaken() -> bool:
        nonlocal calls
        calls += 1
        return calls == at

    def called(*args: Any, **kwargs: Any) -> Any:
        if is_mistaken():
            raise RuntimeError("a mistake")
        return real(*args, **kwargs)

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        if is_mistaken():
            raise RuntimeError("a mistake")
        return await real(*args, **kwargs)

    return awaited if inspect.iscoroutinefunction(real) else called


async def life_with_a_mistake(node: Node) -> None:
    producer = producer_of(node)
    async with asyncio.timeout(4 * BOUND_S):
        outcomes = await gathered(producer, [f"a{n}" for n in range(7)])
        outcomes |= await gathered(producer, [f"b{n}" for n in range(7)])
        closing = asyncio.gather(gathered(producer, ["c0", "c1"]), producer.close())
        outcomes |= (await closing)[0]
    assert_true(outcomes, node)
    assert producer._outstanding_events == 0
    assert not producer._calls._open


@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize(
    ("kind", "step"), [pytest.param(*one, id=f"{one[0].__name__}.{one[1]}") for one in steps()]
)
def test_a_mistake_at_any_step_leaves_no_call_without_its_outcome(
    kind: type, step: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, step, failing(getattr(kind, step), at))
    run_virtual(life_with_a_mistake(Node()))


# --- the deadline --------------------------------------------------------------------------------


@pytest.mark.parametrize("refuses_s", [None, 0.0, 0.4], ids=["silent", "refuses", "slowly"])
def test_calls_in_many_batches_end_at_the_deadline_and_one_margin(refuses_s: float | None) -> None:
    async def run() -> None:
        node = Node()
        node.is_silent, node.refuses_s = refuses_s is None, refuses_s
        producer = producer_of(node)
        outcomes = await gathered(producer, [f"e{n}" for n in range(60)])
        assert now_s() <= BOUND_S
        assert all(isinstance(outcome, NotNow) for outcome in outcomes.values())
        assert_true(outcomes, node)
        requests = node.requests
        await producer.close()
        assert now_s() <= BOUND_S
        assert node.requests == requests

    run_virtual(run())


def test_calls_that_wait_for_room_end_at_their_deadline_too() -> None:
    async def run() -> None:
        node = Node()
        node.is_silent = True
        producer = producer_of(node, outstanding_events=6)
        outcomes = await gathered(producer, [f"e{n}" for n in range(60)])
        assert_true(outcomes, node)
        await producer.close()
        assert producer._outstanding_events == 0

    run_virtual(run())


def test_a_long_call_that_gets_on_is_given_time_and_one_that_does_not_ends() -> None:
    async def run() -> None:
        node = Node()
        producer = producer_of(node, outstanding_events=6, linger_s=0.3)
        events = [OutgoingEvent({}, key=KEYS[n % 5], event_id=f"e{n}") for n in range(60)]
        outcomes = await producer.send_many("t", events)
        assert now_s() > DEADLINE_S
        assert all(isinstance(outcome, Receipt) for outcome in outcomes)
        node.refuses_s, began_s = 0.0, now_s()
        events = [OutgoingEvent({}, key=KEYS[n % 5], event_id=f"f{n}") for n in range(60)]
        outcomes = await producer.send_many("t", events)
        assert now_s() <= began_s + BOUND_S
        assert all(isinstance(outcome, NotNow) for outcome in outcomes)
        await producer.close()

    run_virtual(run())


def test_a_request_that_outlasts_one_of_its_calls_does_not_hold_it() -> None:
    async def run() -> None:
        node = Node()
        options = {"linger_s": 4.9, "batch_events": 100, "request_timeout_s": 1.0}
        producer = producer_of(node, deadline_s=5.0, **options)
        first = asyncio.create_task(outcome_of(producer, "first", "k0"))
        await asyncio.sleep(4.8)
        node.is_silent = True
        second = asyncio.create_task(outcome_of(producer, "second", "k0"))
        assert isinstance(await first, OutcomeUnknown)
        assert now_s() <= 5.0 + ANSWER_MARGIN_S + LOOK_AGAIN_S
        node.is_silent = False
        assert isinstance(await second, Receipt)
        await producer.close()

    run_virtual(run())


def test_the_room_is_given_in_the_order_of_the_calls() -> None:
    async def run() -> None:
        node = Node()
        producer = producer_of(node, outstanding_events=2)
        ids = [f"e{n}" for n in range(20)]
        sends = []
        for one in ids:
            sends.append(asyncio.create_task(outcome_of(producer, one, "k")))
            await asyncio.sleep(0.0007)
        await asyncio.gather(*sends)
        assert node.log == ids
        await producer.close()

    run_virtual(run())


def test_a_long_call_is_not_overtaken_by_later_ones_of_its_keys() -> None:
    async def run() -> None:
        node = Node()
        producer = producer_of(node, outstanding_events=6)
        long = [OutgoingEvent({}, key="k", event_id=f"a{n}") for n in range(15)]
        both = [OutgoingEvent({}, key=key, event_id=f"b-{key}") for key in ("k", "other")]
        calls = [
            asyncio.create_task(producer.send_many("t", events))
            for events in (long, both, [OutgoingEvent({}, key="other", event_id="c")])
        ]
        await asyncio.sleep(0)
        stranger = asyncio.create_task(outcome_of(producer, "stranger", "another"))
        await asyncio.gather(*calls, stranger)
        others = ["b-other", "c", "stranger"]
        assert [one for one in node.log if one not in others] == [
            *(e.event_id for e in long),
            "b-k",
        ]
        assert node.log.index("b-other") < node.log.index("c")
        assert node.log.index("stranger") < node.log.index("a14"), "it shares no key with anybody"
        assert not producer._turns
        await producer.close()

    run_virtual(run())


def test_who_waits_for_a_long_call_of_its_key_ends_at_its_own_deadline() -> None:
    async def run() -> None:
        node = Node()
        producer = producer_of(node, outstanding_events=3, linger_s=0.3)
        long = [OutgoingEvent({}, key="k", event_id=f"a{n}") for n in range(60)]
        sending = asyncio.create_task(producer.send_many("t", long))
        await asyncio.sleep(0)
        node.refuses_s = 0.9
        late = await outcome_of(producer, "late", "k")
        assert isinstance(late, Timeout)
        assert now_s() <= BOUND_S
        assert_true({"late": late}, node)
        await sending
        await producer.close()

    run_virtual(run())


# --- closing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("silent", [False, True], ids=["answers", "silent"])
def test_a_long_call_that_is_overtaken_by_close_says_which_of_its_events_are_written(
    silent: bool,
) -> None:
    async def run() -> None:
        node = Node()
        producer = producer_of(node, outstanding_events=6)
        ids = [f"e{n}" for n in range(60)]
        events = [OutgoingEvent({}, key=KEYS[n % 5], event_id=one) for n, one in enumerate(ids)]
        sending = asyncio.create_task(producer.send_many("t", events))
        await asyncio.sleep(0.01)
        node.is_silent = silent
        await producer.close()
        assert now_s() <= 0.01 + BOUND_S
        outcomes = dict(zip(ids, await sending, strict=True))
        assert_true(outcomes, node)
        assert isinstance(outcomes["e0"], Receipt)
        assert isinstance(outcomes["e59"], NotNow)

    run_virtual(run())


def test_a_call_that_is_cancelled_while_it_waits_for_room_leaves_nothing_behind() -> None:
    async def run() -> None:
        producer = producer_of(Node(), outstanding_events=3, linger_s=0.5)
        events = [OutgoingEvent({}, key="k") for _ in range(9)]
        sending = asyncio.create_task(producer.send_many("t", events))
        await asyncio.sleep(0.1)
        sending.cancel()
        await asyncio.wait([sending])
        assert isinstance(await outcome_of(producer, "next", "k"), Receipt)
        assert not producer._calls._open
        await producer.close()

    run_virtual(run())


# --- what a refusal says -------------------------------------------------------------------------


class Choosy(Node):
    """Gives no answer to what it has written, and then refuses whatever comes with a bad event."""

    async def post(
        self, _path: str, body: ProduceRequest, _answer: type, *, timeout_s: float, **_: float
    ) -> ProduceAnswer:
        await asyncio.sleep(0.001)
        ids = [event.event_id or "" for event in body.events]
        if ids == ["bad"]:
            raise NotNow("not now")
        if "bad" in ids:
            index = ids.index("bad")
            raise InvalidRequest(f"event {index} is bad", index=index)
        self.log += [one for one in ids if one not in self.log]
        raise Timeout("no answer", no_answer="unknown")


def test_a_refusal_of_another_event_says_nothing_of_what_may_be_written() -> None:
    """Its request was another one, without that event: they went to two nodes then."""
    node = Choosy()

    async def scenario() -> list[Outcome]:
        async with producer_of(node, backoff_first_s=0.2) as producer:
            events = [OutgoingEvent({}, key=KEYS[n], event_id=("bad", "good")[n]) for n in (0, 1)]
            sending = asyncio.create_task(producer.send_many("t", events))
            await until(lambda: bool(node.log))
            await producer._route._apply(topology(2, ["a"], version=2))
            return await sending

    bad, good = run_virtual(scenario())
    assert isinstance(bad, InvalidRequest)
    assert node.log == ["good"]
    assert isinstance(good, OutcomeUnknown), repr(good)
