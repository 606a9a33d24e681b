"""What comes again after a reset, at a gateway with subscribers of every pace: whoever doesn't read
holds nobody but itself, and everybody gets it once and in order.

A lane with its stores in memory, and what a real gateway does with deliveries; its connections are
read by the test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.adapters.delivery_outcome import taken
from headgate.errors import InvalidRequest, PeerUnreachable
from headgate.model.delivery import DeliveryAnswer, DeliveryBatch
from headgate.model.event import Fence
from headgate.model.position import Position, Tally
from headgate.model.subscription import Subscription
from headgate.model.topology import Owner
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from tests.lane.world import FakeGateways, LaneWorld, settle_down
from tests.services.gateway.test_deliveries import Stage, stage
from tests.virtual_time import run_virtual
from tests.written_log import TOPIC, WrittenLog

WHERE = {"a": None, "b": "kind == 'x'", "c": "kind != 'x'"}


class RealGateway(FakeGateways):
    """`quick` are those whose connections take everything at once."""

    def __init__(self, place: Stage) -> None:
        super().__init__()
        self.place = place
        self.quick: set[str] = set()
        self.answers_to_lose = 0
        self.sent = 0

    async def _answer(self, batch: DeliveryBatch) -> DeliveryAnswer:
        if self._is_stuck(batch):
            raise InvalidRequest("poison")
        answer = await taken(self.place.deliveries.take, batch)
        self.place.answered()
        self.sent += len(batch.deliveries)
        for name in self.quick:
            self.place.read(name)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise PeerUnreachable("the answer got lost")
        return answer


@dataclass
class Scene:
    place: Stage
    world: LaneWorld
    gateway: RealGateway
    names: tuple[str, ...]
    lanes: list[LaneWorld] = field(default_factory=list)

    async def begin(self) -> None:
        """A lane, or another one in the place of the last, which dies."""
        if self.lanes:
            await self.world.die()
            self.world = self.world.successor(window=3 + len(self.lanes))
        self.lanes.append(self.world)
        self.world.start()
        await self.world.subscribed(
            *(Subscription(self.place.id_of(n), "gateway-1", TOPIC, WHERE[n]) for n in self.names)
        )

    async def pass_time(self, seconds: float) -> None:
        await settle_down(seconds)
        self.place.clock.now_s += seconds


@asynccontextmanager
async def scene(
    *names: str, records: int, bounds: Bounds | None = None, **lane: Any
) -> AsyncIterator[Scene]:
    """So many records of partition 0 are in the log, which everybody has had, and come again."""
    async with stage(bounds=bounds or Bounds(), remembered=10_000) as place:
        log = place.subscriptions._reader
        assert isinstance(log, WrittenLog)
        for number in range(records):
            log.append({"n": number})
        for name in names:
            await place.subscribe(name)
        world = LaneWorld(window_s=1e6, **lane)
        world.gateways = gateway = RealGateway(place)
        world.append(records)
        world.checkpoints.put(world.refs[0], Position(0, redeliver_to=records))
        made = Scene(place, world, gateway, names)
        yield made
        await made.world.die()


def test_one_that_does_not_read_keeps_nobody_else_waiting() -> None:
    """Far more comes again than is remembered of single records, and live records behind it."""

    async def scenario() -> None:
        async with scene("a", "c", records=12_000) as made:
            made.gateway.quick = {"c"}
            await made.begin()
            await made.pass_time(60.0)
            made.world.append(5)
            await made.pass_time(1.0)
            assert made.place.seqs("c") == list(range(1, 12_006))
            assert made.place.seqs("a") == []
            assert made.world.letters.seqs("parked") == list(range(1, 12_006))

    run_virtual(scenario())


def test_what_is_new_comes_at_once_though_somebody_has_not_read_what_came_again() -> None:
    async def scenario() -> None:
        async with scene("a", "c", records=300) as made:
            made.gateway.quick = {"c"}
            await made.begin()
            await made.pass_time(300.0)
            for seq in range(301, 311):
                made.world.append(1)
                await made.pass_time(0.2)
                assert made.place.seqs("c")[-1] == seq
            made.gateway.quick = {"a", "c"}
            made.place.read("a", 200)
            await made.pass_time(30.0)
            assert made.place.seqs("a") == made.place.seqs("c") == list(range(1, 311))

    run_virtual(scenario())


def test_one_that_reads_slowly_slows_nobody_else_and_gets_all_in_order() -> None:
    async def scenario() -> None:
        async with scene("a", "c", records=300) as made:
            made.gateway.quick = {"c"}
            await made.begin()
            made.world.append(5)
            for passed_s in range(400):
                await made.pass_time(1.0)
                made.place.read("a", 1)
                if passed_s == 3:
                    assert made.place.seqs("c") == list(range(1, 306))
            assert made.place.seqs("a") == list(range(1, 306))
            await made.pass_time(30.0)
            assert made.world.letters.letters == []

    run_virtual(scenario())


def test_once_parked_it_goes_at_the_pace_of_its_subscribers() -> None:
    """They take everything within 20 ms, and were slower for half a second."""

    async def scenario() -> None:
        async with scene("a", "c", records=3_000) as made:
            await made.begin()
            await made.pass_time(0.6)
            made.world.append(5)
            for _ in range(50 * 4):
                await made.pass_time(0.02)
                made.place.read("a")
                made.place.read("c")
            assert made.place.seqs("a") == made.place.seqs("c") == list(range(1, 3_006))
            assert made.world.letters.letters == []

    run_virtual(scenario())


def test_what_nobody_takes_is_not_sent_again_and_again() -> None:
    async def scenario() -> None:
        async with scene("a", records=2_000) as made:
            await made.begin()
            await made.pass_time(60.0)
            sent = made.gateway.sent
            await made.pass_time(100.0)
            assert made.gateway.sent - sent <= 100 * 100 / 10

    run_virtual(scenario())


def test_a_lane_that_follows_goes_on_where_everybody_is() -> None:
    async def scenario() -> None:
        async with scene("a", "c", records=600) as made:
            made.gateway.quick = {"c"}
            await made.begin()
            await made.pass_time(20.0)
            made.place.read("a", 40)
            await made.begin()
            await made.pass_time(20.0)
            made.world.append(5)
            await made.pass_time(20.0)
            assert made.place.seqs("c") == list(range(1, 606))
            for _ in range(30):
                made.place.read("a", 100)
                await made.pass_time(12.0)
            assert made.place.seqs("a") == list(range(1, 606))
            assert made.world.letters.letters == []

    run_virtual(scenario())


def test_however_often_it_is_reset_nobody_gets_the_same_again_and_again() -> None:
    """Each reset begins behind the one before, so letters of all of them are there."""

    async def scenario() -> None:
        async with scene("a", "c", records=30) as made:
            made.gateway.quick = {"c"}
            [ref], to = made.world.refs, range(2, 16, 2)
            had = Tally(acknowledged=30)
            made.world.checkpoints.put(ref, Position(0, had, redeliver_to=30))
            await made.begin()
            await made.pass_time(20.0)
            for epoch, settled in enumerate(to, 6):
                await made.world.checkpoints.reset(ref, Fence(epoch), settled)
                owner = Owner(ref, "router-1", epoch)
                made.world.spec = replace(made.world.spec, owns=(owner,))
                await made.begin()
                await made.pass_time(20.0)
            made.world.append(5)
            await made.pass_time(20.0)
            again = [seq for settled in to for seq in range(settled + 1, 31)]
            assert made.place.seqs("c") == [*range(1, 31), *again, *range(31, 36)]

    run_virtual(scenario())


def test_what_is_refused_for_good_is_found_among_what_waits() -> None:
    async def scenario() -> None:
        async with scene("a", "c", records=400) as made:
            made.gateway.quick = {"c"}
            made.gateway.poison.add(("gateway-1", 333))
            await made.begin()
            await made.pass_time(60.0)
            assert made.place.seqs("c") == [seq for seq in range(1, 401) if seq != 333]
            assert made.world.letters.seqs("dead") == [333]

    run_virtual(scenario())


step = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.3, 3.0])),
    st.tuples(st.just("read"), st.sampled_from("abc"), st.integers(1, 6)),
    st.tuples(st.just("read"), st.sampled_from("abc"), st.integers(1, 6)),
    st.tuples(st.just("lose"), st.integers(1, 2)),
    st.tuples(st.just("append"), st.sampled_from("xy"), st.integers(0, 1)),
    st.tuples(st.just("begin")),
)


@given(
    kinds=st.lists(st.sampled_from("xxy"), min_size=1, max_size=30),
    reset_to=st.integers(0, 30),
    steps=st.lists(step, max_size=40),
    size=st.sampled_from([1, 2, 3, 5]),
)
@settings(deadline=None, max_examples=80)
def test_everybody_gets_what_is_for_it_once_and_in_order(
    kinds: list[str], reset_to: int, steps: list[tuple[Any, ...]], size: int
) -> None:
    async def scenario() -> None:
        bounds = Bounds(queue=24)  # room for six redeliveries
        async with scene(
            *"abc", records=0, bounds=bounds, batch_max_size=size, redrive_every_s=2.0
        ) as made:
            again = kinds[:reset_to]
            for kind in kinds:
                made.world.append(1, kind=kind)
            made.world.checkpoints.put(made.world.refs[0], Position(0, redeliver_to=len(again)))
            all_kinds = list(kinds)
            await made.begin()
            for what, *how in steps:
                if what == "wait":
                    await made.pass_time(how[0])
                elif what == "read":
                    made.place.read(*how)
                elif what == "lose":
                    made.gateway.answers_to_lose = how[0]
                elif what == "append" and len(all_kinds) - len(again) < 20:
                    made.world.append(1, kind=how[0])
                    all_kinds.append(how[0])
                elif what == "begin":
                    await made.begin()
            made.gateway.answers_to_lose = 0
            for _ in range(80):
                await made.pass_time(1.0)
                for name in "abc":
                    made.place.read(name)
            for name, wanted in {"a": "xy", "b": "x", "c": "y"}.items():
                due = [seq for seq, kind in enumerate(all_kinds, 1) if kind in wanted]
                assert made.place.seqs(name, 0) == due
            assert made.world.letters.letters == []

    run_virtual(scenario())


def test_without_dead_letters_one_that_is_wanted_later_is_tried_now_and_then() -> None:
    """A partition that stands still sends one letter at a time, and always the oldest."""

    async def scenario() -> None:
        async with scene("a", "c", records=40, bounds=Bounds(queue=8), dlq_enabled=False) as made:
            made.gateway.quick = {"c"}
            made.gateway.poison.add(("gateway-1", 30))
            made.gateway.on_batch = lambda: enough(made.gateway)
            await made.begin()
            await made.pass_time(10.0)
            sent = len(made.gateway.batches)
            await made.pass_time(30.0)
            assert 0 < len(made.gateway.batches) - sent <= 10

    def enough(gateway: RealGateway) -> None:
        assert len(gateway.batches) < 1_000, "nothing is ever resting"

    run_virtual(scenario())
