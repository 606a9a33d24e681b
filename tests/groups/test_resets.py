"""What a reset of a partition brings again to a group, whoever is there meanwhile.

On virtual time, with the real client, gateways, lanes and decisions (system.py) and the judge of
the hours (oracle.py): when a target has gone back, nothing behind that counts as processed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headgate.decide.lane.checkpoints import Reset
from tests.groups.hour import GATEWAYS, Hour
from tests.groups.member import Member
from tests.groups.oracle import Work
from tests.groups.system import PARTITIONS
from tests.virtual_time import run_virtual

EVENTS = 80
COMES_S = 90.0
"""By then a group has processed what there is, though a handler may take a minute."""
LATER_S = 60.0
CALM_S = 200.0
"""By then whoever was lost has been given up, too."""


async def begun() -> Hour:
    """Three consumers have processed what there is."""
    hour = Hour(5)
    hour.poison.delays_s = (0.0, 0.5, 5.0)
    await hour.system.start(*GATEWAYS)
    for _ in range(3):
        hour.somebody_joins()
    hour.append(1)
    await asyncio.sleep(COMES_S)
    hour.append(EVENTS)
    hour.poison.places.clear()
    await asyncio.sleep(COMES_S)
    assert hour.oracle.missing() == []
    return hour


def reset(hour: Hour, *, to: int = 0) -> None:
    for partition in range(PARTITIONS):
        settled = hour.system.settled(partition)
        coordinator, ref = hour.system.coordinator, hour.system.ref(partition)
        wanted = Reset(to)
        coordinator.apply(coordinator.cluster.reset(ref, wanted, round(coordinator.now_ms())))
        hour.oracle.reset(partition, to, settled)


async def nothing(_hour: Hour) -> None: ...


async def all_are_killed(hour: Hour) -> None:
    for member in list(hour.members.values()):
        await member.die(silently=True)
    hour.members.clear()


async def all_leave(hour: Hour) -> None:
    for member in list(hour.members.values()):
        await member.leave(gently=True)
    hour.members.clear()


async def gateways_are_killed(hour: Hour) -> None:
    for name in GATEWAYS:
        hour.gateway_away(name, is_away=True)
        await hour.system.gateways[name].kill()
    await asyncio.sleep(3.0)
    for name in GATEWAYS:
        await hour.system.start_gateway(name)
        hour.gateway_away(name, is_away=False)


async def the_coordinator_changes(hour: Hour) -> None:
    hour.system.coordinator.restart()


async def others_come(hour: Hour) -> None:
    for _ in range(3):
        hour.somebody_joins()


Trouble = Callable[[Hour], Awaitable[None]]


@pytest.mark.parametrize(
    ("before", "after_s", "after"),
    [
        (all_are_killed, 1.0, nothing),
        (all_leave, 1.0, nothing),
        (others_come, 0.02, all_are_killed),
        (nothing, 0.02, all_are_killed),
        (nothing, 1.0, all_leave),
        (nothing, 0.02, gateways_are_killed),
        (others_come, 0.02, the_coordinator_changes),
        (all_are_killed, 25.0, others_come),
    ],
)
def test_every_record_comes_again(before: Trouble, after_s: float, after: Trouble) -> None:
    async def scenario() -> None:
        hour = await begun()
        await before(hour)
        reset(hour)
        await asyncio.sleep(after_s)
        await after(hour)
        await asyncio.sleep(0.5)
        hour.fill_up()
        await asyncio.sleep(CALM_S)
        assert (hour.left(), hour.oracle.violations) == ("", [])
        assert hour.system.letters.stored.letters == {}, "what comes by itself needs no letter"
        await hour.end()
        assert hour.oracle.violations == []

    run_virtual(scenario())


class Patient(Member):
    """Wants what it `puts_off` later, and processes everything else meanwhile."""

    puts_off: Callable[[Work], bool]

    async def _gets_through(self, work: Work) -> bool:
        return not self.puts_off(work)


def somebody_patient(hour: Hour, name: str, puts_off: Callable[[Work], bool]) -> Patient:
    member = Patient(
        name,
        "manual",
        hour.system.network,
        hour.oracle,
        hour.chance,
        machine=hour.system.machine,
        poison=hour.poison,
    )
    member.puts_off = puts_off
    member.start()
    return member


@pytest.mark.parametrize("is_elsewhere_between", [False, True])
def test_what_was_processed_ahead_of_a_position_comes_again(is_elsewhere_between: bool) -> None:
    """A consumer wants one event later, and processes what comes after it; then the partitions are
    put where its targets never came. It remembers what it did, also when somebody else had them
    meanwhile and did nothing."""

    async def scenario() -> None:
        hour = Hour(5)
        hour.poison.delays_s = (LATER_S,)
        await hour.system.start(*GATEWAYS)
        until_s = 2 * COMES_S + LATER_S
        loop = asyncio.get_running_loop()
        one = somebody_patient(
            hour, "one", lambda work: work.place[1] == 1 and loop.time() < until_s
        )
        await asyncio.sleep(COMES_S)
        hour.append(EVENTS)
        await asyncio.sleep(COMES_S)
        if is_elsewhere_between:
            one.freeze()
            another = somebody_patient(hour, "another", lambda work: bool(work.key))
            await asyncio.sleep(LATER_S)
        reset(hour, to=2)
        assert hour.oracle.wishes.keys() & hour.oracle.acked, "some are processed"
        if is_elsewhere_between:
            await asyncio.sleep(COMES_S)
            one.thaw()
            await asyncio.sleep(1.0)
            await another.leave(gently=True)
        await asyncio.sleep(LATER_S + CALM_S)
        assert (hour.left(), hour.oracle.violations) == ("", [])
        await one.leave(gently=True)
        await hour.end()
        assert hour.oracle.violations == []

    run_virtual(scenario())
