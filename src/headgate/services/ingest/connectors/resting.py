"""A connector that an operator lets rest: nothing is read of it.

Its origin is asked from time to time how it stands to where the connector is, so that an operator
hears of a history that runs short while there is time. One that is lost already is said all the
same: nothing goes on with `resume` then. Invariant: nothing is stored anywhere, and between two
looks the origin isn't connected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate import errors
from headgate.decide.connectors.snapshots.places import of_stream
from headgate.model.connector import Connector, ConnectorReport
from headgate.ports.log import LogReader
from headgate.ports.origin import Origin, Standing
from headgate.services.ingest.connectors.options import IntakeOptions
from headgate.services.ingest.connectors.standing import IntakeStanding
from headgate.services.ingest.connectors.stored_plan import how_to_go_on, present_plan, why_lost
from headgate.services.ingest.partitions import Partitions


class Resting:
    """`run` never returns by itself: it is cancelled when the connector changes or moves."""

    too_low = 0
    """What hands nothing in meets no epoch."""

    def __init__(
        self,
        connector: Connector,
        epoch: int,
        *,
        origin: Callable[[], Origin],
        partitions: Partitions,
        reader: LogReader,
        options: IntakeOptions,
    ) -> None:
        self.connector = connector
        self.epoch = epoch
        self._open_origin = origin
        self._partitions = partitions
        self._reader = reader
        self._options = options
        self._standing = IntakeStanding(connector, epoch)
        self._standing.say("paused")

    @property
    def report(self) -> ConnectorReport:
        return self._standing.report

    async def run(self) -> None:
        while True:
            try:
                self._standing.looked(await self._look())
            except errors.HeadgateError:
                self._standing.looked(Standing())  # nobody can tell
            await asyncio.sleep(self._options.rest_look_every_s)

    async def _look(self) -> Standing:
        # A batch that was under way when it came to rest may still move it.
        seen = await present_plan(self.connector, self._partitions, self._reader)
        if why := why_lost(seen, begun=self.connector.begun):
            said = how_to_go_on(self.connector.name, why)
            self._standing.say("history-lost", said, stopped_at=seen.resume)
        else:
            self._standing.say("paused")
        if not seen.resume:
            return Standing()
        self._standing.stands_at(seen)
        origin = self._open_origin()
        try:
            return await origin.standing(of_stream(seen.resume))
        finally:
            await origin.close()
