"""When a lane saves the positions of its partitions: by time, by count, and when it is told to.

A save that fails is counted and tried again with the next one, and stops nothing. One that is
refused because a newer lane holds the partition says so to the lane.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import structlog

from headgate.decide.operations.latencies import Stopwatch
from headgate.errors import Fenced
from headgate.lane.positions.grip import Grip
from headgate.lane.positions.partition import SourcePartition
from headgate.model.event import PartitionRef
from headgate.model.lanes import LaneSettings
from headgate.ports.checkpoints import CheckpointStore
from headgate.ports.machine import Machine
from headgate.telemetry import LogLine

log = structlog.get_logger()


class Saving:
    """`partitions` are the lane's, as they come and go."""

    def __init__(
        self,
        settings: LaneSettings,
        store: CheckpointStore,
        partitions: Mapping[PartitionRef, SourcePartition],
        grip: Grip,
        *,
        machine: Machine,
    ) -> None:
        self._settings = settings
        self._store = store
        self._partitions = partitions
        self._grip = grip
        self._machine = machine
        self._unsaved = 0
        self._now = asyncio.Event()
        self.saves = self.errors = 0
        self.took = Stopwatch()

    def count(self, settled: int) -> None:
        """So many more records are settled."""
        self._unsaved += settled
        if self._unsaved >= self._settings.checkpoint_event_count:
            self._now.set()

    async def run(self) -> None:
        """Save every interval, or sooner when enough was settled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.checkpoint_interval_s):
                    await self._now.wait()
            self._now.clear()
            self._unsaved = 0
            for partition in list(self._partitions.values()):
                await self.save(partition)

    async def save(self, partition: SourcePartition) -> None:
        before, began_s = partition.saved, self._machine.monotonic_s()
        try:
            saved = await partition.save(self._store)
        except Fenced as error:
            self._grip.overtaken(partition.ref, error.message)
            return
        self.errors += not saved
        if partition.saved != before:
            self.saves += 1
            self.took.took(self._machine.monotonic_s() - began_s)

    async def save_all(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                for partition in list(self._partitions.values()):
                    await self.save(partition)
        except TimeoutError:
            log.warning(LogLine.CHECKPOINT_FAILED, error=f"not saved within {timeout_s:g} s")
