"""How long a consumer has for a target that it is asked for."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from headgate.errors import HeadgateError, Overloaded, StorageFailed
from headgate.model.control.to_coordinator import (
    JoinGroup,
    NoRoom,
    Released,
    StillInHand,
    ToCoordinator,
)
from headgate.model.event import PartitionRef
from headgate.model.groups import Group, group_id
from headgate.model.topology import Owner
from headgate.services.gateway.groups.bounds import ConsumerBounds
from headgate.services.gateway.groups.consumer import GroupConsumer
from headgate.services.gateway.groups.target import Target
from headgate.tasks import Crew
from tests.virtual_time import run_virtual

RADAR = Group(group_id("flights", "radar"), "flights", "radar", 1, None, (0,))
OWNER = Owner(PartitionRef(RADAR.id, 0), "one", 1)
BOUNDS = ConsumerBounds(release_s=10.0, keep_s=60.0)


class Deaf:
    """A connection that nobody listens to."""

    free = False
    has_left = False

    def send(self, message: bytes) -> None: ...

    def answer(self, message: bytes) -> None: ...

    def fail(self, error: HeadgateError) -> None: ...


@dataclass(eq=False)
class BusyTarget:
    """One of which the consumer has something in hand."""

    owner: Owner = OWNER
    number: int = 0
    stopped: bool = False
    is_sure: bool = True
    is_open: bool = True
    is_saved: bool = True
    out: int = 1
    waits_to_be_sure: bool = False
    failures: list[bool] = field(default_factory=list)
    """Whether each was certain."""
    renewed_s: float = 0.0
    told_s: float = 0.0
    starts: dict[int, int] = field(default_factory=dict)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    opens_s: float = 0.0
    has_room: bool = True
    fails_until_s: float = 0.0
    """When its store is back."""
    saved_s: float | None = None

    async def open(self, *, from_the_end: bool) -> None:
        await asyncio.sleep(self.opens_s)
        if not self.has_room:
            raise Overloaded("this gateway is full")

    def begin(self, ready: Any) -> None: ...

    def stop(self) -> None:
        self.stopped = True

    async def save(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self.fails_until_s:
            raise StorageFailed("the store is away")
        self.saved_s = now_s

    def lost(self, *, certain: bool) -> None:
        self.failures.append(certain)

    async def close(self) -> None:
        self.finished.set()


@dataclass
class Given:
    consumer: GroupConsumer
    target: BusyTarget
    told: list[ToCoordinator]

    @property
    def is_released(self) -> bool:
        return Released((OWNER,)) in self.told

    @property
    def is_declined(self) -> bool:
        return NoRoom(OWNER) in self.told


async def asked_for(*, opens_s: float = 0.0, has_room: bool = True) -> Given:
    """A consumer with one target, which it is asked for."""
    given = await opening(BusyTarget(opens_s=opens_s, has_room=has_room))
    given.consumer.let_go([OWNER])
    await asyncio.sleep(9.0)
    assert given.target.stopped
    return given


async def opening(target: BusyTarget) -> Given:
    told: list[ToCoordinator] = []

    async def tell(message: ToCoordinator) -> None:
        told.append(message)

    consumer = GroupConsumer(
        JoinGroup(topic="flights", group="radar", consumer="one", incarnation="1", keys=100),
        Deaf(),
        bounds=BOUNDS,
        tell=tell,
        make_target=lambda _group, _owner: cast("Target", target),
        crew=Crew("test"),
    )
    consumer.assigned(RADAR, [OWNER])
    await asyncio.sleep(0)
    return Given(consumer, target, told)


def test_it_goes_when_the_consumer_had_its_time() -> None:
    async def run() -> None:
        given = await asked_for()
        assert not given.is_released
        await asyncio.sleep(2.0)
        assert (given.is_released, given.target.failures) == (True, [True])

    run_virtual(run())


def test_one_that_is_asked_for_while_it_is_opened_does_not_go_when_it_is_open() -> None:
    """Its consumer may work on what it had of it before."""

    async def run() -> None:
        given = await asked_for(opens_s=5.0)
        assert not given.is_released
        await asyncio.sleep(2.0)
        assert given.is_released

    run_virtual(run())


def test_one_that_works_on_it_has_more_time_and_not_for_ever() -> None:
    async def run() -> None:
        given = await asked_for()
        for _ in range(12):  # until 60 s after it was asked
            assert not given.is_released
            given.consumer.renew(0, 1)
            await asyncio.sleep(4.25)
        assert StillInHand(OWNER) in given.told
        for _ in range(4):
            given.consumer.renew(0, 1)
            await asyncio.sleep(4.0)
            if given.is_released:
                return
        raise AssertionError("it keeps the target for ever")

    run_virtual(run())


def test_it_goes_as_soon_as_the_consumer_is_done() -> None:
    async def run() -> None:
        given = await asked_for()
        given.consumer.renew(0, 1)
        given.target.finished.set()
        await asyncio.sleep(0.1)
        assert given.is_released
        assert not given.target.failures

    run_virtual(run())


# --- no room -------------------------------------------------------------------------------------


def test_one_without_room_goes_when_the_consumer_is_done_with_what_it_had_elsewhere() -> None:
    async def run() -> None:
        given = await opening(BusyTarget(has_room=False))
        for _ in range(5):
            await asyncio.sleep(4.0)
            assert not given.is_declined
            given.consumer.renew(0, 1)
        given.consumer.released(0, 1)
        await asyncio.sleep(0.1)
        assert given.is_declined

    run_virtual(run())


def test_one_without_room_goes_when_the_consumer_had_its_time() -> None:
    async def run() -> None:
        given = await opening(BusyTarget(has_room=False))
        await asyncio.sleep(9.0)
        assert not given.is_declined
        await asyncio.sleep(2.0)
        assert given.is_declined

    run_virtual(run())


def test_a_coordinator_hears_of_it_until_it_takes_the_target_away() -> None:
    """It may have been away, or have yet to learn whose the target is."""

    async def run() -> None:
        given = await opening(BusyTarget(has_room=False))
        await asyncio.sleep(1.0)
        given.consumer.released(0, 1)
        await asyncio.sleep(1.0)
        given.told.clear()
        await asyncio.sleep(1.0)
        assert given.is_declined
        given.consumer.assigned(RADAR, [])
        given.told.clear()
        await asyncio.sleep(1.0)
        assert not given.told

    run_virtual(run())


def test_one_that_is_asked_for_before_there_is_found_no_room_is_released_once_it_is_done() -> None:
    async def run() -> None:
        given = await asked_for(opens_s=5.0, has_room=False)
        assert not given.told
        given.consumer.released(0, 1)
        await asyncio.sleep(1.0)
        assert given.told == [Released((OWNER,))]

    run_virtual(run())


# --- a store that fails meanwhile ----------------------------------------------------------------


def test_it_goes_once_what_is_processed_is_saved() -> None:
    async def run() -> None:
        given = await asked_for()
        given.target.fails_until_s = asyncio.get_running_loop().time() + 5.0
        given.consumer.released(0, 1)
        await asyncio.sleep(4.0)
        assert not given.is_released
        await asyncio.sleep(2.0)
        assert (given.is_released, given.target.saved_s is None) == (True, False)

    run_virtual(run())


def test_a_store_that_stays_away_keeps_no_target() -> None:
    async def run() -> None:
        given = await asked_for()
        given.target.fails_until_s = math.inf
        given.consumer.released(0, 1)
        await asyncio.sleep(9.0)
        assert not given.is_released
        await asyncio.sleep(2.0)
        assert given.is_released

    run_virtual(run())


@pytest.mark.parametrize(("away_s", "takes_s"), [(5.0, 5.0), (math.inf, 10.0)])
def test_a_consumer_ends_once_what_is_processed_is_saved_or_after_a_while(
    away_s: float, takes_s: float
) -> None:
    async def run() -> None:
        given = await opening(BusyTarget(fails_until_s=away_s))
        await given.consumer.end(failed=False)
        ended_s = asyncio.get_running_loop().time()
        assert takes_s <= ended_s < takes_s + 0.5
        assert (given.target.saved_s is None) == math.isinf(away_s)

    run_virtual(run())
