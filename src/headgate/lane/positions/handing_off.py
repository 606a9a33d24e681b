"""How a partition leaves a lane in the middle of a window, to be read by another router's.

Invariant: it is said to be released only when nothing of it is read any more, what was in flight is
settled or dropped, and its position is saved as far as it can be.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

import structlog

from headgate.lane.holding import Holding
from headgate.lane.life import Standing
from headgate.lane.positions.partition import SourcePartition
from headgate.lane.positions.saving import Saving
from headgate.lane.subscriptions.hearing import Hearing
from headgate.model.event import PartitionRef
from headgate.model.lanes import LaneSettings
from headgate.model.topology import Owner, Topology
from headgate.ports.control import ControlSession
from headgate.telemetry import LogLine

log = structlog.get_logger()


class HandingOff:
    """`released` is what this lane has handed off."""

    def __init__(
        self,
        settings: LaneSettings,
        *,
        holding: Holding,
        hearing: Hearing,
        saving: Saving,
    ) -> None:
        self._settings = settings
        self._holding = holding
        self._hearing = hearing
        self._saving = saving
        self.released: list[Owner] = []
        self._taken: set[Owner] = set()
        """What the coordinator has said to be another lane's."""

    def asked_for(self, owners: Iterable[Owner]) -> list[SourcePartition]:
        """The partitions of `owners` that the lane still has under those epochs."""
        found = [(owner, self._holding.partitions.get(owner.ref)) for owner in owners]
        return [one for owner, one in found if one is not None and one.owner == owner]

    async def settle(self, leaving: Sequence[SourcePartition], session: ControlSession) -> bool:
        """Stop reading, settle what is in flight, save the position: they can be let go of. If
        there is nobody to hear it, they go on (False): they are asked for again."""
        settings = self._settings
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.flush_timeout_s):
                # Or the successor has to wait for the lease.
                await self._hearing.life.reaches(Standing.PROVED)
        for partition in leaving:
            partition.leave()
        await asyncio.gather(*(p.all_settled(settings.flush_timeout_s) for p in leaving))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.checkpoint_timeout_s):
                await asyncio.gather(*(self._saving.save(partition) for partition in leaving))
        if not session.connected:
            for partition in leaving:
                partition.stay()
            return False
        return True

    def has_released(self, gone: Sequence[Owner]) -> None:
        """The lane has let go of these."""
        self.released += gone
        log.info(LogLine.HANDED_OFF, partitions=[str(owner.ref) for owner in gone])

    def taken(self, owners: Iterable[Owner]) -> None:
        """The coordinator says that these are another lane's."""
        self._taken.update(owners)

    def unheard(self, topology: Topology) -> list[PartitionRef]:
        """What this lane has handed off, and the coordinator hasn't said to be another lane's."""
        sources, taken = topology.sources, self._taken
        return [one.ref for one in self.released if one in sources and one not in taken]

    def is_over(self, topology: Topology) -> bool:
        """Has everything been handed off, and the coordinator heard it? Only this lane can say that
        it doesn't read any more."""
        has_left = bool(self.released) and not self._holding.partitions
        return has_left and not self.unheard(topology)
