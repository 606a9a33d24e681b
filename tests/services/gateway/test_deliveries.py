"""What a gateway does with batches: the answer first where that is possible, then the rest."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import errors
from headgate.adapters.delivery_wire import encode_lines, read_batch
from headgate.adapters.memory.checkpoints import MemoryCheckpointStore
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.decide.feed.queue import Resync
from headgate.decide.feed.recent_ids import RecentIds
from headgate.decide.feed.redelivered import Redelivered
from headgate.metrics.roles import GatewayMetrics
from headgate.model.control.to_coordinator import Hello
from headgate.model.delivery import (
    SETTLING_VERDICTS,
    Batch,
    Delivery,
    DeliveryAnswer,
    DeliveryBatch,
    Outline,
    Verdict,
)
from headgate.model.event import PartitionRef
from headgate.model.subscription import Priority
from headgate.model.topology import Owner
from headgate.services.gateway.control import Control
from headgate.services.gateway.delivery import Deliveries
from headgate.services.gateway.evidence import GatewayEvidence
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.groups.consumers import Consumers
from headgate.services.gateway.hearing import Hearing
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.services.gateway.subscriptions.registering import Registering
from headgate.services.gateway.subscriptions.subscriptions import (
    Bounds,
    SubscribeRequest,
    Subscriptions,
)
from headgate.services.gateway.telling import Telling
from headgate.tasks import Crew
from tests.at_once import answered_at_once
from tests.services.gateway.doubles import FakeCoordinator, topology
from tests.written_log import TOPIC, WrittenLog

NODE = "gateway-1"
INCARNATION = "second"
NAMES = ("a", "b", "c")


class AtOnce(Deliveries):
    """Passes everything on before it answers: the oracle."""

    def _is_plain(self, _outline: Outline) -> bool:
        return False


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


class Line:
    """A connection that keeps what it is sent; full once nobody may write to it."""

    def __init__(self, subscriber: LiveSubscription, sent: list[dict[str, Any]]) -> None:
        self.open_to: LiveSubscription | None = subscriber
        self.send: Callable[[bytes], None] = lambda message: sent.append(json.loads(message))

    def write(self) -> None:
        pass


@dataclass
class Stage:
    """Subscribers whose connections keep what they are sent."""

    subscriptions: Subscriptions
    deliveries: Deliveries
    jobs: list[Callable[[], None]]
    arrive: Callable[[DeliveryBatch], Batch]
    clock: Clock
    sent: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    subscribers: dict[str, LiveSubscription] = field(default_factory=dict)
    lines: dict[str, Line] = field(default_factory=dict)

    async def subscribe(self, name: str, priority: Priority = "normal") -> None:
        question = SubscribeRequest(TOPIC, name=name, priority=priority)
        subscriber = await self.subscriptions.subscribe(question)
        self.subscribers[name] = subscriber
        self.sent[name] = []
        self.lines[name] = Line(subscriber, self.sent[name])
        self.subscriptions.begin(subscriber, lambda: None, self.lines[name])

    def deliver(self, *deliveries: Delivery) -> tuple[Verdict, ...]:
        return self.answer(*deliveries).verdicts

    def answer(self, *deliveries: Delivery) -> DeliveryAnswer:
        batch = DeliveryBatch(NODE, 1, 0, self.named(deliveries))
        return answered_at_once(self.deliveries.take(self.arrive(batch)))

    def named(self, deliveries: tuple[Delivery, ...]) -> tuple[Delivery, ...]:
        """With the ids of the subscriptions, which differ from stage to stage."""
        return tuple(
            msgspec.structs.replace(
                delivery,
                subscriptions=tuple(self.id_of(name) for name in delivery.subscriptions),
                left=tuple(self.id_of(name) for name in delivery.left),
            )
            for delivery in deliveries
        )

    def id_of(self, name: str) -> str:
        return self.subscribers[name].id if name in self.subscribers else name

    def read(self, name: str, count: int = 1_000) -> None:
        """The connection takes some of what waits for it."""
        subscriber = self.subscribers[name]
        for _ in range(count):
            item = subscriber.take()
            if item is None:
                break
            if not isinstance(item, Resync):
                self.sent[name].append(json.loads(item.value + subscriber.tail))

    def seqs(self, name: str, partition: int | None = None) -> list[int]:
        return [one["seq"] for one in self.sent[name] if partition in (None, one["partition"])]

    def answered(self) -> None:
        """What was put off until after the answer is done."""
        while self.jobs:
            self.jobs.pop(0)()


def as_it_is(batch: DeliveryBatch) -> Batch:
    return batch


def as_lines(batch: DeliveryBatch) -> Batch:
    """As lanes send it."""
    return read_batch(encode_lines(batch))


@asynccontextmanager
async def stage(
    kind: type[Deliveries] = Deliveries,
    arrive: Callable[[DeliveryBatch], Batch] = as_it_is,
    *,
    bounds: Bounds | None = None,
    dedup: bool = True,
    remembered: int = 100,
) -> AsyncIterator[Stage]:
    """`remembered`: how many events, and how many redeliveries."""
    coordinator = FakeCoordinator(topology=topology(partitions=2))
    clock = Clock()
    machine = ScriptedMachine(clock=clock)
    control, crew = Control(), Crew("gateway")
    registering = Registering(control, crew)
    evidence = GatewayEvidence(NODE, size=1_000, age_s=60.0, machine=machine)
    subscriptions = Subscriptions(
        NODE,
        bounds or Bounds(),
        control,
        registering,
        crew=crew,
        reader=WrittenLog(),
        settled=MemoryCheckpointStore().list,
        metrics=GatewayMetrics(),
        evidence=evidence,
        machine=machine,
    )
    consumers = Consumers(
        subscriptions, control, MemoryCheckpointStore(), ConsumerBounds(), machine=machine
    )
    recent = RecentIds(capacity=remembered, ttl_s=60.0) if dedup else None
    telling = Telling(evidence, subscriptions, consumers)
    hearing = Hearing(control, registering, subscriptions, consumers, telling)
    jobs: list[Callable[[], None]] = []
    deliveries = kind(
        NODE,
        subscriptions,
        incarnation=INCARNATION,
        recent=recent,
        redelivered=Redelivered(capacity=remembered, ttl_s=60.0),
        evidence=evidence,
        machine=machine,
        later=jobs.append,
    )
    hello = Hello(role="gateway", node_id=NODE, incarnation=INCARNATION)
    session = coordinator.open_session(lambda: hello)
    listening = asyncio.create_task(hearing.listen(session))
    made = Stage(subscriptions, deliveries, jobs, arrive, clock)
    try:
        for name in NAMES:
            await made.subscribe(name)
        yield made
    finally:
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening


def event(seq: int, *names: str, partition: int = 0, **more: Any) -> Delivery:
    about: dict[str, Any] = {
        "topic": TOPIC,
        "partition": partition,
        "seq": seq,
        "event_id": f"{partition}-{seq}",
        "key": "k",
        "collection": "",
        "op": "insert",
        "document": msgspec.Raw(b'{"n": 1}'),
        "subscriptions": names,
        "epoch": 1,
    }
    return Delivery(**{**about, **more})


@pytest.fixture(params=[as_it_is, as_lines])
async def live(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """A stage whose subscribers have each had record 1, and keep up."""
    async with stage(arrive=request.param) as made:
        assert made.deliver(event(1, *NAMES)) == ("accepted",)
        made.answered()
        yield made


# --- which process -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gone", "a"], ids=["nobody's here", "somebody's here"])
async def test_what_is_for_another_process_of_its_name_is_refused_and_not_settled(
    live: Stage, name: str
) -> None:
    """It has the other's address, and knows nothing about whom its subscriptions belong to."""
    batch = DeliveryBatch(NODE, 1, 0, live.named((event(2, name),)), incarnation="first")
    with pytest.raises(errors.NotNow, match="another process of gateway gateway-1"):
        live.deliveries.accept(live.arrive(batch))
    live.answered()
    assert live.seqs("a") == [1]


@pytest.mark.parametrize("incarnation", [INCARNATION, ""], ids=["its own", "an older router's"])
async def test_what_is_for_this_process_is_taken(live: Stage, incarnation: str) -> None:
    batch = DeliveryBatch(NODE, 1, 0, live.named((event(2, "a"),)), incarnation)
    assert live.deliveries.accept(live.arrive(batch)).verdicts == ("accepted",)


# --- the answer first ----------------------------------------------------------------------------


async def test_ordinary_batch_is_answered_before_anybody_is_written_to(live: Stage) -> None:
    assert live.deliver(event(2, "a"), event(3, "b")) == ("accepted", "accepted")
    assert (live.seqs("a"), live.seqs("b")) == ([1], [1])
    live.answered()
    assert (live.seqs("a"), live.seqs("b")) == ([1, 2], [1, 3])
    assert live.sent["a"][-1] == {
        "type": "event",
        "topic": TOPIC,
        "partition": 0,
        "seq": 2,
        "event_id": "0-2",
        "key": "k",
        "collection": "",
        "op": "insert",
        "document": {"n": 1},
        "subscriptions": ["a"],
    }


async def test_what_waits_goes_before_the_next_batch(live: Stage) -> None:
    live.deliver(event(2, "a"))
    live.deliver(event(3, "a"))
    assert live.seqs("a") == [1, 2]
    live.answered()
    assert live.seqs("a") == [1, 2, 3]


@pytest.mark.parametrize(
    ("batch", "verdicts"),
    [
        pytest.param([event(2, "gone")], ("no_subscriber",), id="nobody wants it"),
        pytest.param([event(1, "a")], ("duplicate",), id="had it"),
        pytest.param([event(2, "a"), event(2, "a")], ("accepted", "duplicate"), id="twice"),
        pytest.param(
            [event(2, "a"), event(2, "a", event_id="x")],
            ("accepted", "duplicate"),
            id="one place for two events",
        ),
        pytest.param(
            [event(3, "a"), event(2, "a")], ("accepted", "duplicate"), id="the wrong way round"
        ),
        pytest.param(
            [event(2, "a"), event(3, "a", epoch=2), event(4, "gone", epoch=2)],
            ("accepted", "accepted", "no_subscriber"),
            id="a sender that takes over within the batch",
        ),
        pytest.param([event(2, "a", epoch=0)], ("stale_fence",), id="overtaken sender"),
        pytest.param([event(2, "a", left=("a",))], ("accepted",), id="left"),
        pytest.param([event(2, "a", since=(1,))], ("accepted",), id="a lane that was late"),
        pytest.param([event(2, "a", redelivery=True)], ("retry",), id="sent again"),
        pytest.param([event(2, lost_from=2)], ("accepted",), id="a gap"),
        pytest.param([event(2, "a", broadcast=True)], ("accepted",), id="to whom it concerns"),
        pytest.param(
            [event(2, "a"), event(2, "a", topic="other")],
            ("accepted", "duplicate"),
            id="topics that are mixed up",
        ),
        pytest.param([], (), id="nothing"),
    ],
)
async def test_what_needs_a_closer_look_is_looked_at_before_the_answer(
    live: Stage, batch: list[Delivery], verdicts: tuple[str, ...]
) -> None:
    assert live.deliver(*batch) == verdicts
    assert not live.jobs


@pytest.mark.parametrize(
    ("batch", "sent", "counted"),
    [
        pytest.param(
            [event(2, "a"), event(3, "a", event_id="0-2", partition=1)],
            [2],
            {"accepted": 1, "duplicate": 1},
            id="twice in a batch",
        ),
        pytest.param(
            [event(2, "a", event_id="0-1", partition=1)], [], {"duplicate": 1}, id="of before"
        ),
    ],
)
async def test_an_event_that_was_here_under_another_place_is_settled_and_not_passed_on(
    live: Stage, batch: list[Delivery], sent: list[int], counted: dict[str, int]
) -> None:
    before, verdicts = live.seqs("a"), Counter(live.deliveries.verdicts)
    assert live.deliver(*batch) == ("accepted",) * len(batch)
    live.answered()
    assert live.seqs("a") == [*before, *sent]
    assert +(live.deliveries.verdicts - verdicts) == counted
    assert live.deliveries.repeats == 1


# --- what tells events apart ---------------------------------------------------------------------

APART = [
    pytest.param({"key": "other"}, id="another key"),
    pytest.param({"key": None}, id="no key"),
    pytest.param({"collection": "other"}, id="another collection"),
    pytest.param({"event_id": "0-1//k", "key": None}, id="an id that looks like both"),
    pytest.param({"topic": "other"}, id="another topic"),
]


@pytest.mark.parametrize("closely", [False, True], ids=["at once", "looked at closely"])
@pytest.mark.parametrize("more", APART)
async def test_events_that_share_an_id_and_not_the_key_are_two(
    live: Stage, more: dict[str, Any], closely: bool
) -> None:
    """Record 1 of partition 0 was here: its id is `0-1`, its key `k`, its collection empty."""
    other = event(1, "a", **{"event_id": "0-1", "partition": 1, **more})
    assert live.deliver(other, *[event(2, "gone")] * closely)[0] == "accepted"
    assert bool(live.jobs) is not closely
    live.answered()
    assert [(one["partition"], one["seq"]) for one in live.sent["a"]] == [(0, 1), (1, 1)]
    assert live.deliveries.repeats == 0


@pytest.mark.parametrize("closely", [False, True], ids=["at once", "looked at closely"])
@pytest.mark.parametrize("key", ["k", None])
async def test_an_event_that_is_in_two_partitions_is_one(
    live: Stage, key: str | None, closely: bool
) -> None:
    first = event(2, "a", event_id="twice", key=key)
    second = event(1, "a", event_id="twice", key=key, partition=1)
    for one in (first, second):
        live.deliver(one, *[event(1, "gone", partition=1)] * closely)
        live.answered()
    assert live.seqs("a") == [1, 2]
    assert live.deliveries.repeats == 1


@pytest.mark.parametrize("closely", [False, True], ids=["at once", "looked at closely"])
async def test_an_event_that_is_in_a_partition_again_comes_again(
    live: Stage, closely: bool
) -> None:
    """A connector was told to begin before where it was. Of what comes again the older changes
    aren't remembered; without the newer ones, which are, a subscriber would end with the former
    state of a key."""
    live.deliver(event(2, "a", event_id="former"))
    live.answered()
    live.clock.now_s += 45.0
    live.deliver(event(3, "a", event_id="latter"))
    live.answered()
    live.clock.now_s += 45.0  # the first is forgotten by now
    for seq, name in ((4, "former"), (5, "latter")):
        live.deliver(event(seq, "a", event_id=name), *[event(seq, "gone", partition=1)] * closely)
        live.answered()
    assert live.seqs("a") == [1, 2, 3, 4, 5]
    assert live.deliveries.repeats == 0


async def test_what_an_older_router_names_by_event_ids_alone_is_passed_on_once(
    live: Stage,
) -> None:
    """Also where one of its batches has to be looked at closely."""

    def by_event_ids(batch: DeliveryBatch) -> Batch:
        outline, _, messages = encode_lines(batch).split(b"\n", 2)
        ids = msgspec.json.encode([one.event_id for one in batch.deliveries])
        return read_batch(b"\n".join((outline, ids, messages)))

    live.arrive = by_event_ids
    live.deliver(event(2, "a", event_id="x"))
    live.answered()
    live.deliver(event(1, "a", event_id="x", partition=1), event(3, "gone"))
    live.answered()
    assert live.seqs("a") == [1, 2]
    assert live.deliveries.repeats == 1


# --- between the answer and the rest -------------------------------------------------------------


async def test_nothing_is_written_to_a_subscriber_that_left_meanwhile(live: Stage) -> None:
    live.deliver(event(2, "a", "b"))
    await live.subscriptions.unsubscribe(live.subscribers["a"])
    live.answered()
    assert (live.seqs("a"), live.seqs("b")) == ([1], [1, 2])


async def test_it_waits_in_the_queue_of_one_whose_connection_is_full_by_now(live: Stage) -> None:
    ready: list[str] = []
    live.deliver(event(2, "a"), event(3, "a"))
    live.lines["a"].open_to = None
    live.subscribers["a"].ready = lambda: ready.append("a")
    live.answered()
    assert (live.seqs("a"), len(live.subscribers["a"].feed), ready) == ([1], 2, ["a"])
    assert live.subscriptions.totals.depth == 2


async def test_one_that_was_forgotten_meanwhile_will_read_it_from_the_log(live: Stage) -> None:
    live.deliver(event(2, "a"))
    feed = live.subscribers["a"].feed
    feed.hold()
    live.answered()
    assert live.seqs("a") == [1]
    feed.release({})
    assert feed.behind() == [0]


async def test_a_fence_that_comes_after_the_answer_holds_nothing_back(live: Stage) -> None:
    live.deliver(event(2, "a"))
    live.subscriptions.fences.raise_to([Owner(PartitionRef(TOPIC, 0), "router-2", 9)])
    live.answered()
    assert live.seqs("a") == [1, 2]


async def test_whoever_should_have_got_what_fails_has_to_come_again(live: Stage) -> None:
    def fail(_message: bytes) -> None:
        raise RuntimeError("no")

    live.lines["b"].send = fail
    assert live.deliver(event(2, "a"), event(3, "b")) == ("accepted", "accepted")
    live.answered()
    assert isinstance(live.subscribers["a"].closing, errors.NotNow)
    assert isinstance(live.subscribers["b"].closing, errors.NotNow)
    assert live.subscribers["c"].closing is None


@pytest.mark.parametrize("live", [as_lines], indirect=True)
@pytest.mark.parametrize("rest", [b"garbage", b'["0-2","0-3"]\n', b""])
async def test_whoever_a_batch_is_for_that_turns_out_to_be_unreadable_has_to_come_again(
    live: Stage, rest: bytes
) -> None:
    def spoilt(batch: DeliveryBatch) -> Batch:
        outline, _, _ = encode_lines(batch).partition(b"\n")
        return read_batch(outline + b"\n" + rest)

    live.arrive = spoilt
    assert live.deliver(event(2, "a"), event(3, "b")) == ("accepted", "accepted")
    live.answered()
    assert isinstance(live.subscribers["a"].closing, errors.NotNow)
    assert isinstance(live.subscribers["b"].closing, errors.NotNow)
    assert live.subscribers["c"].closing is None


async def test_one_that_stops_looks_at_nothing(live: Stage) -> None:
    live.deliveries.stopping = True
    assert live.deliver(event(2, "a"), event(3, "b")) == ("retry", "retry")
    assert live.deliver(event(2, "a", left=("a",))) == ("retry",)


@pytest.mark.parametrize("live", [as_lines], indirect=True)
async def test_a_batch_that_is_unreadable_and_looked_at_closely_is_refused(live: Stage) -> None:
    live.arrive = lambda batch: read_batch(encode_lines(batch)[:-2])
    with pytest.raises(errors.InvalidRequest):
        live.deliver(event(2, "gone"))


# --- against the oracle --------------------------------------------------------------------------

names = st.lists(st.sampled_from((*NAMES, "gone")), min_size=1, max_size=3, unique=True).map(tuple)
odd: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}] * 12
    + [
        {"left": ("a",)},
        {"since": (2, 2, 2)},
        {"redelivery": True},
        {"lost_from": 1},
        {"broadcast": True},
        {"epoch": 2},
        {"event_id": "the same"},
    ]
)
batches = st.lists(
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 1), names, odd), max_size=5), max_size=6
)


@given(batches)
@settings(deadline=None, max_examples=60)
def test_agrees_with_one_that_passes_everything_on_at_once(
    steps: list[list[tuple[int, int, tuple[str, ...], dict[str, Any]]]],
) -> None:
    async def compare() -> None:
        async with stage(arrive=as_lines) as own, stage(AtOnce) as oracle:
            last = {0: 0, 1: 0}
            for step in steps:
                batch = []
                for ahead, partition, wanted, more in step:
                    # Now and then one comes a second time.
                    last[partition] += ahead - 1 if more else ahead
                    batch.append(event(last[partition] or 1, *wanted, partition=partition, **more))
                for said, due in zip(own.deliver(*batch), oracle.deliver(*batch), strict=True):
                    # Whether an event was here before is found out after the answer.
                    assert said == due or (said == "accepted" and due in SETTLING_VERDICTS)
                own.answered()
                assert own.sent == oracle.sent
                assert own.deliveries.remembered == oracle.deliveries.remembered
            assert own.deliveries.verdicts == oracle.deliveries.verdicts
            assert own.subscriptions.totals == oracle.subscriptions.totals

    asyncio.run(compare())
