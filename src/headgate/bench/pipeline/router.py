"""A router in a process of `bench pipeline`, and the baseline on the very same Spark session.

The baseline is what Spark can do with the log by itself: read it as a DataFrame, through an
identity `mapInArrow`, into the noop sink. It runs before the router begins, so that neither takes
anything from the other.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headgate.adapters.embedded.folder import DataFolder
from headgate.bench.rebalance.orders import serve_orders
from headgate.config import inherited_environment, load_config
from headgate.spark.starting.java import find_java
from headgate.spark.starting.noop_read import NoopReads
from headgate.tasks import Crew
from headgate.telemetry import configure_logging
from headgate.wiring.roles import build_router

if TYPE_CHECKING:
    from headgate.services.router.service import Router


class Open(msgspec.Struct, tag=True):
    """Start Spark; `settings` are the variables of a whole configuration. What Spark says goes to
    `log_file`, as it does with a role."""

    settings: dict[str, str]
    scratch: str
    log_file: str


class Read(msgspec.Struct, tag=True):
    """Run the baseline over what there is of a topic now."""

    topic: str


class Route(msgspec.Struct, tag=True):
    """Start the router; answered when its first window can open."""


class Stop(msgspec.Struct, tag=True):
    """Stop the router and Spark, as a router stops."""


class Done(msgspec.Struct):
    """`fault` says what went wrong, if something did."""

    seconds: float = 0.0
    fault: str = ""


class RouterProcess:
    """The orders in their order: open, read, route, stop."""

    def __init__(self, order: Open) -> None:
        self._config = load_config(environ=order.settings).config
        self._scratch = Path(order.scratch)
        self._log_file = Path(order.log_file)
        self._noop: NoopReads | None = None
        self._router: Router | None = None
        self._crew = Crew("bench")

    def open(self) -> None:
        router = self._config.router
        with self._log_file.open("ab") as log_file:
            os.dup2(log_file.fileno(), sys.stderr.fileno())
        self._noop = NoopReads(
            master=router.master,
            java=find_java(inherited_environment()),
            scratch=self._scratch,
            driver_memory=router.driver_memory,
        )

    def read(self, order: Read) -> None:
        assert self._noop is not None
        self._noop.read(order.topic, Path(self._config.data))

    async def route(self) -> None:
        """The session is there: the router takes it for its own."""
        self._router = build_router(self._config, DataFolder(Path(self._config.data)))
        await self._router.start()
        self._crew.need("router", self._router.failed())

    async def stop(self) -> None:
        await self._crew.close()
        if self._router is not None:
            await self._router.stop()
        elif self._noop is not None:
            await asyncio.to_thread(self._noop.stop)


async def run() -> None:
    configure_logging("error", role="router", node_id="bench")
    process: RouterProcess | None = None

    async def carry_out(order: Open | Read | Route | Stop) -> None:
        nonlocal process
        if isinstance(order, Open):
            process = RouterProcess(order)
            await asyncio.to_thread(process.open)
            return
        assert process is not None
        match order:
            case Read():
                await asyncio.to_thread(process.read, order)
            case Route():
                await process.route()
            case Stop():
                await process.stop()

    async def answer(order: Open | Read | Route | Stop) -> Done:
        began_s = time.perf_counter()
        try:
            await carry_out(order)
        except Exception as error:  # noqa: BLE001 - the benchmark says it, and ends
            return Done(fault=f"{type(error).__name__}: {str(error)[:1_000]}")
        return Done(time.perf_counter() - began_s)

    await serve_orders(Open | Read | Route | Stop, answer)


if __name__ == "__main__":
    asyncio.run(run())
