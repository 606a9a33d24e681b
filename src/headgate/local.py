"""The whole system on this machine, for as long as a block runs: what `up` and `demo` share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headgate.adapters.embedded.folder import DataFolder
from headgate.config import LoadedConfig, inherited_environment
from headgate.model.addresses import reachable
from headgate.services.supervisor import Say, Supervisor
from headgate.spark.starting.java import find_java
from headgate.tasks import Helpers, first_of
from headgate.wiring.machine import build_supervisor, plan_ports


@asynccontextmanager
async def running(
    loaded: LoadedConfig,
    stopping: asyncio.Event,
    say: Say,
    progress: Say,
    hurry: asyncio.Event | None = None,
) -> AsyncIterator[tuple[str | None, Supervisor]]:
    """Yields the public address and the supervisor once everything serves.

    The address is None when `stopping` was set first. `say` gets sentences about roles that die and
    come back, `progress` the name of each role as it becomes ready. Every check comes before the
    first file is written and the first process is started. At the end the roles are stopped one
    after the other; when `hurry` is set, all of them at once.
    """
    DataFolder.check_unused(Path(loaded.config.data))
    config = plan_ports(loaded.config, loaded.origins)
    find_java(inherited_environment())
    folder = DataFolder.open(Path(config.data))
    with folder.lock():
        supervisor = build_supervisor(config, folder, say, origins=loaded.origins)
        try:
            ready = await _started(supervisor, stopping, progress)
            public = config.public
            reached = reachable(public.host, public.port, advertised=public.advertise)
            address = f"http://{reached}"
            yield (address if ready else None), supervisor
        finally:
            await _stop(supervisor, hurry or asyncio.Event())


async def _stop(supervisor: Supervisor, hurry: asyncio.Event) -> None:
    async with Helpers() as helpers:
        stopping = helpers.start(supervisor.stop())
        if await first_of(hurry.wait(), asyncio.wait([stopping])):
            supervisor.hurry()
        await stopping


async def _started(supervisor: Supervisor, stopping: asyncio.Event, progress: Say) -> bool:
    """True once everything serves, False when the stop came first."""
    return not await first_of(stopping.wait(), supervisor.start(progress))
