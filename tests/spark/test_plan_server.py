"""Plans are for the router's own Spark application, and hold nothing that others may not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from headgate.client.http import HttpClient
from headgate.errors import Unauthorized
from headgate.model.lanes import LaneSettings, LaneSpec, LaneTally, LogStore, WindowPlan
from headgate.spark.windows.plan_server import PlanServer
from headgate.spark.windows.source import PLAN_PATH, LanePartition, WindowReader, window_options
from tests.contracts.windows import plan, run_lane

SETTINGS = LaneSettings(log=LogStore("postgresql", "postgresql://headgate:hush@db/log"))
PASSWORD = "hush"
ran: list[LaneSpec] = []


class Plans:
    def __init__(self) -> None:
        self.asked = 0

    async def next_plan(self) -> WindowPlan | None:
        self.asked += 1
        lanes = [msgspec.structs.replace(one, settings=SETTINGS) for one in plan(1, lanes=2).lanes]
        return WindowPlan(1, tuple(lanes))

    async def returned(self, tallies: Sequence[LaneTally]) -> None: ...


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[PlanServer, Plans, str]]:
    server, plans = PlanServer(), Plans()
    url = await server.start()
    server.plans = plans
    try:
        yield server, plans, url
    finally:
        await server.stop()


def reader(url: str, secret: str) -> WindowReader:
    options = window_options(
        run_lane=f"{__name__}:noted", warm_lane="", secret=secret, lane=SETTINGS
    )
    return WindowReader({**options, "plan_url": url})


def noted(spec: LaneSpec) -> LaneTally:
    ran.append(spec)
    return run_lane(spec)


async def offset(url: str, secret: str) -> dict[str, object]:
    asking = reader(url, secret)
    start = asking.initialOffset()
    return await asyncio.to_thread(asking.latestOffset, start, None)  # type: ignore[arg-type]


async def test_who_does_not_know_the_secret_opens_no_window() -> None:
    async with serving() as (_, plans, url):
        async with HttpClient(url.removesuffix(PLAN_PATH)) as stranger:
            with pytest.raises(Unauthorized):
                await stranger.get(PLAN_PATH, WindowPlan)
        assert (await offset(url, "a guess"))["window"] == 0
        assert plans.asked == 0


async def test_two_starts_have_two_secrets() -> None:
    assert PlanServer().secret != PlanServer().secret


async def test_spark_gets_the_plan_and_no_password_to_keep() -> None:
    async with serving() as (server, _, url):
        found = await offset(url, server.secret)
    assert found["window"] == 1
    assert PASSWORD not in str(found)


async def test_a_task_has_the_settings_all_the_same() -> None:
    async with serving() as (server, _, url):
        found = await offset(url, server.secret)
    asking = reader(url, server.secret)
    lanes = asking.partitions(asking.initialOffset(), found)
    assert all(
        PASSWORD.encode() not in one.spec
        for one in lanes
        if isinstance(one, LanePartition) and one.spec
    )
    ran.clear()
    for lane in lanes:
        list(asking.read(lane))
    assert [(one.lane, one.settings) for one in ran] == [(0, SETTINGS), (1, SETTINGS)]
