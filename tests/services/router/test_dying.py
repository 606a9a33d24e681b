"""What a router does in the background dies of a mistake: the router ends, and /health says why."""

from __future__ import annotations

import asyncio

import pytest

from headgate.model.control import from_coordinator
from tests.services.router.stage import assigns, on_virtual_time, ready, starting, until


@on_virtual_time
async def test_a_router_that_can_not_listen_any_more_ends() -> None:
    async with starting(assigns()) as stage:
        await until(lambda: stage.said[-1:] == ["ready 1"])
        assert await stage.reasons("died") == []
        stage.coordinator.say(from_coordinator.PushTopology(None))  # type: ignore[arg-type]
        with pytest.raises(AttributeError):
            await asyncio.wait_for(stage.router.failed(), 10)
        [reason] = await stage.reasons("died")
        assert reason.startswith("router control died")
        assert "so this process ends" in reason
        metrics = (await stage.lookout.get("/metrics")).decode()
        assert 'headgate_task_deaths_total{task="router control"} 1.0' in metrics


@on_virtual_time
async def test_a_router_that_is_stopped_has_not_failed() -> None:
    async with ready(assigns()) as stage:
        watching = asyncio.create_task(stage.router.failed())
        await stage.router.stop()
        await asyncio.wait_for(watching, 10)
