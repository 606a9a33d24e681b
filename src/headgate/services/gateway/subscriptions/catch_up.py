"""Brings subscribers that are behind forward, from the log and through their filters.

One task per subscriber that is behind, and a bound on how many of them read at once. Invariant: a
task ends in the same step in which its subscriber is live, so a delivery that is deferred later
finds no task and starts one. Where retention was quicker, a record is corrupt, or says that its
origin has lost changes, the subscriber is told where it goes on; nothing is skipped in silence.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import takewhile

import msgspec
import structlog

from headgate import errors
from headgate.decide.connectors.whole_collection import concerned
from headgate.decide.delivery.gaps import dense, is_marker
from headgate.decide.feed.feed import Read
from headgate.decide.feed.matched_or_left import SoftDeletes, kind_for
from headgate.decide.feed.queue import Budget
from headgate.decide.filter.plan import Filter
from headgate.decide.filter.record_fields import with_record_fields
from headgate.decide.groups.targets import belongs
from headgate.decide.pacing import Pace
from headgate.model.event import UNDECODABLE, WHOLE_COLLECTION, PartitionRef, Record
from headgate.ports.log import LogReader
from headgate.ports.machine import Machine
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.services.gateway.wire import shared_part
from headgate.tasks import Crew
from headgate.telemetry import LogLine

log = structlog.get_logger()

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 2.0

_decode = msgspec.json.Decoder().decode


class CatchUp:
    """`soft_delete` is the path of the mark that deletes a record; empty: none does."""

    def __init__(
        self,
        reader: LogReader,
        *,
        budget: Budget,
        crew: Crew,
        machine: Machine,
        soft_delete: str = "",
        reads_at_once: int = 8,
    ) -> None:
        self._reader = reader
        self._soft_deletes = SoftDeletes(soft_delete) if soft_delete else None
        self._budget = budget
        self._crew = crew
        self._machine = machine
        self._turns = asyncio.Semaphore(reads_at_once)
        self._stopped = False
        self.filter_errors = 0
        self.records = 0
        """Records that were read for subscribers, by all of them together."""

    def stop(self) -> None:
        """Nothing more is read; a subscriber that is behind goes on elsewhere, from its
        position."""
        self._stopped = True

    def wake(self, subscriber: LiveSubscription) -> None:
        """Start catching up, unless that is going on or there is nothing to do."""
        if subscriber.catching_up is not None or subscriber.closing is not None or self._stopped:
            return
        if subscriber.feed.catching_up:
            subscriber.catching_up = self._crew.start(
                "catching up", self._run(subscriber), about=subscriber.id
            )

    async def message_of(
        self, subscriber: LiveSubscription, partition: int, seq: int
    ) -> bytes | None:
        """What the subscriber was told of that record; None where the log doesn't have it any more,
        it is corrupt by now, or says that others are lost. Raises what reading raises."""
        ref = PartitionRef(subscriber.topic, partition)
        try:
            found = await self._reader.read(ref, after_seq=seq - 1, limit=1)
        except errors.CorruptRecord:
            return None
        if not found or found[0].seq != seq or is_marker(found[0]):
            return None
        return self._message(subscriber.matches, found[0])

    async def _run(self, subscriber: LiveSubscription) -> None:
        try:
            await self._read_on(subscriber)
        except errors.HeadgateError as error:
            subscriber.catching_up = None
            subscriber.close(error)
        except Exception:
            subscriber.catching_up = None
            subscriber.close(errors.NotNow("this subscription failed here; subscribe again"))
            raise

    async def _read_on(self, subscriber: LiveSubscription) -> None:
        feed = subscriber.feed
        retry_s = RETRY_FIRST_S
        while subscriber.closing is None and not self._stopped:
            if not feed.catching_up:
                subscriber.catching_up = None
                return
            read = feed.next_read()
            if read is None:
                await subscriber.room()
                continue
            ref = PartitionRef(subscriber.topic, read.partition)
            version = subscriber.version  # a later one wasn't known when it was asked what is next
            try:
                records, earliest = await self._records(ref, read, subscriber)
            except errors.CorruptRecord as error:
                log.error(LogLine.CATCHING_UP, partition=str(ref), error=str(error))
                subscriber.corrupt(read, error.seq)
                continue
            if earliest > read.after_seq + 1:
                subscriber.gone(read, earliest)
                continue
            records = _of_known_versions(records, version)
            if not records:
                # The log is behind its own deliveries, or away: it has them, so wait for it; or we
                # are behind the log, which has records of a version that nobody has told us of.
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)
                continue
            retry_s = RETRY_FIRST_S
            if is_marker(records[0]):
                subscriber.lost_at_origin(read)
                continue
            # Behind a marker the next read begins, and finds it.
            records = list(takewhile(lambda record: not is_marker(record), records))
            self.records += len(records)
            subscriber.read_brought(len(records), sum(len(one.document) for one in records))
            matching = await self._matching(subscriber, records)
            subscriber.replayed(read, records[-1].seq, matching)

    async def _matching(
        self, subscriber: LiveSubscription, records: list[Record]
    ) -> list[tuple[int, bytes]]:
        """What the subscriber hears of `records`, by seq. However long its filter takes, everybody
        else at this gateway has a turn in between."""
        pace = Pace(self._machine.monotonic_s)
        pace.begin()
        found: list[tuple[int, bytes]] = []
        for record in records:
            if belongs(record, subscriber.subscription.shard):
                message = self._message(subscriber.matches, record)
                if message is not None:
                    found.append((record.seq, message))
            if pace.is_over():
                await asyncio.sleep(0)
                pace.begin()
        return found

    async def _records(
        self, ref: PartitionRef, read: Read, subscriber: LiveSubscription
    ) -> tuple[list[Record], int]:
        """The next records, and the seq with which what is left of the log begins (0: unknown).
        Raises CorruptRecord where the next one is: to ask again would change nothing."""
        async with self._turns:
            limit = subscriber.read_size(read.limit, self._budget.share_bytes)
            try:
                records = await self._reader.read(ref, after_seq=read.after_seq, limit=limit)
                if records:
                    # Behind a hole between them the next read begins, and finds it.
                    return list(dense(records)), records[0].seq
                extent = await self._reader.extent(ref)
                if extent.earliest > read.after_seq + 1 or extent.head <= read.after_seq:
                    return [], extent.earliest
                again = await self._reader.read(ref, after_seq=read.after_seq, limit=1)
                # It has grown meanwhile, or it ends with a hole: what is there lies before it.
                return again, again[0].seq if again else extent.head + 1
            except errors.CorruptRecord:
                raise
            except errors.HeadgateError as error:
                log.warning(LogLine.CATCHING_UP, partition=str(ref), error=str(error))
                return [], 0

    def _message(self, matches: Filter, record: Record) -> bytes | None:
        """What the subscriber hears of `record`, as a lane would have put it."""
        if record.op in WHOLE_COLLECTION:
            return None if matches.excludes(*concerned(record)) else shared_part(record)
        if matches.expression is None and self._soft_deletes is None:
            return shared_part(record)
        about, earlier = (record.key, record.collection), None
        document = with_record_fields(self._decoded(record.document), *about)
        if record.earlier:
            earlier = with_record_fields(self._decoded(record.earlier), *about)
        kind = kind_for(partial(self._verdict, matches), document, earlier)
        if kind is None:
            return None
        if self._soft_deletes is None:
            return shared_part(record, kind)
        return shared_part(record, kind, self._soft_deletes.op(record.op, document, earlier))

    def _verdict(self, matches: Filter, document: object) -> bool | None:
        if matches.expression is None:
            return True
        if document is None:
            return None
        verdict = matches.evaluate(document)
        if verdict is None:
            self.filter_errors += 1
        return verdict

    def _decoded(self, document: bytes) -> object:
        """None for one that can't be decoded."""
        try:
            return _decode(document)
        except UNDECODABLE:
            self.filter_errors += 1
            return None


def _of_known_versions(records: list[Record], version: int) -> list[Record]:
    """The first of `records`, up to one of a newer version: which records of other partitions come
    before that isn't known yet."""
    if not records or records[-1].version <= version:
        return records
    return list(takewhile(lambda record: record.version <= version, records))
