"""The connectors that this node reads, or lets rest: started, ended and changed as the topology
says.

Invariant: at most one reader of a connector runs here, under the newest epoch this node was given;
one that changed in anything its reader goes by is ended before it begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count

from msgspec.structs import replace

from headgate.model.connector import Connector, ConnectorReport
from headgate.model.control.to_coordinator import ConnectorTooLow
from headgate.model.event import PartitionRef
from headgate.model.topology import Owner, Topology
from headgate.ports.log import LogReader
from headgate.ports.machine import Machine
from headgate.ports.origin import OpenOrigin
from headgate.services.ingest.connectors.options import IntakeOptions
from headgate.services.ingest.connectors.reader import Intake
from headgate.services.ingest.connectors.resting import Resting
from headgate.services.ingest.connectors.taking_in import TakingIn
from headgate.services.ingest.partitions import Partitions
from headgate.tasks import Crew


class Intakes:
    def __init__(
        self,
        node_id: str,
        open_origin: OpenOrigin,
        *,
        partitions: Partitions,
        taking_in: TakingIn,
        reader: LogReader,
        machine: Machine,
        options: IntakeOptions,
    ) -> None:
        self._node_id = node_id
        self._open_origin = open_origin
        self._partitions = partitions
        self._taking_in = taking_in
        self._reader = reader
        self._machine = machine
        self._options = options
        self._running: dict[str, tuple[Intake | Resting, Crew]] = {}
        """Each with what ends with it."""
        self._chunks: dict[str, tuple[int, Iterator[int]]] = {}
        """Of each connector, with their epoch: a pause or a skip lets another go on with them."""
        self._generation = 0
        self._stopped = False

    async def adopt(self, topology: Topology) -> None:
        """Run what `topology` gives to this node, and nothing else; an older one changes
        nothing."""
        if topology.generation < self._generation:
            return
        self._generation = topology.generation
        connectors = {one.name: one for one in topology.connectors}
        mine = {
            owner.ref.topic: (connectors[owner.ref.topic], owner.epoch)
            for owner in topology.intakes
            if owner.node_id == self._node_id and owner.ref.topic in connectors
        }
        over = [
            name
            for name, (intake, _) in self._running.items()
            if name not in mine or not _is_same(intake, *mine[name])
        ]
        await self._end(over)
        for name, (connector, epoch) in mine.items():
            if not self._stopped and name not in self._running:
                self._running[name] = self._started(connector, epoch)

    def _started(self, connector: Connector, epoch: int) -> tuple[Intake | Resting, Crew]:
        crew = Crew("connector")
        if connector.paused:
            resting = Resting(
                connector,
                epoch,
                origin=lambda: self._open_origin(connector),
                partitions=self._partitions,
                reader=self._reader,
                options=self._options,
            )
            crew.keep("rest", resting.run, about=connector.name)
            return resting, crew
        known = self._chunks.get(connector.name)
        if known is None or known[0] != epoch:
            known = self._chunks[connector.name] = epoch, count(1)
        intake = Intake(
            connector,
            epoch,
            chunks=known[1],
            origin=lambda: self._open_origin(connector),
            partitions=self._partitions,
            taking_in=self._taking_in,
            reader=self._reader,
            machine=self._machine,
            options=self._options,
        )
        crew.keep("reader", intake.run, about=connector.name)
        return intake, crew

    def owned(self) -> tuple[Owner, ...]:
        """Those that this node has, running or resting."""
        return tuple(
            Owner(PartitionRef(name, 0), self._node_id, intake.epoch)
            for name, (intake, _) in sorted(self._running.items())
        )

    def reports(self) -> tuple[ConnectorReport, ...]:
        return tuple(intake.report for _, (intake, _) in sorted(self._running.items()))

    def too_low(self) -> list[ConnectorTooLow]:
        """Connectors of which a partition has met a higher epoch than the one they have here."""
        return [
            ConnectorTooLow(name, intake.too_low, intake.epoch)
            for name, (intake, _) in sorted(self._running.items())
            if intake.too_low
        ]

    async def stop(self) -> None:
        """For good: no topology that comes later starts anything."""
        self._stopped = True
        await self._end(list(self._running))

    async def _end(self, names: Sequence[str]) -> None:
        """All at once: each may take the time that a task has to end."""
        crews = [crew for _, crew in map(self._running.pop, names)]
        try:
            await asyncio.gather(*(crew.close() for crew in crews))
        except asyncio.CancelledError:
            for crew in crews:
                crew.cancel()  # some may not have heard of it yet
            raise


def _is_same(intake: Intake | Resting, connector: Connector, epoch: int) -> bool:
    """Would a reader of `connector` do what this one does?"""
    return intake.epoch == epoch and _acts_on(intake.connector) == _acts_on(connector)


def _acts_on(connector: Connector) -> Connector:
    """The connector without what its reader doesn't go by. A snapshot that is wanted, or not any
    more, comes with another epoch; one that disappears is done."""
    return replace(connector, begun=False, skipped=(), snapshots=())
