"""What a flight of the demo does beside producing dies: the flight ends with what it died of."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from headgate.demo.flight import Flight, FlightPath
from headgate.tasks import TaskDied

PLAN = FlightPath(per_s=1, partitions=1, aircraft=1, seed=1, seconds=None)


async def wait(*_: object) -> None:
    await asyncio.Event().wait()


async def nothing(*_: object) -> None:
    return


async def mistaken(*_: object) -> None:
    raise RuntimeError("a mistake")


def flight(monkeypatch: pytest.MonkeyPatch, **parts: Any) -> Flight:
    """One whose parts wait for ever, but for those that are given."""
    made = Flight("http://127.0.0.1:1", PLAN, lambda _: None, show_every_s=1.0)
    given = {"_keep_showing": wait, "_keep_watching": wait, "_produce_and_drain": wait, **parts}
    following = given.pop("following", wait)
    for name, part in {"_prepare": nothing, **given}.items():
        monkeypatch.setattr(made, name, part)
    monkeypatch.setattr(made._audience, "following", lambda _received: [following()])
    return made


@pytest.mark.parametrize("part", ["_keep_showing", "_keep_watching", "following"])
async def test_a_part_that_dies_ends_the_flight(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    run = flight(monkeypatch, **{part: mistaken}).run(asyncio.Event())
    with pytest.raises(RuntimeError, match="a mistake"):
        await asyncio.wait_for(run, 30)


async def test_whoever_stops_following_ends_the_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    run = flight(monkeypatch, following=nothing).run(asyncio.Event())
    with pytest.raises(TaskDied, match="demo following returned"):
        await asyncio.wait_for(run, 30)


async def test_followers_end_before_whom_they_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each flight would end with the death of all of them."""
    closed = asyncio.Event()

    async def prepare(_http: object, stack: AsyncExitStack) -> None:
        stack.callback(closed.set)

    made = flight(monkeypatch, _prepare=prepare, _produce_and_drain=nothing, following=closed.wait)
    await asyncio.wait_for(made.run(asyncio.Event()), 30)
