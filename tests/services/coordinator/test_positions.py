"""A coordinator whose store of positions is damaged, slow or away: nobody else waits for that."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from headgate.decide.coordination.sources import resetting
from headgate.decide.lane.checkpoints import Reset
from headgate.errors import StorageFailed
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.event import Fence, PartitionRef
from headgate.model.position import Position, Tally
from headgate.model.subscription import Subscription
from headgate.services.coordinator.term import CARRY_OUT_TIMEOUT_S, FENCE_TIMEOUT_S
from tests.faulty_checkpoints import FaultyCheckpoints
from tests.services.coordinator.term_doubles import FailingTerm, Stage
from tests.services.coordinator.test_terms import hello
from tests.virtual_time import run_virtual

FLIGHTS = PartitionRef("flights", 0)
OTHER = PartitionRef("flights", 1)
LONG_S = 4.0
"""As long as a store takes that is away."""


class Positions(Stage):
    """With a store of positions that does what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: FaultyCheckpoints = FaultyCheckpoints()


def test_of_one_that_cannot_be_read_what_was_known_is_told_and_of_others_what_is_so() -> None:
    async def play() -> None:
        stage = Positions()
        term = await stage.begin()
        for ref in (FLIGHTS, OTHER):
            stage.positions.put(ref, Position(3, Tally(acknowledged=3)))
        await term.stored()
        stage.positions.damaged.add(FLIGHTS)
        stage.positions.put(OTHER, Position(7, Tally(acknowledged=7)))
        stored = await term.stored()
        assert {ref: one.settled for ref, one in stored.positions.items()} == {FLIGHTS: 3, OTHER: 7}
        assert term.positions_error == "what is stored for flights:0 is no position"
        stage.positions.damaged.clear()
        await term.stored()
        assert term.positions_error == ""
        await stage.end(term)

    run_virtual(play())


async def started(stage: Stage, term: FailingTerm) -> tuple[int, int]:
    """A gateway and a router, and whom they need."""
    gateway = stage.connect(term, hello("gateway", "gateway-1"))
    router = stage.connect(term, hello("router", "router-1"))
    stage.connect(term, hello("ingest", "ingest-1"))
    await asyncio.sleep(1)
    stage.say(gateway, to_coordinator.RegistrationComplete())
    await asyncio.sleep(1)
    return gateway, router


async def acknowledged(stage: Stage, term: FailingTerm, session: int) -> None:
    stage.say(session, to_coordinator.AckTopology(term.cluster.generation, ("flights",)))
    await asyncio.sleep(1)


@pytest.mark.parametrize("away", [False, True], ids=["slow", "away"])
def test_nobody_else_waits_for_positions_that_take_long_to_be_claimed(away: bool) -> None:
    async def play() -> None:
        stage, clock = Positions(), asyncio.get_running_loop().time
        term = await stage.begin()
        gateway, router = await started(stage, term)
        stage.positions.takes_s = LONG_S
        stage.positions.failing = StorageFailed("it is away") if away else None
        began_s = clock()
        await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        assert clock() - began_s < 1
        for number in range(20):
            one = Subscription(f"s{number}", "gateway-1", "flights")
            stage.say(gateway, to_coordinator.Register(number, (one,)))
            await asyncio.sleep(FENCE_TIMEOUT_S + 0.1)
            assert len(stage.heard(gateway, from_coordinator.Registered)) == number + 1
        assert clock() - began_s > 2 * LONG_S
        stage.positions.takes_s, stage.positions.failing = 0.0, None
        await asyncio.sleep(LONG_S + 2)
        await acknowledged(stage, term, gateway)
        told = [one for one in stage.heard(router, from_coordinator.Assign) if one.sources]
        assert [owner.ref for owner in told[-1].sources] == [FLIGHTS]
        await stage.end(term)

    run_virtual(play())


def test_of_one_partition_only_one_claim_is_under_way() -> None:
    """A second one under the same epoch would take the lane that follows the first for a
    stranger."""

    async def play() -> None:
        stage = Positions()
        term = await stage.begin()
        gateway, router = await started(stage, term)
        stage.positions.takes_s = LONG_S
        await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        await asyncio.sleep(LONG_S)
        stage.positions.takes_s = 0.0
        await acknowledged(stage, term, gateway)
        [owner] = stage.heard(router, from_coordinator.Assign)[-1].sources
        await stage.positions.claim(FLIGHTS, Fence(owner.epoch, 1, 0))
        await asyncio.sleep(2 * LONG_S)
        assert term.cluster.sources.owners[FLIGHTS] == owner
        await stage.end(term)

    run_virtual(play())


def test_what_comes_too_late_counts_for_nothing() -> None:
    """While a position is put to where an operator wanted it, another place is wanted."""

    async def play() -> None:
        stage = Positions()
        term = await stage.begin()
        await started(stage, term)
        stage.positions.put(FLIGHTS, Position(6, Tally(acknowledged=6)))
        stage.positions.takes_s = LONG_S
        await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        for reset in (Reset(1), Reset(3)):
            await term.apply(partial(term.cluster.reset, FLIGHTS, reset))
        await term.until(lambda: resetting.is_done(term.cluster, FLIGHTS), timeout_s=60)
        stored = stage.positions.stored[FLIGHTS]
        assert (stored.settled, stored.redeliver_to) == (3, 6)
        assert stored.epoch == term.cluster.sources.owners[FLIGHTS].epoch
        await stage.end(term)

    run_virtual(play())


def test_a_term_ends_while_positions_are_claimed() -> None:
    async def play() -> None:
        stage = Positions()
        term = await stage.begin()
        await started(stage, term)
        stage.positions.takes_s = 1_000.0
        await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        async with asyncio.timeout(2 * CARRY_OUT_TIMEOUT_S):
            await stage.end(term)

    run_virtual(play())


def test_what_goes_wrong_with_a_late_claim_ends_the_term() -> None:
    async def play() -> None:
        stage = Positions()
        term = await stage.begin()
        await started(stage, term)
        stage.positions.takes_s, stage.positions.failing = LONG_S, KeyError("nobody thought of it")
        await term.apply(lambda _: term.cluster.create_topic("flights", 1, "keyed"))
        with pytest.raises(KeyError):
            async with asyncio.timeout(2 * LONG_S):
                await term.over()
        await stage.end(term)

    run_virtual(play())
