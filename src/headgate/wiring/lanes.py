"""Builds lanes in a Spark worker process. Imports no service: a worker needs none."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.notes import FileLaneNotes
from headgate.adapters.machine import THIS_MACHINE
from headgate.adapters.transports import Transports
from headgate.lane.delivery.evidence import LaneEvidence
from headgate.lane.host import LaneHost
from headgate.lane.run import Lane, LanePorts, evidence_of
from headgate.lane.subscriptions.adopted import KeptIndex
from headgate.model.lanes import LaneSpec, LaneTally, TransportPlace
from headgate.ports.notes import LaneNotes, NoNotes
from headgate.ports.transport import DeliveryTransport
from headgate.telemetry import configure_logging
from headgate.wiring.control import connector
from headgate.wiring.stores import open_checkpoints, open_letters, open_log_reader


class Shared:
    """What outlives windows: connections, whose settings are the same for all lanes of a router,
    the index, and what was remembered of deliveries."""

    def __init__(self) -> None:
        self.transports: dict[TransportPlace, DeliveryTransport] = {}
        self.kept = KeptIndex()
        self.evidence: LaneEvidence | None = None


LANE_CONNECTIONS = 2
"""To a database, for each store of a lane there: one to work on while the other is slow. With many
lanes it is the database that runs out of connections."""
OpenedLane = tuple[Lane, Callable[[], Awaitable[None]]]

_hosts: list[LaneHost[Shared]] = []
"""The lane host of this worker process, once it has one."""


def run_lane(spec: LaneSpec) -> LaneTally:
    """What a Spark task calls, in a Python worker on an executor."""
    return _lane_host().run(spec)


def warm_lane() -> None:
    """What a Spark task calls to have a worker ready: load everything, start the loop."""
    _lane_host()


def _lane_host() -> LaneHost[Shared]:
    # A forked process has its parent's list but not its parent's threads.
    if not _hosts or _hosts[-1].pid != THIS_MACHINE.pid():
        _hosts[:] = [LaneHost(Shared, _open_in_worker, machine=THIS_MACHINE)]
        # Spark collects garbage after every task, while the lanes of that window still run:
        # all that was imported must not be looked through each time.
        gc.collect()
        gc.freeze()
    return _hosts[-1]


def _transport(place: TransportPlace, shared: Shared) -> DeliveryTransport:
    transports = shared.transports
    if place not in transports:
        transports[place] = Transports(
            f"lanes-{THIS_MACHINE.pid()}",
            shown=place.shown,
            token=place.token,
            authority=place.authority,
            nats=place.nats,
        )
    return transports[place]


def _open_in_worker(spec: LaneSpec, shared: Shared) -> OpenedLane:
    configure_logging(spec.settings.log_level, role="lane", node_id=spec.router_id)
    return open_lane(spec, shared)


def open_lane(spec: LaneSpec, shared: Shared) -> OpenedLane:
    """A lane on the stores that its settings name, with what closes them."""
    folder = DataFolder(Path(spec.data))
    reader = open_log_reader(spec.settings.log, folder, connections=LANE_CONNECTIONS)
    checkpoints = open_checkpoints(spec.settings.checkpoints, folder)
    letters = open_letters(spec.settings.log, folder, connections=LANE_CONNECTIONS)

    async def close() -> None:
        async with AsyncExitStack() as stack:  # each of them, even if closing another one fails
            for one in (letters, checkpoints, reader):
                stack.push_async_callback(one.close)

    transport = _transport(spec.settings.transport, shared)
    if shared.evidence is None:
        shared.evidence = evidence_of(spec.settings, THIS_MACHINE)
    connect = connector(spec.coordinator, shown=spec.settings.coordinator_pass)
    ports = LanePorts(
        reader,
        checkpoints,
        letters,
        transport,
        connect,
        THIS_MACHINE,
        shared.kept,
        _notes(spec, folder),
        shared.evidence,
    )
    return Lane(spec, ports), close


def _notes(spec: LaneSpec, folder: DataFolder) -> LaneNotes:
    """In the data folder, where there is one: an executor elsewhere may have none, and must not
    make one."""
    if not folder.root.is_dir():
        return NoNotes()
    return FileLaneNotes(
        folder.notes_dir(spec.router_id),
        window=spec.window,
        attempt=spec.attempt,
        lane=spec.lane,
        incarnation=spec.incarnation,
    )
