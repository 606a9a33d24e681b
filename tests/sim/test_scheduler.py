"""Simulated processes: clocks of their own, frozen and killed ones, the same run every time."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sim.escapes import watched
from tests.sim.scheduler import DRIFT_MAX, Escape, Scheduler, Stuck

ROOT = Path(__file__).parents[2]


def test_each_process_has_a_clock_of_its_own_that_drifts() -> None:
    scheduler = Scheduler(1)
    lived_s: dict[str, float] = {}

    async def sleeps(name: str) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.sleep(3_600.0)
        lived_s[name] = scheduler.now_s
        assert 3_600.0 <= loop.time() - began_s < 3_600.001

    for name in ("fast", "slow"):
        scheduler.process(name).start(sleeps(name))
    scheduler.run(until_s=4_000.0, done=lambda: len(lived_s) == 2)

    assert lived_s["fast"] != lived_s["slow"]
    assert all(abs(one - 3_600.0) <= 3_600.0 * DRIFT_MAX * 1.01 for one in lived_s.values())


def test_a_frozen_process_does_nothing_and_finds_its_timers_due_afterwards() -> None:
    scheduler = Scheduler(2)
    ticked: list[float] = []

    async def ticks() -> None:
        while True:
            await asyncio.sleep(1.0)
            ticked.append(scheduler.now_s)

    async def lives() -> None:
        await asyncio.sleep(100.0)

    process = scheduler.process("ticking")
    process.start(ticks())
    scheduler.process("other").start(lives())
    scheduler.run(until_s=3.5)
    process.freeze()
    scheduler.run(until_s=60.0)
    assert [round(one) for one in ticked] == [1, 2, 3]
    process.thaw()
    scheduler.run(until_s=60.5)
    assert [round(one) for one in ticked] == [1, 2, 3, 60]


def test_nothing_of_a_killed_process_runs_any_more_not_even_its_last_words() -> None:
    scheduler = Scheduler(3)
    said: list[str] = []
    victim, other = scheduler.process("victim"), scheduler.process("other")
    called = victim.create_future()

    async def lives() -> None:
        try:
            await called
            said.append("heard")
        finally:
            said.append("last words")

    async def kills() -> None:
        await asyncio.sleep(1.0)
        victim.kill()
        called.set_result(None)
        await asyncio.sleep(10.0)

    victim.start(lives())
    other.start(kills())
    scheduler.run(until_s=10.0)
    assert said == []
    assert victim.state == "killed"


def test_what_one_process_completes_another_hears_in_its_own_turn() -> None:
    scheduler = Scheduler(4)
    one, two = scheduler.process("one"), scheduler.process("two")
    question = two.create_future()
    heard: list[object] = []

    async def waits() -> None:
        heard.append(await question)
        heard.append(asyncio.get_running_loop())

    async def answers() -> None:
        await asyncio.sleep(1.0)
        question.set_result("answer")
        assert heard == []

    two.start(waits())
    one.start(answers())
    scheduler.run(until_s=2.0, done=lambda: len(heard) == 2)
    assert heard == ["answer", two]


def test_everybody_waiting_without_a_timer_is_said_and_not_waited_for() -> None:
    scheduler = Scheduler(5)
    scheduler.process("waiting").start(asyncio.Event().wait())
    with pytest.raises(Stuck):
        scheduler.run(until_s=1.0)


def test_a_loop_that_never_waits_lets_time_pass_for_the_others() -> None:
    scheduler = Scheduler(6)
    over: list[float] = []

    async def spins() -> None:
        for _ in range(1_000_000):
            await asyncio.sleep(0)

    async def waits() -> None:
        await asyncio.sleep(0.001)
        over.append(scheduler.now_s)

    scheduler.process("spinning").start(spins())
    scheduler.process("waiting").start(waits())
    scheduler.run(until_s=1.0, done=lambda: bool(over))
    assert over[0] < 0.0011


ESCAPES: dict[str, Callable[[], object]] = {
    "time.monotonic": lambda: time.monotonic() + 1.0,
    "random.random": lambda: random.random() < 0.5,
    "os.urandom": lambda: os.urandom(8),
    "Thread.start": lambda: threading.Thread(target=print).start(),
    "socket.__new__": lambda: socket.socket().close(),
    "time.sleep": lambda: time.sleep(0.001),
    "run_in_executor": lambda: asyncio.get_running_loop().run_in_executor(None, print),
    "create_server": lambda: asyncio.get_running_loop().create_server(asyncio.Protocol, "", 1),
}


@pytest.mark.parametrize("what", ESCAPES)
def test_what_escapes_ends_the_run_by_name_however_well_it_is_swallowed(what: str) -> None:
    scheduler = Scheduler(7)

    async def escapes() -> None:
        try:
            ESCAPES[what]()
        except Exception:  # noqa: BLE001 - as a careless program does
            await asyncio.sleep(5.0)

    scheduler.process("careless").start(escapes())
    with watched(scheduler), pytest.raises(Escape, match=f"careless .*{what}"):
        scheduler.run(until_s=10.0)


def test_the_same_seed_gives_the_same_run_in_another_process_and_another_seed_another() -> None:
    assert _lived_elsewhere(11) == _lived_elsewhere(11) != _lived_elsewhere(12)


def _lived_elsewhere(seed: int) -> str:
    command = [sys.executable, "-m", "tests.sim.test_scheduler", str(seed)]
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    ended = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def lived(seed: int) -> str:
    """Some processes that wait for sets of tasks, which have an order only by their numbers."""
    scheduler = Scheduler(seed)
    said: list[str] = []

    async def works(name: str, chance: random.Random) -> None:
        async def part(number: int) -> int:
            await asyncio.sleep(chance.random())
            return number

        for _ in range(20):
            pending = {asyncio.ensure_future(part(number)) for number in range(5)}
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                said.extend(f"{name} {one.result()}" for one in done)

    tasks = []
    for number in range(4):
        process = scheduler.process(f"p{number}")
        tasks.append(process.start(works(process.name, random.Random(f"{seed} {number}"))))
    scheduler.run(until_s=60.0, done=lambda: all(task.done() for task in tasks))
    return f"{scheduler.digest} {' '.join(said)}"


if __name__ == "__main__":
    print(lived(int(sys.argv[1])))  # noqa: T201 - for whoever started it
