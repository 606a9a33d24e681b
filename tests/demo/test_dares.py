"""What the demo's page dares you to do: begun once at a time, undone, and told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from headgate import errors
from headgate.demo.badges import Badges
from headgate.demo.page import dares as dares_module
from headgate.demo.page.dares import DARES, Dares
from headgate.demo.page.slow_reading import SlowReading
from headgate.tasks import Crew

NOBODY = "http://127.0.0.1:9"
WAIT_S = 30.0


@dataclass
class FakeFlight:
    """What dares ask of a flight."""

    lanes: list[Any] = field(default_factory=list)
    floods: list[float] = field(default_factory=list)
    badges: Badges = field(default_factory=lambda: Badges(NOBODY))

    @property
    def status(self) -> Any:
        return SimpleNamespace(lanes=self.lanes, topics=[])

    def flood(self, for_s: float) -> None:
        self.floods.append(for_s)


@dataclass
class Stage:
    flight: FakeFlight = field(default_factory=FakeFlight)
    roles: dict[str, int | None] = field(default_factory=dict)


@asynccontextmanager
async def dared(stage: Stage) -> AsyncIterator[Dares]:
    flight: Any = stage.flight
    async with Crew("test") as crew:
        yield Dares(NOBODY, lambda: stage.roles, flight, crew, partitions=4)


@pytest.fixture
async def sleeper() -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(600)"
    )
    yield process
    if process.returncode is None:
        process.kill()
    await process.wait()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  # other processes tell nobody
            await asyncio.sleep(0.01)


def told(dares: Dares) -> list[str]:
    return [one.text for one in dares.told]


async def test_a_role_is_killed_and_its_return_is_told(
    sleeper: asyncio.subprocess.Process,
) -> None:
    stage = Stage(roles={"gateway": sleeper.pid})
    async with dared(stage) as dares:
        dares.take("kill-gateway")
        assert await sleeper.wait() == -signal.SIGKILL
        with pytest.raises(errors.NotNow, match="under way"):
            dares.take("kill-gateway")
        stage.roles["gateway"] = None
        assert next(one for one in dares.list() if one.name == "kill-gateway").under_way
        stage.roles["gateway"] = sleeper.pid + 1
        await until(lambda: len(dares.told) == 2)
        assert told(dares)[0] == f"killed the gateway, pid {sleeper.pid}"
        assert told(dares)[1].startswith("the gateway is back after ")
        assert not any(one.under_way for one in dares.list())


async def test_a_role_that_is_away_cannot_be_killed() -> None:
    async with dared(Stage(roles={"gateway": None})) as dares:
        dares.take("kill-gateway")
        await until(lambda: bool(dares.told))
        assert "came to nothing: the gateway is being started already" in told(dares)[0]


@pytest.mark.parametrize("name", ["", "kill-", "kill-everything", "../state", "list", "x" * 500])
async def test_what_is_no_dare_is_not_found(name: str) -> None:
    async with dared(Stage()) as dares:
        with pytest.raises(errors.NotFound) as raised:
            dares.take(name)
        assert len(raised.value.message) < 400


async def test_a_frozen_lane_goes_on_also_when_the_demo_ends_before(
    sleeper: asyncio.subprocess.Process,
) -> None:
    lane = SimpleNamespace(lane=0, pid=sleeper.pid, partitions=["flights:0"])
    stage = Stage(FakeFlight([lane]))
    process = psutil.Process(sleeper.pid)
    async with dared(stage) as dares:
        dares.take("freeze-lane")
        await until(lambda: process.status() == psutil.STATUS_STOPPED)
    await until(lambda: process.status() != psutil.STATUS_STOPPED)
    os.kill(sleeper.pid, signal.SIGKILL)


async def test_a_flood_is_told_to_the_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dares_module, "FLOOD_S", 0.01)
    stage = Stage()
    async with dared(stage) as dares:
        dares.take("flood")
        await until(lambda: len(dares.told) == 2)
        assert stage.flight.floods == [0.01]


async def test_what_nobody_takes_is_told_in_a_sentence() -> None:
    async with dared(Stage()) as dares:
        dares.take("repartition")
        await until(lambda: bool(dares.told))
        assert told(dares)[0].startswith("repartition came to nothing: ")


async def test_what_is_told_is_bounded() -> None:
    async with dared(Stage(roles={"gateway": None})) as dares:
        for number in range(30):
            dares.take("kill-gateway")
            wanted = number + 1
            await until(lambda: any(one.number == wanted for one in dares.told))  # noqa: B023  # ends before
        assert len(dares.told) == dares_module.TOLD_MOST
        assert dares.told[-1].number == 30


def test_every_dare_has_work() -> None:
    flight: Any = FakeFlight()
    loop = asyncio.new_event_loop()
    try:

        async def works() -> list[bool]:
            dares = Dares(NOBODY, dict, flight, Crew("test"), partitions=4)
            return [dares._work(dare.name) is not None for dare in DARES]

        assert all(loop.run_until_complete(works()))
    finally:
        loop.close()


# --- a slow subscriber ----------------------------------------------------------------------------


def test_who_reads_everything_in_order_has_left_nothing_out() -> None:
    reading = SlowReading({0: 5, 1: 0})
    for partition, seq in ((0, 6), (1, 1), (0, 7)):
        reading.read(partition, seq)
    assert (reading.count, reading.left_out, reading.again) == (3, 0, 0)
    assert reading.has_reached({0: 7, 1: 1})
    assert not reading.has_reached({0: 7, 1: 1, 2: 1})
    assert reading.said({0: 7}) == "3 records read late, 0 left out, 0 twice; it is level"


def test_what_is_left_out_or_comes_again_counts() -> None:
    reading = SlowReading({0: 5})
    for seq in (6, 9, 9, 8):
        reading.read(0, seq)
    reading.read(3, 1)  # a partition that a repartition has added begins with its first record
    assert (reading.left_out, reading.again) == (2, 2)
    assert "it isn't level yet" in reading.said({0: 12})
