"""Builds lanes in a Spark worker process. Imports no service: a worker needs none."""

from __future__ import annotations

import gc
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.http.delivery import HttpDeliveryTransport
from headgate.lane.host import LaneHost
from headgate.lane.run import Lane, LanePorts
from headgate.lane.spec import LaneReceipt, LaneSpec
from headgate.ports.transport import DeliveryTransport
from headgate.telemetry import configure_logging
from headgate.wiring.control import connector
from headgate.wiring.stores import open_checkpoints, open_log_reader

_hosts: list[LaneHost[DeliveryTransport]] = []
"""The lane host of this worker process, once it has one."""


def run_lane(spec: LaneSpec) -> LaneReceipt:
    """What a Spark task calls, in a Python worker on an executor."""
    return _lane_host().run(spec)


def warm_lane() -> None:
    """What a Spark task calls to have a worker ready: load everything, start the loop."""
    _lane_host()


def _lane_host() -> LaneHost[DeliveryTransport]:
    # A forked process has its parent's list but not its parent's threads.
    if not _hosts or _hosts[-1].pid != os.getpid():
        _hosts[:] = [LaneHost(_shared_transport, _open_lane)]
        # Spark collects garbage after every task, while the lanes of that window still run:
        # all that was imported must not be looked through each time.
        gc.collect()
        gc.freeze()
    return _hosts[-1]


def _shared_transport() -> DeliveryTransport:
    return HttpDeliveryTransport(f"lanes-{os.getpid()}")


def _open_lane(
    spec: LaneSpec, transport: DeliveryTransport
) -> tuple[Lane, Callable[[], Awaitable[None]]]:
    configure_logging(spec.settings.log_level, role="lane", node_id=spec.router_id)
    folder = DataFolder(Path(spec.data))
    reader = open_log_reader(spec.settings.log, folder)
    checkpoints = open_checkpoints(spec.settings.checkpoints, folder)

    async def close() -> None:
        await reader.close()
        await checkpoints.close()

    lane = Lane(spec, LanePorts(reader, checkpoints, transport, connector(spec.coordinator)))
    return lane, close
