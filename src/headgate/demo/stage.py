"""The whole system for one run of the demo, in a folder that is gone afterwards.

Invariant: it touches nothing that a user has: every port is a free one, the data folder is a
temporary one, whatever the configuration says. Everything else in the configuration holds.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.config import LoadedConfig, load_config
from headgate.config.units import DurationUnit
from headgate.demo.draining import ROLES
from headgate.demo.flight import Flight, FlightPath, Show
from headgate.demo.summary import Summary
from headgate.demo.view import RoleView, View
from headgate.local import running
from headgate.services.supervisor import Supervisor
from headgate.tasks import first_of

Say = Callable[[str], None]

ANY_FREE_PORT = 0
PORTS = (
    "public.port",
    "public.ws_port",
    "coordinator.http_port",
    "coordinator.router_port",
    "coordinator.consumer_port",
    "ingest.port",
    "gateway.client_port",
)


def data_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for one run; a log that a dying process still writes must not spoil its removal."""
    return tempfile.TemporaryDirectory(prefix="headgate-demo-", ignore_cleanup_errors=True)


def demo_config(data: Path | str, config_file: Path | None = None) -> LoadedConfig:
    """The configuration with the demo's own window, folder and ports."""
    given = load_config(config_file=config_file).config
    window_s = given.demo.window
    seconds = DurationUnit()
    overrides: dict[str, object] = {
        "data": data,
        "router.window": seconds.format(window_s),
        # A window must outlast the silence after which it is given up.
        "router.lane_report_timeout": seconds.format(
            min(given.router.lane_report_timeout, window_s / 2)
        ),
        **dict.fromkeys(PORTS, ANY_FREE_PORT),
    }
    return load_config(command_line=overrides, config_file=config_file)


def plan_of(
    loaded: LoadedConfig, *, seed: int, seconds: float | None, consumers: int = 0
) -> FlightPath:
    demo = loaded.config.demo
    return FlightPath(
        per_s=demo.count * demo.partitions,
        partitions=demo.partitions,
        aircraft=demo.aircraft,
        seed=seed,
        seconds=seconds,
        consumers=consumers,
    )


@asynccontextmanager
async def performance(
    loaded: LoadedConfig,
    plan: FlightPath,
    stopping: asyncio.Event,
    *,
    say: Say,
    progress: Say,
    show: Show,
    show_every_s: float,
) -> AsyncIterator[Summary | None]:
    """Start everything, run the plan, and yield what it came to; stops everything afterwards.

    Yields None when the stop came before the start. `say` and `progress` are those of `running`;
    `show` gets a view every `show_every_s`.
    """
    async with running(loaded, stopping, say, progress) as (address, supervisor):
        if address is None:
            yield None
            return

        def show_with_roles(view: View) -> None:
            seen = {role: supervisor.serving.get(role) for role in ROLES}
            show(replace(view, roles=tuple(RoleView(role, pid) for role, pid in seen.items())))

        flight = Flight(address, plan, show_with_roles, show_every_s=show_every_s)
        yield await _watched(flight.run(stopping), supervisor)


async def _watched(flight: Coroutine[Any, Any, Summary], supervisor: Supervisor) -> Summary:
    """The end of `flight`, or the error of a role that can't be started again."""
    summary = await first_of(flight, supervisor.watch())
    assert summary is not None  # a watch ends with an error, if at all
    return summary
