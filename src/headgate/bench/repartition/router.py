"""A router without Spark: a process of `bench repartition`.

The router is the one that ships, and so are its lanes; they run in its own event loop. What is
missing is Spark's own time between two windows.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headgate.adapters.embedded.folder import DataFolder
from headgate.bench.rebalance.orders import serve_orders
from headgate.config import load_config
from headgate.lane.plain import PlainWindows
from headgate.tasks import Crew
from headgate.telemetry import configure_logging
from headgate.wiring.lanes import Shared, open_lane
from headgate.wiring.roles import build_router

if TYPE_CHECKING:
    from headgate.services.router.service import Router


class Route(msgspec.Struct):
    """`settings` are the variables of a whole configuration; answered when its first window can
    open."""

    settings: dict[str, str]


class Done(msgspec.Struct):
    """`fault` says what went wrong, if something did."""

    fault: str = ""


async def run() -> None:
    configure_logging("error", role="router", node_id="bench")
    routers: list[Router] = []
    crew = Crew("bench")

    async def answer(order: Route) -> Done:
        config = load_config(environ=order.settings).config
        windows = PlainWindows(partial(open_lane, shared=Shared()))
        router = build_router(config, DataFolder(Path(config.data)), windows)
        try:
            await router.start()
        except Exception as error:  # noqa: BLE001 - the benchmark says it, and ends
            return Done(f"{type(error).__name__}: {str(error)[:1_000]}")
        routers.append(router)
        crew.need("router", router.failed())
        return Done()

    await serve_orders(Route, answer)
    await crew.close()
    for router in routers:
        await router.stop()


if __name__ == "__main__":
    asyncio.run(run())
