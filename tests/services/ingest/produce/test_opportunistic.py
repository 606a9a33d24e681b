"""Opportunistic topics when partitions fail, drag on or come back; on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from headgate.adapters.memory.log import MemoryLog
from headgate.decide.produce.partition_health import HealthRules
from headgate.decide.produce.placing import PlacingRules
from headgate.errors import (
    Fenced,
    HeadgateError,
    InvalidRequest,
    NotNow,
    OutcomeUnknown,
    Overloaded,
    StorageFailed,
    Timeout,
)
from headgate.model.api import ProduceResult
from headgate.model.event import Event, PartitionRef
from headgate.model.position import Position
from headgate.model.topology import Owner, Topic, Topology
from headgate.services.ingest.produce.appends import WriteBounds
from tests.services.ingest.doubles import (
    NODE,
    FaultyLogWriter,
    World,
    disk_failed_late,
    topology,
)
from tests.virtual_time import run_virtual

JOBS = Topic("jobs", 3, "opportunistic")
REFS = JOBS.refs()
FULL = StorageFailed("the disk is full")

Scenario = Callable[[World, FaultyLogWriter], Coroutine[Any, Any, None]]


def event(event_id: str) -> Event:
    return Event(event_id, b"{}")


def play(scenario: Scenario, **options: Any) -> FaultyLogWriter:
    """Run `scenario` on virtual time; afterwards no event may be there twice."""

    async def work() -> FaultyLogWriter:
        writer = FaultyLogWriter()
        world = World(writer, **options)
        assert await world.adopt(topology(1, JOBS))
        await scenario(world, writer)
        await world.writing.stop(timeout_s=1)
        world.writing.close()
        return writer

    writer = run_virtual(work())
    ids = [one.event_id for ref in REFS for one in writer.records[ref]]
    assert len(ids) == len(set(ids))
    return writer


async def written(world: World, *ids: str, timeout_s: float = 5.0) -> list[ProduceResult]:
    return await world.write(JOBS, [event(one) for one in ids], timeout_s=timeout_s)


async def partition(world: World, *ids: str, timeout_s: float = 5.0) -> int | None:
    """Where a request went; it must be one partition."""
    [number] = {result.partition for result in await written(world, *ids, timeout_s=timeout_s)}
    return number


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def outcome(work: Awaitable[object]) -> object:
    try:
        return await work
    except HeadgateError as error:
        return error


# --- the rule ------------------------------------------------------------------------------------


def test_requests_that_come_at_once_count_for_each_other() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        placed = await asyncio.gather(*(partition(world, f"e{n}") for n in range(6)))
        assert placed == [0, 1, 2, 0, 1, 2]

    play(scenario)


def test_unreadable_positions_place_by_the_last_known_ones() -> None:
    async def unreadable() -> dict[PartitionRef, Position]:
        raise StorageFailed("the store is away")

    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        assert [await partition(world, f"e{n}") for n in range(4)] == [0, 1, 2, 0]

    play(scenario, settled=unreadable)


# --- failing partitions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(FULL, id="storage"),
        pytest.param(Overloaded("too much waits"), id="overloaded"),
        pytest.param(Fenced("epoch 9 came"), id="fenced"),
        pytest.param(NotNow("locked"), id="not-now"),
    ],
)
def test_what_fails_for_sure_is_written_elsewhere_whole(failure: Exception) -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.failures[REFS[0]] = failure
        assert await partition(world, "a", "b", "c") == 1
        assert now_s() == 0

    writer = play(scenario)
    assert [len(writer.records[ref]) for ref in REFS] == [0, 3, 0]


def test_a_failing_partition_is_left_alone_then_probed_and_taken_back() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.failures[REFS[0]] = FULL
        for n in range(20):
            await written(world, f"e{n}")
        assert [ref for ref, _ in writer.attempts].count(REFS[0]) == 1
        await asyncio.sleep(0.5)
        await written(world, "probe-1")
        await asyncio.sleep(0.5)
        await written(world, "too-early")
        assert [ref for ref, _ in writer.attempts].count(REFS[0]) == 2
        writer.failures.clear()
        await asyncio.sleep(0.25)
        assert await partition(world, "probe-2") == 0

    play(scenario)


def test_with_all_partitions_failing_a_request_waits_until_one_recovers() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.failures = dict.fromkeys(REFS, FULL)
        waiting = asyncio.create_task(partition(world, "a", "b", timeout_s=30))
        await asyncio.sleep(4)
        assert not waiting.done()
        del writer.failures[REFS[2]]
        assert await waiting == 2
        assert now_s() < 9.1, "at most the longest time aside later"

    play(scenario)


def test_with_all_partitions_failing_for_good_the_answer_says_nothing_was_written() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.failures = dict.fromkeys(REFS, FULL)
        with pytest.raises(Timeout, match="nothing was written"):
            await written(world, "a", timeout_s=7)
        assert now_s() == pytest.approx(7)
        # Nine tries at 0, 0.5, 1.25, 2.375, 4.06 and 6.6 s for each partition, no storm.
        assert len(writer.attempts) == 3 * 6

    writer = play(scenario)
    assert not any(writer.records.values())


def test_a_value_that_cant_be_stored_is_the_callers_fault_at_once() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.failures = dict.fromkeys(REFS, InvalidRequest("a key has a NUL in it"))
        with pytest.raises(InvalidRequest, match="NUL"):
            await written(world, "a")
        assert len(writer.attempts) == 1

    play(scenario)


def test_a_partition_that_was_lost_takes_nothing_and_a_new_one_takes_what_waits() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.failures = dict.fromkeys(REFS, Fenced("epoch 9 came"))
        waiting = asyncio.create_task(partition(world, "a", timeout_s=60))
        await asyncio.sleep(20)
        assert len(writer.attempts) == 3
        assert world.partitions.owns() == ()
        writer.failures.clear()
        again = Topology(2, (JOBS,), logs=(Owner(REFS[1], NODE, 2),))
        assert await world.adopt(again)
        assert await waiting == 1
        assert now_s() == 20

    play(scenario)


def test_what_waits_is_not_placed_on_a_partition_that_was_lost_meanwhile() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.failures = dict.fromkeys(REFS, FULL)
        waiting = asyncio.create_task(partition(world, "a"))
        await asyncio.sleep(0.1)
        writer.failures.clear()
        [first, *_] = world.partitions.opened()
        first.lost = True
        assert await waiting == 1

    play(scenario)


# --- unknown outcomes ----------------------------------------------------------------------------


def test_a_write_of_five_seconds_succeeds_once_and_holds_up_nobody_else() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.delays_s[REFS[0]] = 5
        slow = asyncio.create_task(partition(world, "slow", timeout_s=15))
        await asyncio.sleep(3.1)
        # Overdue: from now on it is avoided.
        others = [await partition(world, f"e{n}") for n in range(6)]
        assert others == [1, 2, 1, 2, 1, 2]
        assert now_s() == pytest.approx(3.1)
        assert await slow == 0
        assert now_s() == pytest.approx(5)

    writer = play(scenario)
    assert len(writer.records[REFS[0]]) == 1


@pytest.mark.parametrize("really", ["written", "not-written"])
def test_an_unknown_outcome_is_read_back_before_anything_else_is_done(really: str) -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        if really == "written":
            writer.lost_answers[REFS[0]] = disk_failed_late()
        else:
            writer.failures[REFS[0]] = disk_failed_late()
        assert await partition(world, "a", "b") == (0 if really == "written" else 1)

    play(scenario)


def test_what_cant_be_read_back_stays_bound_and_a_retry_goes_there_first() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.lost_answers[REFS[0]] = disk_failed_late()
        writer.find_failures[REFS[0]] = FULL
        with pytest.raises(OutcomeUnknown) as caught:
            await written(world, "a", "b", timeout_s=8)
        assert caught.value.details == {"partition": 0}
        assert now_s() == pytest.approx(8)
        assert [ref for ref, _ in writer.attempts] == [REFS[0]]
        with pytest.raises(OutcomeUnknown):
            await written(world, "a", "b", timeout_s=2)
        writer.find_failures.clear()
        again = await written(world, "a", "b")
        assert [(result.partition, result.seq) for result in again] == [(0, 1), (0, 2)]

    play(scenario)


def test_a_retry_that_mixes_known_and_new_events_writes_only_the_new_ones() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.lost_answers[REFS[0]] = disk_failed_late()
        writer.find_failures[REFS[0]] = FULL
        await outcome(written(world, "a", "b", timeout_s=1))
        writer.find_failures.clear()
        writer.lost_answers.clear()
        again = await written(world, "new", "b", "a")
        assert [(result.partition, result.seq) for result in again] == [(1, 1), (0, 2), (0, 1)]

    play(scenario)


def test_a_retry_after_the_answer_got_lost_finds_its_first_attempt() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        assert await partition(world, "a", "b") == 0
        assert await partition(world, "a", "b") == 0
        assert await partition(world, "a", "b") == 0

    play(scenario)


def test_a_retry_across_a_restart_finds_its_first_attempt() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        before = World(FaultyLogWriter(log))
        await before.adopt(topology(1, JOBS))
        await written(before, "x")
        assert await partition(before, "a", "b") == 1
        after = World(FaultyLogWriter(log))
        await after.adopt(topology(1, JOBS))
        assert await partition(after, "a", "b") == 1

    run_virtual(scenario())


def test_a_late_failure_frees_a_retry_to_go_anywhere() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.gates[REFS[0]] = asyncio.Event()
        with pytest.raises(OutcomeUnknown):
            await written(world, "a", timeout_s=4)
        writer.failures[REFS[0]] = FULL
        writer.gates[REFS[0]].set()
        await world.drain(timeout_s=1)
        assert await partition(world, "a") == 1

    play(scenario)


# --- slow partitions -----------------------------------------------------------------------------


def test_a_degraded_partition_is_avoided_and_tried_again() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.delays_s = {REFS[0]: 0.8, REFS[1]: 0.1, REFS[2]: 0.1}
        for n in range(10):
            await asyncio.gather(*(written(world, f"{n}-{m}") for m in range(3)))
        busy = [await partition(world, f"busy-{n}") for n in range(6)]
        assert 0 not in busy
        writer.delays_s[REFS[0]] = 0.1
        await asyncio.sleep(10)
        assert await partition(world, "probe") == 0

    play(scenario)


def test_settings_of_health_act() -> None:
    rules = PlacingRules(write_timeout_s=0.2, health=HealthRules(set_aside_initial_s=2.0))

    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.failures = dict.fromkeys(REFS, FULL)
        waiting = asyncio.create_task(partition(world, "a"))
        await asyncio.sleep(1.9)
        writer.failures.clear()
        assert await waiting == 0
        assert now_s() == pytest.approx(2.0)

    play(scenario, placing=rules)


# --- the bound, the caller, the end --------------------------------------------------------------


def test_beyond_the_bound_a_request_is_told_to_come_back() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.failures = dict.fromkeys(REFS, FULL)
        waiting = [asyncio.create_task(outcome(written(world, f"e{n}"))) for n in range(3)]
        await asyncio.sleep(0.1)
        with pytest.raises(Overloaded, match="nothing was written"):
            await written(world, "one too many")
        ended = await asyncio.gather(*waiting)
        assert all(isinstance(one, Timeout) for one in ended)
        writer.failures.clear()
        await asyncio.sleep(5)
        assert await partition(world, "later") == 0

    play(scenario, bounds=WriteBounds(requests=3))


def test_a_caller_that_goes_while_it_waits_is_not_written_for() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.failures = dict.fromkeys(REFS, FULL)
        caller = asyncio.create_task(written(world, "a", timeout_s=60))
        await asyncio.sleep(1)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        writer.failures.clear()
        await asyncio.sleep(60)

    writer = play(scenario)
    assert not any(writer.records.values())


def test_a_caller_that_goes_while_it_is_written_stops_nothing() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.delays_s[REFS[0]] = 1
        caller = asyncio.create_task(written(world, "a"))
        await asyncio.sleep(0.5)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        await asyncio.sleep(1)
        assert await partition(world, "a") == 0, "and a retry finds it"

    writer = play(scenario)
    assert [len(writer.records[ref]) for ref in REFS] == [1, 0, 0]


def test_a_stop_answers_everybody_who_waits() -> None:
    async def scenario(world: World, writer: FaultyLogWriter) -> None:
        writer.failures = dict.fromkeys(REFS[1:], FULL)
        writer.gates[REFS[0]] = asyncio.Event()
        callers = []
        for n in range(5):
            callers.append(asyncio.create_task(outcome(written(world, f"e{n}", timeout_s=600))))
            await asyncio.sleep(0.8)
        writing = asyncio.create_task(world.writing.stop(timeout_s=2))
        ended = await asyncio.gather(*callers)
        assert not await writing
        assert now_s() == pytest.approx(6)
        kinds = sorted(type(one).__name__ for one in ended)
        assert set(kinds) == {"NotNow", "OutcomeUnknown"}
        assert all("nothing was written" in str(one) for one in ended if type(one) is NotNow)
        writer.gates[REFS[0]].set()

    play(scenario)


def test_time_that_is_up_before_the_clock_is_set_is_noticed_on_the_loop_of_production() -> None:
    async def work() -> None:
        writer = FaultyLogWriter()
        writer.failures = dict.fromkeys(REFS, FULL)
        world = World(writer)
        assert await world.adopt(topology(1, JOBS))
        late = [written(world, f"e{number}", timeout_s=0) for number in range(3)]
        async with asyncio.timeout(5):
            ended = await asyncio.gather(*late, return_exceptions=True)
        assert all(isinstance(one, Timeout | OutcomeUnknown) for one in ended), ended
        world.writing.close()

    uvloop.run(work())
