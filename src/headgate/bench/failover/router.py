"""A router without Spark, as a process of `bench failover --quick`: it is the one that ships, and
so are its lanes, which run in its own event loop and start in a second."""

from __future__ import annotations

import asyncio
import signal
from functools import partial

from headgate.adapters.embedded.folder import DataFolder
from headgate.config import load_config
from headgate.lane.plain import PlainWindows
from headgate.tasks import first_of
from headgate.telemetry import configure_logging
from headgate.wiring.lanes import Shared, open_lane
from headgate.wiring.roles import build_router


async def route() -> None:
    config = load_config().config
    configure_logging(config.log_level, role="router", node_id=config.client_id)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    windows = PlainWindows(partial(open_lane, shared=Shared()))
    router = build_router(config, DataFolder.open(config.data), windows)
    try:
        address = await first_of(router.start(), stopping.wait())
        if address is not None:
            print(f"ready {address}", flush=True)  # noqa: T201 - the benchmark waits for that
            await first_of(router.failed(), stopping.wait())
    finally:
        await router.stop()


if __name__ == "__main__":
    asyncio.run(route())
