"""The whole system for one run of the demo, in a folder that is gone afterwards.

Invariant: it touches nothing that a user has: every port is a free one, the data folder is a
temporary one, whatever the configuration says. Everything else in the configuration holds.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headgate.config import LoadedConfig, load_config
from headgate.config.units import DurationUnit
from headgate.demo.badges import Badges
from headgate.demo.draining import ROLES
from headgate.demo.flight import Flight, FlightPath, Show
from headgate.demo.page.booth import PAGE_PATH, SHOWN_EVERY_S, Booth
from headgate.demo.page.dares import Dares
from headgate.demo.summary import Summary
from headgate.demo.view import RoleView, View
from headgate.local import running
from headgate.model.access import TOKEN_BYTES
from headgate.services.supervisor import Supervisor
from headgate.tasks import Crew, first_of

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


def demo_config(
    data: Path | str,
    config_file: Path | None = None,
    *,
    control: str = "",
    window_s: float | None = None,
    secured: bool = False,
) -> LoadedConfig:
    """The configuration with the demo's own folder, ports and window, unless that is `window_s`;
    `control` is where its page asks for faults. `secured`: callers need a credential, as they do
    where the configuration says so."""
    given = load_config(config_file=config_file).config
    window_s = window_s or given.demo.window
    seconds = DurationUnit()
    overrides: dict[str, object] = {
        "data": data,
        "router.window": seconds.format(window_s),
        # A window must outlast the silence after which it is given up.
        "router.lane_report_timeout": seconds.format(
            min(given.router.lane_report_timeout, window_s / 2)
        ),
        **dict.fromkeys(PORTS, ANY_FREE_PORT),
        "demo.control": control,
    }
    security = given.security
    if (secured or security.is_on) and not security.admin_token:
        overrides["security.admin_token"] = secrets.token_hex(TOKEN_BYTES)
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
    booth: Booth | None = None,
    named: Say = lambda _: None,
    began: Say = lambda _: None,
) -> AsyncIterator[Summary | None]:
    """Start everything, run the plan, and yield what it came to; stops everything afterwards.

    Yields None when the stop came before the start. `say` and `progress` are those of `running`;
    `show` gets a view every `show_every_s`; `booth`, if there is one, gets it more often, and
    `named` hears where it is shown; `began` hears the system's address once all of it runs.
    """
    async with (
        running(loaded, stopping, say, progress) as (address, supervisor),
        Crew("demo page") as crew,
    ):
        if address is None:
            yield None
            return
        shows = _Paced(show, every_s=show_every_s)

        def show_with_roles(view: View) -> None:
            seen = {role: supervisor.serving.get(role) for role in ROLES}
            view = replace(view, roles=tuple(RoleView(role, pid) for role, pid in seen.items()))
            if booth is not None:
                booth.show(view)
            shows.show(view)

        every_s = show_every_s if booth is None else min(show_every_s, SHOWN_EVERY_S)
        badges = Badges(address, loaded.config.security.admin_token)
        if badges.admin is not None:
            say(f"everybody has to say who they are; log in at {address}/ui/ with {badges.admin}")
        flight = Flight(address, plan, show_with_roles, show_every_s=every_s, badges=badges)
        if booth is not None:
            roles, partitions = partial(getattr, supervisor, "serving"), plan.partitions
            booth.begin(address, Dares(address, roles, flight, crew, partitions=partitions))
            named(address + PAGE_PATH)
        began(address)
        yield await _watched(flight.run(stopping), supervisor)


class _Paced:
    """Shows a view now and then, and the last one for certain."""

    def __init__(self, show: Show, *, every_s: float) -> None:
        self._show = show
        self._every_s = every_s
        self._next_s = 0.0

    def show(self, view: View) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_s or view.phase == "finished":
            # A little early is in time: the caller has a clock of its own.
            self._next_s = now_s + self._every_s - SHOWN_EVERY_S / 2
            self._show(view)


async def _watched(flight: Coroutine[Any, Any, Summary], supervisor: Supervisor) -> Summary:
    """The end of `flight`, or the error of a role that can't be started again."""
    summary = await first_of(flight, supervisor.watch())
    assert summary is not None  # a watch ends with an error, if at all
    return summary
