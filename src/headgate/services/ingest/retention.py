"""Drops, from time to time, what the retention settings don't keep any longer.

Invariants: only the owner of a partition drops its records, and none that is unsettled unless the
settings allow it; a failure is logged and tried again the next time. Time runs as fast as the
process lives, at most: a wall clock that jumps ahead doesn't expire what is young. Nor is an
idempotency key forgotten by a node whose clock is ahead of its writer's: what was there when a
partition was opened here counts as written then.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from headgate import errors
from headgate.ports.log import LogWriter, Retention
from headgate.ports.machine import Machine
from headgate.services.ingest.partitions import Partitions
from headgate.services.ingest.produce.appends import OpenPartition
from headgate.services.ingest.settled import Settled
from headgate.services.lived_clock import LivedClock
from headgate.telemetry import LogLine

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    keep: Retention
    every_s: float
    idempotency_ttl_s: float


class RetentionLoop:
    """Made where the node starts: the wall clock is believed as it stands then."""

    def __init__(
        self,
        options: RetentionOptions,
        *,
        writer: LogWriter,
        partitions: Partitions,
        settled: Settled,
        machine: Machine,
    ) -> None:
        self._options = options
        self._writer = writer
        self._partitions = partitions
        self._settled = settled
        self._clock = LivedClock(machine)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._options.every_s)
            await self.once()

    async def once(self) -> None:
        settled = await self._settled.read()
        now_ms = self._clock.now_ms()
        for partition in self._partitions.opened():
            await self._retain(partition, settled.get(partition.owner.ref, 0), now_ms)

    def _ids_ms(self, partition: OpenPartition, now_ms: int) -> int:
        """How old an idempotency key may be."""
        ttl_s = self._options.idempotency_ttl_s
        opened_for_s = asyncio.get_running_loop().time() - partition.opened_s
        if partition.found_head and opened_for_s < ttl_s:
            return now_ms  # As old as time is.
        return round(ttl_s * 1_000)

    async def _retain(self, partition: OpenPartition, settled: int, now_ms: int) -> None:
        ref = partition.owner.ref
        try:
            extent = await self._writer.retain(
                ref,
                self._options.keep,
                settled=settled,
                ids_ms=self._ids_ms(partition, now_ms),
                now_ms=now_ms,
            )
            partition.earliest = extent.earliest
        except errors.Fenced as error:
            partition.overtaken(error)
            log.warning(LogLine.FENCED, partition=str(ref), epoch=partition.owner.epoch)
        except errors.HeadgateError as error:
            if isinstance(error, errors.StoreChanged):
                self._partitions.store_changed(ref, error)
            log.warning(LogLine.RETENTION_FAILED, partition=str(ref), reason=str(error))
