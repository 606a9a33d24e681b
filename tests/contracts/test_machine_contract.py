"""The contract of ports.machine, for the real machine and the scripted one."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest

from headgate.adapters.machine import THIS_MACHINE
from headgate.adapters.memory.machine import BEGINS_MS, ScriptedMachine
from headgate.ports.machine import Machine


@pytest.fixture(params=["this", "scripted"])
def machine(request: pytest.FixtureRequest) -> Machine:
    return THIS_MACHINE if request.param == "this" else ScriptedMachine()


def test_both_ways_to_ask_for_wall_time_are_one_clock(machine: Machine) -> None:
    before_ms, now_s, after_ms = machine.wall_ms(), machine.wall_s(), machine.wall_ms()
    assert before_ms - 1 < now_s * 1_000 < after_ms + 1


def test_clocks_that_measure_never_go_back(machine: Machine) -> None:
    for clock in (machine.monotonic_s, machine.cpu_s):
        readings = [clock() for _ in range(100)]
        assert readings == sorted(readings)


def test_jitter_is_spread_over_one(machine: Machine) -> None:
    drawn = [machine.jitter() for _ in range(1_000)]
    assert 0.0 <= min(drawn) < 0.1
    assert 0.9 < max(drawn) < 1.0


def test_names_are_of_the_size_asked_for_and_never_the_same(machine: Machine) -> None:
    tokens = {machine.token(12) for _ in range(100)}
    assert len(tokens) == 100
    assert {len(bytes.fromhex(one)) for one in tokens} == {12}
    entropy = {machine.entropy(10) for _ in range(100)}
    assert len(entropy) == 100
    assert {len(one) for one in entropy} == {10}


async def test_what_is_offloaded_returns_and_raises(machine: Machine) -> None:
    assert await machine.offload(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await machine.offload(lambda: 1 // 0)


async def test_others_have_their_turn_before_what_is_offloaded_is_there(machine: Machine) -> None:
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "another")
    await machine.offload(lambda: None)
    assert turns == ["another"]


async def test_this_machine_is_the_one_the_process_runs_on() -> None:
    assert abs(THIS_MACHINE.wall_ms() - time.time() * 1_000) < 60_000
    assert abs(THIS_MACHINE.monotonic_s() - time.monotonic()) < 60
    assert THIS_MACHINE.pid() == os.getpid()
    assert await THIS_MACHINE.offload(threading.get_ident) != threading.get_ident()


def test_a_script_is_played_again_by_its_seed() -> None:
    def drawn(seed: int) -> tuple[object, ...]:
        machine = ScriptedMachine(seed)
        return machine.jitter(), machine.token(4), machine.entropy(4)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_time_passes_as_the_script_says() -> None:
    now_s = 5.0
    machine = ScriptedMachine(clock=lambda: now_s)
    assert (machine.monotonic_s(), machine.wall_ms()) == (5.0, BEGINS_MS + 5_000)
    machine.passes(1.5)
    assert (machine.monotonic_s(), machine.wall_s()) == (6.5, BEGINS_MS / 1_000 + 6.5)
    machine.begins_ms -= 3_600_000
    assert (machine.monotonic_s(), machine.wall_ms()) == (6.5, BEGINS_MS - 3_600_000 + 6_500)
    assert machine.cpu_s() == 0.0
    machine.used_s += 2.0
    assert machine.cpu_s() == 2.0
