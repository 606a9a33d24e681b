"""The partitioned, durable log: what an ingest node writes and everybody else follows.

One writer per partition (the owner, under an epoch), any number of readers, in any process that can
reach the store. `seq` is dense from 1 and never restarts, not even when a deleted topic comes back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

import msgspec

from headgate.model.event import Event, PartitionRef, Record
from headgate.model.intake import IntakeMark, IntakePosition

if TYPE_CHECKING:
    import pyarrow as pa


READ_BYTES = 8 * 1024 * 1024
"""What one read brings: it stops behind the record with which the documents have so much."""


class Appended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where one event stands. `repeated` says that its idempotency key was there already."""

    seq: int
    repeated: bool = False


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """What became of a connector's batch: how many records it added, where the log ends now, and
    the connector's position in the partition."""

    added: int
    head: int
    position: str


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """`earliest` is the first seq that is still there, `head` the last one given out (0: none).

    With no record left, `earliest` is the next seq to come: head + 1.
    """

    earliest: int
    head: int


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long records are kept: until they are older than `max_age_ms`, or until the partition's
    records take more than `max_bytes` (whichever comes first; None: no limit).

    Unsettled records are kept all the same, unless `past_settled` allows to drop them too.
    """

    max_age_ms: int | None = None
    max_bytes: int | None = None
    past_settled: bool = False


class Verified(msgspec.Struct, frozen=True, array_like=True):
    """What was found in a stretch of a partition: how many records are what was appended, how many
    are from before there were checksums (which nobody can tell), and the seqs of those that
    aren't. `last_seq` is where the stretch ends."""

    last_seq: int
    verified: int
    unverified: int
    corrupt: tuple[int, ...] = ()


class LogWriter(Protocol):
    """Appends for the partitions that this node owns.

    A store can be lost, restored from a backup, or fail over to a copy that lacks the last commits,
    while its writer goes on. So a writer remembers, for as long as it lives, the highest seq of a
    partition that it has ever given out, and compares in every call that takes or tells
    something. A store that ends before that, has forgotten its owner's epoch, or isn't the one that
    was opened, is refused with StoreChanged, until it is opened again, and moved on if need be.
    """

    async def open(
        self, ref: PartitionRef, *, epoch: int, version: int = 1, sealed: bool = False
    ) -> Extent:
        """Make `ref` ready to be appended to under `epoch`; creates it when it's new.

        Stores `version`, the partitioning version that appends must carry, unless a higher one is
        stored. With `sealed` it takes no appends until it is opened without, by this node or
        another: what it ends at then is where it stays. Appends that were handed in before come
        first. Opening it again is how its owner changes either. Raises Fenced when a higher epoch
        has opened or dropped it before. A store that has changed is opened as it is now: one that
        ends before what was given out takes nothing until `move_on` has put its head behind that.
        """

    def append(
        self, ref: PartitionRef, events: Sequence[Event], *, version: int, now_ms: int
    ) -> Awaitable[list[Appended]]:
        """Append all of `events` as one transaction, or none of them.

        Returns once they are on disk (fsync). An event whose id is in the partition already keeps
        its first seq and isn't written again. Concurrent calls for one partition share an fsync.
        A call that is cancelled may still be written. Raises StorageFailed when nothing was written
        for sure, OutcomeUnknown when the disk failed so late that nobody can tell, Overloaded when
        too much waits already, InvalidRequest for a value that can't be stored, StaleVersion (with
        the stored `version`) when `version` is not the stored one, Sealed while the partition is
        sealed, Fenced when the epoch was overtaken or `ref` was never opened here, and StoreChanged
        (see above); all of these are checked in the transaction that writes. Each of them concerns
        this call alone.
        """

    async def take_in(
        self,
        ref: PartitionRef,
        mark: IntakeMark,
        events: Sequence[Event],
        *,
        version: int,
        now_ms: int,
    ) -> Taken:
        """Append what a connector has read, and store how far it is, as one transaction.

        Events at or before the stored position are left out; each has its position in `source`, and
        none leaves an idempotency key. So handing in the same again is harmless, whatever became
        of it the first time. Raises what `append` raises, ConnectorFenced when a higher epoch of
        the connector has been here, and IntakeGap when `mark.after` lies behind what is stored, or
        what is stored has ended; nothing is written then.
        """

    async def find(self, ref: PartitionRef, event_ids: Sequence[str]) -> dict[str, int]:
        """The seq of each of `event_ids` that is in the partition, as far as keys are kept.

        How the owner learns what became of a write whose outcome it doesn't know. Waits for the
        writes that were handed in before. Raises StorageFailed when the store can't tell now, such
        as StoreChanged.
        """

    async def move_on(self, ref: PartitionRef, *, from_head: int, to_head: int) -> Extent:
        """Where the head is `from_head`, leave out all seqs up to `to_head`; the extent after that.

        For a log whose history is lost: `seq` must not restart. Raises Fenced like `append`, and
        StoreChanged where it has to be opened again first.
        """

    async def retain(
        self, ref: PartitionRef, retention: Retention, *, settled: int, ids_ms: int, now_ms: int
    ) -> Extent:
        """Drop what `retention` doesn't keep, and idempotency keys older than `ids_ms`.

        From the front only, so that what is left is dense. Raises Fenced like `append`.
        """

    async def drop_records(self, ref: PartitionRef, *, epoch: int) -> None:
        """Forget every record, idempotency key and connector's position (the topic was deleted,
        which took `epoch`), but keep the head.

        Version and seal are forgotten with them, `seq` goes on from there, or from what was given
        out where the store has forgotten that. `ref` need not be open, here or anywhere. `epoch` is
        stored, so that a node that has it open under a lower one, or comes late to open it, is
        fenced from then on; creates it when it's new, for the same reason. It isn't open here any
        more, and nothing is held for it. Raises Fenced when a higher epoch has opened or dropped
        it, and changes nothing then. Repeating it is harmless.
        """

    async def close(self) -> None:
        """Finish what is queued, then release every file or connection."""


class LogReader(Protocol):
    """Reads any partition. Safe to use from an asyncio loop: no call blocks for long.

    A record carries a checksum, made at append, over all that it says and where it stands. A reader
    compares, and hands out no record that isn't what was appended: what comes before it, and then
    CorruptRecord, which names it. Records from before there were checksums are handed out as they
    are.
    """

    async def extent(self, ref: PartitionRef) -> Extent:
        """Earliest and head; Extent(1, 0) for a partition that nobody has opened yet."""

    async def read(self, ref: PartitionRef, *, after_seq: int, limit: int) -> list[Record]:
        """Up to `limit` records with seq > after_seq, in order; [] when there are none.

        Fewer where their documents have READ_BYTES together, one at least: `may_have_more` tells.
        A record is the same, in every field, however often it is read: one that isn't is of another
        log. Ends before a corrupt record; raises CorruptRecord where that is the next one.
        """

    async def verify(self, ref: PartitionRef, *, after_seq: int, limit: int) -> Verified | None:
        """Compare up to `limit` records with seq > after_seq; None when there are none. A corrupt
        one is said, and passed."""

    async def first_since(self, ref: PartitionRef, time_ms: int) -> int:
        """The seq of the first record that was appended at `time_ms` or later, by its writer's
        clock; that of the next one to come where there is none. Clocks may go back: none of that
        time or later comes before it."""

    async def find(self, ref: PartitionRef, event_ids: Sequence[str]) -> dict[str, int]:
        """The seq of each of `event_ids` that is in the partition, as far as keys are kept.

        Sees what is committed: what became of a write that is under way only its writer knows.
        """

    async def taken_in(self, ref: PartitionRef, connector: str) -> list[IntakePosition]:
        """How far `connector` has come in the partition, by each version that is kept of it, the
        oldest first. Sees what is committed."""

    def read_arrow(
        self, ref: PartitionRef, *, after_seq: int, up_to_seq: int
    ) -> pa.RecordBatchReader:
        """The records in (after_seq, up_to_seq] as Arrow batches with the columns of Record. Raises
        CorruptRecord behind all that comes before one."""

    def follow(
        self, refs: Sequence[PartitionRef]
    ) -> AbstractAsyncContextManager[AsyncIterator[frozenset[PartitionRef]]]:
        """Wake-ups: yields the partitions that may have grown, soon after each append.

        Entered before the first read, no append can be missed between that read and the first
        wake-up. A wake-up may be spurious, several may be folded into one, and one comes at least
        every second for all of `refs`, so a lost signal costs latency and never a record. To wait
        for one may be given up and begun again: it comes all the same.
        """

    async def close(self) -> None: ...


def size_bytes(record: Record) -> int:
    """What counts for READ_BYTES."""
    return len(record.document) + (len(record.earlier) if record.earlier else 0)


def may_have_more(found: Sequence[Record], limit: int) -> bool:
    """Whether a read of up to `limit` that brought `found` may have left something."""
    return len(found) >= limit or sum(map(size_bytes, found)) >= READ_BYTES
