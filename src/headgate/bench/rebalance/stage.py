"""The roles that `bench rebalance` and `bench repartition` need as processes: coordinator, ingest
node, gateway.

No router among them: routers join in the benchmarks themselves, and without Spark. Everything is in
a temporary folder, on free ports, and ends with the context.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headgate.adapters.embedded.folder import DataFolder
from headgate.bench.result import Failed, Say
from headgate.config import Config
from headgate.demo.stage import demo_config
from headgate.model.lanes import LaneSettings
from headgate.services.supervisor import Supervisor
from headgate.wiring.control import addresses
from headgate.wiring.machine import build_supervisor, plan_ports
from headgate.wiring.roles import lane_settings

ROLES = ("coordinator", "ingest", "gateway")
WINDOW_S = 3_600.0
"""Windows end only where a partition moves."""
FILES_PER_PARTITION = 5
SPARE_FILES = 512


@dataclass(frozen=True, slots=True)
class Stage:
    """Where everything is: `url` is the public one, `coordinator_url` and the others are inner."""

    url: str
    coordinator_url: str
    routers_connect: str
    clients_connect: str
    data: Path
    lane: LaneSettings
    config: Config
    supervisor: Supervisor


@asynccontextmanager
async def roles_running(folder: Path, say: Say) -> AsyncIterator[Stage]:
    loaded = demo_config(folder / "data")
    config = plan_ports(loaded.config, loaded.origins)
    data = DataFolder.open(Path(config.data))
    with data.lock():
        supervisor = build_supervisor(config, data, say, ROLES)
        try:
            await supervisor.start(lambda role: say(f"{role} is ready"))
            yield _stage(config, data, supervisor)
        finally:
            await supervisor.stop()


def _stage(config: Config, data: DataFolder, supervisor: Supervisor) -> Stage:
    coordinator = config.coordinator
    return Stage(
        url=f"http://{config.public.host}:{config.public.port}",
        coordinator_url=f"http://{coordinator.host}:{coordinator.http_port}",
        routers_connect=addresses(config.router.server_address, config.router.server_port),
        clients_connect=addresses(coordinator.host, coordinator.consumer_port),
        data=data.root,
        lane=msgspec.structs.replace(lane_settings(config), window_s=WINDOW_S, log_level="error"),
        config=config,
        supervisor=supervisor,
    )


def allow_files(partitions: int) -> None:
    """An ingest node holds a few files open per partition; what we may, it may."""
    wanted = partitions * FILES_PER_PARTITION + SPARE_FILES
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Failed(
            f"it opens up to {wanted} files at a time, and this system allows {hard}: "
            "raise the limit (ulimit -Hn) or use --quick"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
