"""One subscriber of this gateway: its feed, its filter, and the writer of its connection.

Invariant: `ready` is called, synchronously, whenever there may be something new to take or the
subscriber was closed; taking is up to the connection, at its own pace. What needn't wait is written
past the queue, while the connection's `Line` is open to this subscriber. `Totals` counts what
waits, of all subscribers, at every moment.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headgate import errors
from headgate.decide.feed.feed import Delivered, Feed, Read
from headgate.decide.feed.paged import Paged
from headgate.decide.feed.queue import Item, Resync, ResyncReason
from headgate.decide.feed.redeliveries import Redelivery
from headgate.decide.filter.plan import Filter
from headgate.decide.log.lineage import begins_after, lineage_of
from headgate.model.delivery import Delivery, Run
from headgate.model.event import PartitionRef
from headgate.model.subscription import Subscription
from headgate.model.topology import Topic
from headgate.services.gateway.evidence import GatewayEvidence
from headgate.services.gateway.wire import encode_name, own_part, vector

READ_FIRST = 16
"""Records in the first read: how large they are isn't known yet."""
READ_BYTES = 4 * 1024 * 1024
"""What one read of the log should bring, by the size of the records in the one before."""


@dataclass(slots=True)
class Totals:
    """Sums over all subscribers of this gateway, for its reports."""

    evidence: GatewayEvidence = field(compare=False)
    depth: int = 0
    sent: int = 0
    dropped: int = 0
    resyncs: Counter[str] = field(default_factory=Counter)
    emptied: asyncio.Event | None = None
    """Set when nothing waits any more, where a task waits for that."""


def _nobody() -> None:
    """Nobody is connected yet."""


Waiting = tuple[int, bytes, str]
"""The seq of a record, its message, and the id of a subscriber for whom it has to wait."""


class Line(Protocol):
    """What a subscriber sees of the connection that it is written to."""

    @property
    def open_to(self) -> LiveSubscription | None:
        """Whose events may be written now: there is room, nothing waits before them, and nobody
        else's have to be looked at first."""

    @property
    def send(self) -> Callable[[bytes], None]:
        """Writes one message at once."""

    def write(self) -> None:
        """Write what it was told of by `ready`, now."""


class Find(Protocol):
    """The subscriber of a subscription, if it is here."""

    def __call__(self, subscription_id: str, /) -> LiveSubscription | None: ...


class LiveSubscription:
    """`name` is what the subscriber itself calls its subscription; unique per connection. `version`
    is the partitioning version of its topic that it knows."""

    __slots__ = (
        "__weakref__",
        "_acknowledged",
        "_counted",
        "_line",
        "_room",
        "_totals",
        "_typical_bytes",
        "catching_up",
        "closing",
        "encoded_name",
        "ends_connection",
        "feed",
        "id",
        "matches",
        "name",
        "paged",
        "ready",
        "starts",
        "subscription",
        "tail",
        "topic",
        "unprocessed",
        "version",
    )

    def __init__(
        self,
        subscription: Subscription,
        *,
        name: str,
        matches: Filter,
        feed: Feed[bytes],
        starts: dict[int, int],
        totals: Totals,
        version: int = 1,
    ) -> None:
        self.subscription = subscription
        self.id = subscription.id
        self.name = name
        self.topic = subscription.topic
        self.matches = matches
        self.feed = feed
        self.starts = starts
        self.version = version
        self.encoded_name = encode_name(name)
        self.tail = own_part(self.encoded_name)
        self.ready: Callable[[], None] = _nobody
        self._line: Line | None = None
        """None for one that takes everything from its queue, and for one that is closed."""
        self.unprocessed: Container[Hashable] = ()
        """Redeliveries that were taken and still have to be acknowledged, where that is so."""
        self.paged: Paged | None = None
        """How far it is with what lanes send page by page, once they do."""
        self.closing: errors.HeadgateError | None = None
        self.ends_connection = False
        """Whether the reason to close concerns the connection as a whole."""
        self.catching_up: asyncio.Task[None] | None = None
        self._typical_bytes: int | None = None
        self._acknowledged: dict[int, int] | None = None
        self._room = asyncio.Event()
        self._totals = totals
        self._counted = 0
        self._count()

    def connect(self, ready: Callable[[], None], line: Line | None) -> None:
        """A connection takes items from now on; with a `line`, they may also be written to it."""
        self.ready = ready
        if self.closing is None:
            self._line = line

    def disconnect(self) -> None:
        """No connection takes items any more, nor hears how the subscription ends."""
        self.ready, self._line = _nobody, None

    def repartitioned(self, topic: Topic) -> None:
        """Its topic may have another version: what came with that begins with its first record."""
        if topic.version <= self.version:
            return
        begins = begins_after(topic, self.version)
        self.starts = {**begins, **self.starts}
        self.feed.repartitioned(lineage_of(topic), begins)
        self.version = topic.version

    def version_of(self, partition: int, seq: int) -> int:
        """The partitioning version that this record was written under."""
        return self.feed.version_of(partition, seq) or self.version

    # --- in --------------------------------------------------------------------------------------

    @staticmethod
    def pass_through(run: Run, messages: Sequence[bytes], get: Find) -> list[Waiting]:
        """Write past the queues of all for whom that will do; returns those who have to wait.

        This runs for every event there is, and one event may go to ten thousand: nothing is done
        here that isn't needed for each of them. Hence the loop in here, and not a call for every
        subscriber: see docs/benchmarks/deliver.md.
        """
        partition = run.partition
        others: list[Waiting] = []
        for seq, message, names in zip(run.seqs, messages, run.subscriptions, strict=True):
            for name in names:
                subscriber = get(name)
                if (
                    subscriber is not None
                    and (line := subscriber._line) is not None
                    and line.open_to is subscriber
                    and subscriber.feed.pass_through(partition, seq)
                ):
                    line.send(message + subscriber.tail)
                else:
                    others.append((seq, message, name))
        return others

    @staticmethod
    def would_pass(run: Run, get: Find) -> bool:
        """Whether each record would pass to a subscriber, as far as is known without doing it."""
        partition = run.partition
        for seq, names in zip(run.seqs, run.subscriptions, strict=True):
            for name in names:
                subscriber = get(name)
                if (
                    subscriber is not None
                    and (line := subscriber._line) is not None
                    and line.open_to is subscriber
                    and subscriber.feed.would_pass(partition, seq)
                ):
                    break
            else:
                return False
        return True

    def deliver(self, partition: int, seq: int, shared: bytes, *, since: int) -> Delivered:
        """Take one live delivery. Who calls also calls `ready`, once per batch."""
        feed = self.feed
        dropped = feed.dropped
        outcome = feed.deliver(partition, seq, shared, since=since)
        if feed.dropped != dropped:
            self._totals.dropped += feed.dropped - dropped
        self._count()
        if outcome is Delivered.OVERFLOW:
            self._too_slow()
        return outcome

    def lost(
        self,
        partition: int,
        first_seq: int,
        last_seq: int,
        *,
        since: int,
        reason: ResyncReason = "gap",
    ) -> Delivered:
        """Take what a lane says about records that nobody will get."""
        outcome = self.feed.lost(partition, first_seq, last_seq, since=since, reason=reason)
        self._count()
        if outcome is Delivered.OVERFLOW:
            self._too_slow()
        return outcome

    def redeliver(self, partition: int, seq: int, shared: bytes, mark: Hashable) -> None:
        """Take what an operator wants delivered again; the feed has room for it."""
        self.feed.redeliver(partition, seq, shared, mark)
        self._count()

    def may_see(self, delivery: Delivery) -> bool:
        """Whether the subscriber may see a redelivery, which isn't matched again: a grant's filter
        may forbid it."""
        return True

    def awaits(self, mark: Hashable) -> bool:
        """Does this redelivery wait here, or has the subscriber got it, which has to say that it is
        processed? Should the connection end before, it was never delivered."""
        return self.feed.awaits(mark) or mark in self.unprocessed

    def is_held(self, partition: int, from_seq: int) -> bool:
        """Does it wait for something older than a page that begins at `from_seq`?"""
        return self.paged is not None and self.paged.is_held(partition, from_seq)

    def covers(self, partition: int, seq: int) -> bool:
        """Whether that place lies after this subscriber's start: it has had it, or will read it.
        False where there is no such partition: it was one of a former topic of the same name."""
        return partition in self.starts and seq > self.starts[partition]

    def replayed(self, read: Read, through_seq: int, matches: list[tuple[int, bytes]]) -> None:
        if self.closing is not None:
            return
        self.feed.replayed(read, through_seq, matches)
        ref = PartitionRef(self.topic, read.partition)
        self._totals.evidence.replayed(self.id, ref, read.after_seq, through_seq)
        self._count()
        self.ready()

    def gone(self, read: Read, earliest: int) -> None:
        """Retention was quicker than this subscriber: it goes on at `earliest`, and is told so."""
        if self.closing is not None:
            return
        self.feed.gone(read, earliest)
        self._count()
        self.ready()

    def lost_at_origin(self, read: Read) -> None:
        """The next record says that the origin has lost changes: it stands for nothing else."""
        if self.closing is not None:
            return
        self.feed.lost_at_origin(read)
        self._count()
        self.ready()

    def corrupt(self, read: Read, seq: int) -> None:
        """The next record, `seq`, is corrupt: nobody gets it."""
        if self.closing is not None:
            return
        self.feed.corrupt(read, seq)
        self._count()
        self.ready()

    def read_size(self, most: int, share_bytes: int) -> int:
        """How many records the next read should ask for: few until their size is known, and no
        more than its share has room for."""
        if not share_bytes or self._typical_bytes is None:
            return min(most, READ_FIRST if share_bytes else 1)
        fitting = min(READ_BYTES, share_bytes) // max(1, self._typical_bytes)
        return max(1, min(most, fitting))

    def read_brought(self, records: int, size_bytes: int) -> None:
        self._typical_bytes = size_bytes // records

    # --- out -------------------------------------------------------------------------------------

    def write(self) -> None:
        """Make the connection write what it was told of by `ready`, now."""
        if self._line is not None:
            self._line.write()

    def take(self) -> Item[bytes] | Redelivery[bytes] | Resync | None:
        item = self.feed.take()
        if item is not None:
            if isinstance(item, Resync):
                self._totals.resyncs[item.reason] += 1
                self._totals.evidence.left_out(self.id, self.topic, item)
            else:
                self._totals.sent += 1
            self._count()
            if self.catching_up is not None and self.feed.roomy:
                self._room.set()
        return item

    async def room(self) -> None:
        """Until the queue is half empty, or the subscriber closed."""
        while self.closing is None and not self.feed.roomy:
            self._room.clear()
            await self._room.wait()

    @property
    def waiting(self) -> int:
        """Deliveries, and what has to be said about those that don't come."""
        return self._counted

    # --- how far it is ---------------------------------------------------------------------------

    def acknowledge(self, positions: Mapping[int, int]) -> None:
        """The subscriber has processed everything up to `positions`.

        Raises InvalidRequest, and takes none of them, when it can't have.
        """
        sent = self.feed.sent()
        for partition, seq in positions.items():
            if partition not in sent:
                raise errors.InvalidRequest(
                    f"topic {self.topic} has no partition {partition}", partition=partition
                )
            if seq > sent[partition]:
                raise errors.InvalidRequest(
                    f"partition {partition} was sent up to seq {sent[partition]}, so {seq} can't "
                    "be acknowledged",
                    partition=partition,
                    sent=sent[partition],
                )
        known = dict(self.starts) if self._acknowledged is None else self._acknowledged
        for partition, seq in positions.items():
            known[partition] = max(seq, known.get(partition, 0))
        self._acknowledged = known

    @property
    def unacknowledged(self) -> int:
        """Positions that were sent and not acknowledged; 0 for one that never acknowledges."""
        if self._acknowledged is None:
            return 0
        sent = self.feed.sent()
        return sum(seq - self._acknowledged.get(number, 0) for number, seq in sent.items())

    def acknowledged_of(self, partition: int) -> int:
        """Up to where the subscriber says that it is done; -1 where it says nothing of it."""
        return -1 if self._acknowledged is None else self._acknowledged.get(partition, -1)

    def resume_from(self) -> str:
        """The `from` with which this subscriber would go on where it is."""
        done = self._acknowledged if self._acknowledged is not None else self.feed.sent()
        return vector({partition: seq + 1 for partition, seq in done.items()})

    # --- end -------------------------------------------------------------------------------------

    def close(self, reason: errors.HeadgateError, *, ends_connection: bool = False) -> None:
        """No more deliveries; the connection says why, and ends."""
        if self.closing is not None:
            return
        self.closing = reason
        self._line = None
        self.ends_connection = ends_connection
        self._totals.evidence.ended(
            self.id,
            self.topic,
            starts=self.starts,
            positions=self.feed.sent(),
            reason=reason.message,
        )
        self.feed.clear()
        self._count()
        if self.catching_up is not None:
            self.catching_up.cancel()
        self._room.set()
        self.ready()

    def _too_slow(self) -> None:
        resume = self.resume_from()
        self.close(
            errors.Overloaded(
                f"this subscriber is too slow: {self._counted} events wait for it; "
                f"connect again with from={resume}",
                resume=resume,
                topic=self.topic,
            ),
            ends_connection=True,
        )

    def _count(self) -> None:
        waiting = len(self.feed)
        totals = self._totals
        totals.depth += waiting - self._counted
        self._counted = waiting
        if not totals.depth and totals.emptied is not None:
            totals.emptied.set()
