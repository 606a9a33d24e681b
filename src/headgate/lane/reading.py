"""A lane reads its partitions: what is new is matched and handed on, what is lost is said.

Order per partition is that of the log. Reading stops where too much is unsettled or a pipeline has
no room, and goes on by itself; a partition whose letters wait for their store, or whose next record
waits for others (crossing.py), is passed over, and has the first turn when it may be read again.
One that can't be read is said to have failed, and tried again with growing pauses; the others go
on. Invariant: nothing is passed over without a word, neither a hole in `seq`, a record that says
that its origin has lost changes, nor the end of a log that lies before what was read, nor, after a
pause, another log in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import structlog

from headgate.decide.delivery.gaps import Gap, dense, is_marker, marked, runs
from headgate.decide.pacing import Pace
from headgate.errors import CorruptRecord, OperatorError
from headgate.lane.delivery.pipelines import Dispatcher
from headgate.lane.holding import Holding
from headgate.lane.positions.crossing import Crossing
from headgate.lane.positions.partition import SourcePartition
from headgate.lane.positions.saving import Saving
from headgate.lane.subscriptions.matching import Matching
from headgate.model.event import PartitionRef, Record
from headgate.model.lanes import LaneSettings
from headgate.ports.log import LogReader, may_have_more
from headgate.ports.machine import Machine
from headgate.telemetry import LogLine

log = structlog.get_logger()

LOOK_EVERY_S = 0.5
"""How often a lane that finds nothing more asks where the log ends, at most."""
BUSY_LOOK_EVERY_S = 0.1
"""How often a lane that has something to read looks at its other partitions: it hears of their news
only when it has nothing."""
HELD_S = 0.05
"""How often a lane looks whether a partition may be read again whose letters wait for their store
(thousands do, so the store isn't out of work before that) or that waits for others."""
TURN = 100
"""Records that are matched in one go: about half a millisecond, and where they take longer, as many
as fit into a turn (decide.pacing). A delivery takes a few turns of the event loop, and how long
those are is how many deliveries per second there can be to a gateway."""


class Reading:
    def __init__(
        self,
        settings: LaneSettings,
        reader: LogReader,
        *,
        holding: Holding,
        matching: Matching,
        dispatcher: Dispatcher,
        saving: Saving,
        crossing: Crossing,
        machine: Machine,
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._holding = holding
        self._partitions: Mapping[PartitionRef, SourcePartition] = holding.partitions
        self._matching = matching
        self._dispatcher = dispatcher
        self._saving = saving
        self._crossing = crossing
        self._machine = machine
        self._pace = Pace(machine.monotonic_s)
        self._is_level = False
        """Was everything read that there was?"""
        self.read = self.matched = self.gaps = 0

    async def run(self) -> None:
        """Follow all partitions."""
        for claimed in self._partitions.values():
            if claimed.to_be_skipped is not None:
                self._pass(claimed, claimed.to_be_skipped)
        async with self._reader.follow(list(self._partitions)) as wake_ups:
            hungry, look_at_s = set(self._partitions), self._now_s() + BUSY_LOOK_EVERY_S
            held: list[PartitionRef] = []
            while True:
                in_turn = (*held, *sorted(hungry.difference(held)))
                due = [ref for ref in in_turn if self._is_due(ref)]
                held = [ref for ref in due if not await self._has_turn(ref, hungry)]
                if len(held) == len(due):  # one that can't be read is due within a second
                    self._is_level = not hungry
                    hungry |= await self._news(wake_ups, within_s=HELD_S if held else None)
                    self._is_level = False
                    look_at_s = self._now_s() + BUSY_LOOK_EVERY_S
                elif self._now_s() >= look_at_s:
                    hungry |= self._partitions.keys()
                    look_at_s = self._now_s() + BUSY_LOOK_EVERY_S

    async def _has_turn(self, ref: PartitionRef, hungry: set[PartitionRef]) -> bool:
        """Read some records of `ref`, unless it is held."""
        partition = self._partitions.get(ref)
        if partition is not None and (
            self._dispatcher.holds(ref) or self._crossing.holds(partition)
        ):
            return False
        self._dispatcher.reads(ref)
        if partition is None or not await self._tried(partition):
            hungry.discard(ref)
        return True

    async def _news(
        self, wake_ups: AsyncIterator[frozenset[PartitionRef]], *, within_s: float | None
    ) -> frozenset[PartitionRef]:
        """What may have grown; nothing where that is all the news until then."""
        try:
            async with asyncio.timeout(within_s):
                return await anext(wake_ups)
        except TimeoutError:
            return frozenset()

    def _is_due(self, ref: PartitionRef) -> bool:
        partition = self._partitions.get(ref)
        return partition is None or partition.read.is_due(self._now_s())

    async def _tried(self, partition: SourcePartition) -> bool:
        """Read some, if it can be read; False when the partition has nothing more for now."""
        limit = partition.read.up_to(self._settings.read_limit)
        try:
            with partition.read.tried():
                has_more = await self._read_some(partition, limit)
        except OperatorError as error:
            partition.read.failed(error, now_s=self._now_s())
            return True
        if partition.has_stopped:
            await self._saving.save(partition)  # before another lane reads on
        partition.read.went_well(goes_on=not partition.has_stopped)
        return has_more

    async def _read_some(self, partition: SourcePartition, limit: int) -> bool:
        """Read and match up to `limit`; False when the partition has nothing more for now."""
        settings = self._settings
        await self._dispatcher.room()
        found = await self._reader.read(partition.ref, after_seq=partition.read.seq, limit=limit)
        if not partition.read.is_sure(self._now_s()):
            await self._look_back(partition)
        partition.read.looked(self._now_s())
        if not self._may_read(partition):
            return False
        if not found:
            return await self._look_behind_the_end(partition)
        if lost := partition.read.begins_again(found[0]):
            partition.stop(str(lost))
            return False
        if gap := partition.read.gap_before(found[0], settings.gap_max_s):
            self._pass(partition, gap)
        records = self._crossing.cleared(partition, dense(found))
        taken = 0
        while taken < len(records):
            if not self._may_read(partition):
                return False
            self._pace.begin()
            taken += self._take(partition, records[taken : taken + TURN])
            # Pipelines, acknowledgements and signs of life get their turn in between.
            await asyncio.sleep(0)
        return may_have_more(found, limit) or len(records) < len(found)

    async def _look_back(self, partition: SourcePartition) -> None:
        """Is the last record that was read still what it was? Asked after the records behind it
        were read: a log that is lost doesn't come back, so all of them are of the same log."""
        if not partition.read.seq:
            return
        try:
            found = await self._reader.read(
                partition.ref, after_seq=partition.read.seq - 1, limit=1
            )
        except CorruptRecord:
            return  # the record was right when it was read, and says nothing of the log now
        except OperatorError:
            if partition.read.has_memory:
                raise
            return  # it was settled before this lane's time, and what is behind it can be read
        if lost := partition.read.found_again(found[0] if found else None):
            partition.stop(lost.message)

    async def look_ahead(self) -> None:
        """Find out since when the oldest unread record waits, for the partitions of which nothing
        else is unsettled. Of a partition that can't be read the time stays as it was."""
        readable = [one for one in self._partitions.values() if self._is_due(one.ref)]
        await asyncio.gather(*(self._look_ahead_of(partition) for partition in readable))

    async def _look_ahead_of(self, partition: SourcePartition) -> None:
        if partition.unsettled or (self._is_level and not partition.is_still):
            partition.read.looked_ahead(0)
            return
        with contextlib.suppress(OperatorError):  # that is said where it is read
            found = await self._reader.read(partition.ref, after_seq=partition.read.seq, limit=1)
            is_new = bool(found) and found[0].seq > partition.read.seq
            partition.read.looked_ahead(found[0].time_ms if is_new else 0)

    async def _look_behind_the_end(self, partition: SourcePartition) -> bool:
        """Nothing more is found: does the log end there? True when there is more to read."""
        if not partition.read.asks_for_the_end(self._now_s(), every_s=LOOK_EVERY_S):
            return False
        head = (await self._reader.extent(partition.ref)).head
        if head <= partition.read.seq:
            partition.read.ends_at(head)
            return False
        found = await self._reader.read(partition.ref, after_seq=partition.read.seq, limit=1)
        if not found and self._may_read(partition):
            self._pass(partition, Gap(partition.read.seq + 1, head))
        return True

    def _may_read(self, partition: SourcePartition) -> bool:
        return partition.ref in self._partitions and not partition.is_still

    def _pass(self, partition: SourcePartition, gap: Gap) -> None:
        """Go on behind records that won't come, and have every gateway say so to its subscribers;
        those with none of the topic have nothing to say."""
        log.error(LogLine.GAP_FOUND, partition=str(partition.ref), gap=str(gap))
        self.gaps += 1
        tells = self._settings.gap_enabled or gap.at_origin
        gateways = list(self._holding.around.urls) if tells else []
        partition.lose(gap, untold=len(gateways), now_ms=self._machine.wall_ms())
        for gateway_id in gateways:
            self._dispatcher.put(gateway_id, partition.notice(gap))

    def _take(self, partition: SourcePartition, records: Sequence[Record]) -> int:
        """How many were taken: at least one, and no more when the turn is over. No await in here,
        so what is said of a marker has its place between the records."""
        taken = 0
        for run in runs(records):
            if is_marker(run[0]):
                self._pass(partition, marked(run[0]))
                partition.read.accept(run[0])
                self.read += 1
                taken += 1
                continue
            matched = self._match(partition, run)
            taken += matched
            if matched < len(run):
                break
        return taken

    def _match(self, partition: SourcePartition, records: Sequence[Record]) -> int:
        """How many were matched. No await in here: the index is the same for every record of one
        call. The records are dense and follow what was read, so those that concern nobody are
        passed in whole runs."""
        put, before = self._dispatcher.put, partition.settled
        turn = _Turn(records, self._pace)
        for record, deliveries in self._matching.deliveries(partition, turn):
            partition.matched(record, len(deliveries))
            for gateway_id, delivery in deliveries.items():
                if (parts := put(gateway_id, delivery)) > 1:
                    partition.split(record.seq, parts)
            self.matched += len(deliveries)
        partition.matched_through(records[turn.taken - 1])
        self.read += turn.taken
        self._saving.count(partition.settled - before)
        return turn.taken

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


class _Turn:
    """The first of `records`, one at least, until the turn is over; `taken` counts them."""

    __slots__ = ("_pace", "_records", "taken")

    def __init__(self, records: Sequence[Record], pace: Pace) -> None:
        self._records = records
        self._pace = pace
        self.taken = 0

    def __iter__(self) -> Iterator[Record]:
        is_over = self._pace.is_over
        for number, record in enumerate(self._records, 1):
            self.taken = number
            yield record
            if is_over():
                return
