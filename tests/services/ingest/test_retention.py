"""Retention, and a wall clock that can't be trusted; on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from headgate.adapters.memory.log import MemoryLog
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.decide.delivery.lost_logs import next_head
from headgate.errors import Fenced, StorageFailed, StoreChanged, Timeout
from headgate.model.event import Event, PartitionRef
from headgate.model.position import Position
from headgate.model.topology import Topic
from headgate.ports.log import Retention
from headgate.ports.machine import Machine
from headgate.services.ingest.retention import RetentionLoop, RetentionOptions
from tests.services.ingest.doubles import FaultyLogWriter, World, topology
from tests.virtual_time import run_virtual

JOBS = Topic("jobs", 2, "opportunistic")
FIRST, SECOND = JOBS.refs()
KEEP = Retention(max_age_ms=3_600_000, max_bytes=10_000)
OPTIONS = RetentionOptions(KEEP, every_s=60.0, idempotency_ttl_s=1_800.0)
HOUR_MS = 3_600_000


async def settled() -> dict[PartitionRef, Position]:
    return {SECOND: Position(7)}


def running() -> ScriptedMachine:
    return ScriptedMachine(begins_ms=1_000 * HOUR_MS, clock=asyncio.get_running_loop().time)


async def opened(writer: FaultyLogWriter, machine: Machine) -> tuple[World, RetentionLoop]:
    world = World(writer, settled=settled)
    assert await world.adopt(topology(1, JOBS))
    loop = RetentionLoop(
        OPTIONS,
        writer=writer,
        partitions=world.partitions,
        settled=world.settled,
        machine=machine,
    )
    return world, loop


async def looped(writer: FaultyLogWriter, machine: Machine) -> asyncio.Task[None]:
    _, loop = await opened(writer, machine)
    return asyncio.create_task(loop.run())


def test_every_open_partition_is_retained_up_to_its_settled_position() -> None:
    async def scenario() -> None:
        writer, machine = FaultyLogWriter(), running()
        loop = await looped(writer, machine)
        await asyncio.sleep(59)
        assert writer.retained == []
        await asyncio.sleep(2)
        now_ms = 1_000 * HOUR_MS + 60_000
        assert writer.retained == [
            (FIRST, KEEP, {"settled": 0, "ids_ms": 1_800_000, "now_ms": now_ms}),
            (SECOND, KEEP, {"settled": 7, "ids_ms": now_ms, "now_ms": now_ms}),
        ]
        loop.cancel()

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("failure", "rounds"),
    [
        pytest.param(StorageFailed("not now"), 3, id="tried-again"),
        pytest.param(Fenced("epoch 9 came"), 1, id="lost"),
    ],
)
def test_a_failure_concerns_its_partition_alone(failure: Exception, rounds: int) -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        writer.retain_failures[FIRST] = failure
        loop = await looped(writer, running())
        await asyncio.sleep(190)
        refs = [ref for ref, _, _ in writer.retained]
        assert (refs.count(FIRST), refs.count(SECOND)) == (rounds, 3)
        loop.cancel()

    run_virtual(scenario())


async def test_a_store_that_changed_is_opened_again_also_where_nobody_appends() -> None:
    writer = FaultyLogWriter()
    writer.retain_failures[FIRST] = StoreChanged("it went back", given_out=5)
    world, retention = await opened(writer, running())
    await retention.once()
    await world.partitions.open_again()
    assert dict(world.partitions.heads())[FIRST] == next_head(5)


@pytest.mark.parametrize(
    ("jump_ms", "expected_ms"),
    [
        pytest.param(+9_000 * HOUR_MS, 60_000, id="ahead"),
        pytest.param(-HOUR_MS, 60_000 - HOUR_MS, id="back"),
    ],
)
def test_a_clock_that_jumps_never_makes_records_older_than_they_can_be(
    jump_ms: int, expected_ms: int
) -> None:
    async def scenario() -> None:
        writer, machine = FaultyLogWriter(), running()
        loop = await looped(writer, machine)
        await asyncio.sleep(30)
        machine.begins_ms += jump_ms
        await asyncio.sleep(31)
        assert writer.retained[0][2]["now_ms"] == 1_000 * HOUR_MS + expected_ms
        loop.cancel()

    run_virtual(scenario())


@pytest.mark.parametrize("jump_ms", [+9_000 * HOUR_MS, -9_000 * HOUR_MS], ids=["ahead", "back"])
def test_deadlines_dont_follow_a_clock_that_jumps(jump_ms: int) -> None:
    async def scenario() -> None:
        writer, machine = FaultyLogWriter(), running()
        world = World(writer, machine=machine)
        assert await world.adopt(topology(1, JOBS))
        await world.write(JOBS, [Event("before", b"{}")], timeout_s=5)
        writer.failures = dict.fromkeys(JOBS.refs(), StorageFailed("full"))
        waiting = asyncio.create_task(world.write(JOBS, [Event("a", b"{}")], timeout_s=5))
        await asyncio.sleep(1)
        machine.begins_ms += jump_ms
        with pytest.raises(Timeout):
            await waiting
        assert asyncio.get_running_loop().time() == pytest.approx(5)
        writer.failures.clear()
        await asyncio.sleep(5)
        [after] = await world.write(JOBS, [Event("after", b"{}")], timeout_s=5)
        [again] = await world.write(JOBS, [Event("after", b"{}")], timeout_s=5)
        assert (after.partition, after.seq) == (again.partition, again.seq) == (1, 1)
        # The records say what the clock said.
        [before], [later] = writer.records[FIRST], writer.records[SECOND]
        assert before.time_ms == 1_000 * HOUR_MS
        assert later.time_ms == 1_000 * HOUR_MS + 10_000 + jump_ms

    run_virtual(scenario())


def test_a_node_whose_clock_is_ahead_forgets_no_ids_that_another_one_has_just_written() -> None:
    async def scenario() -> None:
        log, ahead_ms = MemoryLog(), 2 * HOUR_MS
        first, _ = await opened(FaultyLogWriter(log), running())
        events = [Event("e1", b"{}"), Event("e2", b"{}")]
        written = await first.write(JOBS, events, timeout_s=5.0)
        machine = running()
        machine.begins_ms += ahead_ms
        second, loop = await opened(FaultyLogWriter(log), machine)
        for _ in range(29):
            await loop.once()
            assert await second.write(JOBS, events, timeout_s=5.0) == written
            await asyncio.sleep(60.0)
        partition = log.partitions[FIRST]
        assert partition.find(["e1"])
        await asyncio.sleep(120.0)
        await loop.once()
        assert not partition.find(["e1"]), "and keeps them no longer than it would its own"

    run_virtual(scenario())
