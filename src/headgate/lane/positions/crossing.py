"""How a lane goes on behind a repartition: a record waits until all before it that may have its key
is settled (decide.log.lineage), in this lane or another.

Settled is what the store of positions says, because a lane that starts anew begins there: what one
has only in memory may come again. So a lane saves at once where it has settled the last record of a
former version, and says so; a lane that waits looks into the store, a few times a second and only
while it waits. What counts as settled may be parked for a gateway, in the order. Then what comes
behind it is parked there too, and sent when that is through (redriving.py).

A lane that hears of a version from its records alone waits until the coordinator says that every
gateway knows it: their subscribers keep the order by themselves from there on.

Invariant: a partition is read up to the first record that has to wait, and no further; the others
go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

from headgate.decide.log.lineage import boundaries
from headgate.errors import HeadgateError
from headgate.lane.delivery.pipelines import Dispatcher
from headgate.lane.holding import Holding
from headgate.lane.positions.partition import SourcePartition
from headgate.lane.positions.saving import Saving
from headgate.model.event import PartitionRef, Record
from headgate.ports.checkpoints import CheckpointStore
from headgate.telemetry import LogLine

log = structlog.get_logger()

LOOK_EVERY_S = 0.1
"""How often a lane looks whether what it waits for is settled."""


class _Settled(NamedTuple):
    """Where a position is, and up to where an operator wants again what was settled before."""

    now: int
    before: int

    def up_to(self, *, again: bool) -> int:
        """How far the partition counts as settled for records behind it: a lane that runs doesn't
        stop for records that come again, so one that starts doesn't either, but for records that
        come `again` themselves."""
        return self.now if again else max(self.now, self.before)


NOTHING = _Settled(0, 0)


class Crossing:
    """`reached` is set when a partition is settled, durably, up to where a former version ends."""

    def __init__(
        self,
        checkpoints: CheckpointStore,
        *,
        holding: Holding,
        dispatcher: Dispatcher,
        saving: Saving,
    ) -> None:
        self._checkpoints = checkpoints
        self._holding = holding
        self._dispatcher = dispatcher
        self._saving = saving
        self._stirred = asyncio.Event()
        self.reached = asyncio.Event()

    def heard(self) -> None:
        """There is another topology."""
        self._stirred.set()

    def holds(self, partition: SourcePartition) -> bool:
        """Is its next record one that has to wait?"""
        return partition.order.awaits > partition.order.version

    def cleared(self, partition: SourcePartition, records: Sequence[Record]) -> Sequence[Record]:
        """The first of `records`, up to the one that has to wait."""
        if records[-1].version <= partition.order.version:
            return records
        for at, record in enumerate(records):
            if record.version > partition.order.version and not self._passes(
                partition, record.version
            ):
                partition.order.awaits = record.version
                self._stirred.set()
                return records[:at]
        return records

    def _passes(self, partition: SourcePartition, version: int) -> bool:
        """Whether nothing comes before it elsewhere."""
        if version > self._holding.readable_version(partition.ref.topic):
            return False
        if self._holding.before(partition.ref, version):
            return False
        partition.order.version = version
        return True

    async def run(self) -> None:
        while True:
            self._stirred.clear()
            await self._save_what_is_over()
            await self._open()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S if self._is_under_way() else None):
                    await self._stirred.wait()

    def _is_under_way(self) -> bool:
        partitions = self._holding.partitions.values()
        return any(map(self.holds, partitions)) or bool(self._unsaved_ends())

    # --- what others wait for --------------------------------------------------------------------

    def _unsaved_ends(self) -> dict[PartitionRef, int]:
        """Where former versions end that aren't known to be settled, of the lane's partitions."""
        return {
            ref: last
            for topic in self._holding.around.topics.values()
            for ref, last in boundaries(topic).items()
            if (one := self._holding.partitions.get(ref)) is not None and one.saved < last
        }

    async def _save_what_is_over(self) -> None:
        for ref, last in self._unsaved_ends().items():
            partition = self._holding.partitions.get(ref)
            if partition is None or partition.settled < last:
                continue
            await self._saving.save(partition)
            if partition.saved >= last:
                self.reached.set()

    # --- what waits here -------------------------------------------------------------------------

    async def _open(self) -> None:
        """Let those go on for which all that comes before them is settled."""
        waiting = [one for one in self._holding.partitions.values() if self.holds(one)]
        if not waiting:
            return
        try:
            settled = await self._settled(waiting)
        except HeadgateError as error:
            log.warning(LogLine.CHECKPOINT_FAILED, error=error.message)
            return
        for partition in waiting:
            try:
                await self._let_through(partition, settled)
            except HeadgateError as error:  # this partition alone waits for those letters
                log.warning(
                    LogLine.LETTERS_FAILED, partition=str(partition.ref), error=error.message
                )

    async def _settled(self, waiting: Sequence[SourcePartition]) -> dict[PartitionRef, _Settled]:
        """How far what they wait for is settled, for good."""
        wanted = {
            ref for one in waiting for ref in self._holding.before(one.ref, one.order.awaits)
        } - self._holding.partitions.keys()
        stored = await self._checkpoints.list() if wanted else {}
        found = {ref: _Settled(one.settled, one.redeliver_to) for ref, one in stored.items()}
        for ref, one in self._holding.partitions.items():
            found[ref] = _Settled(one.saved, one.redeliver_to)
        return found

    async def _let_through(
        self, partition: SourcePartition, settled: Mapping[PartitionRef, _Settled]
    ) -> None:
        version = partition.order.awaits
        if version > self._holding.readable_version(partition.ref.topic):
            return
        before = self._holding.before(partition.ref, version)
        again = partition.read.seq < partition.redeliver_to
        if any(settled.get(ref, NOTHING).up_to(again=again) < last for ref, last in before.items()):
            return
        behind = await self._dispatcher.gateways_behind(before)
        # In one go: code that finds no letters of it asks for what is older than this version.
        partition.order.version = version
        self._dispatcher.fall_behind(partition.ref, behind)
