"""What one subscriber gets next: live deliveries while it keeps up, the log when it doesn't.

Two sources feed one bounded queue. Lanes deliver matching records in `seq` order per partition,
possibly more than once; the log has every record, matching or not. A partition of a subscriber is

    live          position >= target: a delivery goes straight into the queue
    catching up   position <  target: the log is read from `position` on; deliveries only raise the
                  target, because the log has them too

and changes from one to the other inside a single call, so that nothing falls between the two:

    held      -> catching up / live   `release`, with heads taken after the lanes adopted the filter
    live      -> catching up          `deliver` into a full queue, or by a lane that has read past
                                      the position without knowing of the subscription
    live      -> held                 `hold`, when the registry has forgotten the subscription
    catching up -> live               `replayed`, once the position reached the target

Where the topic was repartitioned, a partition is held at the end of each version until all of the
former ones that may have the same keys has been taken up (decide.log.lineage): a live delivery
waits for those that catch up, and is read from the log then. Those that are live need no waiting
for: lanes deliver in that order. What they went on without at the end of a version (it was shed, or
is a dead letter) leaves the position before it all the same: one lane may have settled it because
it no longer knew of the subscription, while another still did. So a subscription that is held, or
resumes, reads it from the log, late rather than never.

What a full queue does to a live delivery is the subscription's choice: `park` falls back to the log
(the table above), `drop_oldest` leaves out what has waited longest, `disconnect` gives up.

Records that a lane found missing (`lost`), and those that say that their origin has lost changes,
are a delivery like any other: a Resync in the queue of one that is live, found in the log by one
that catches up. What an operator wants delivered again
(`redeliver`) waits beside the queue, which it takes turns with, and moves no position, so it is
only for records that a position guards or a letter keeps; but nothing
passes a redelivery of its partition that came before it, so that a subscriber that keeps the last
state of a key ends with the newer one.

Invariant: what `take` returns is, per partition, exactly the matching records after the start, in
order, without a repeat; the redeliveries, in the order in which they came; and of these two,
nothing before a redelivery that was there when it came. Where records are left out, a Resync stands
in their place. Never more than `capacity` items wait, and a quarter as many redeliveries. It must
never look at a clock, wait, or drop anything in silence.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, Literal, TypeVar

from headgate.decide.feed.queue import (
    UNLIMITED,
    Budget,
    FeedQueue,
    Item,
    Resync,
    ResyncReason,
)
from headgate.decide.feed.redeliveries import Redeliveries, Redelivery, Sized
from headgate.decide.log.lineage import Lineage, boundaries

T = TypeVar("T", bound=Sized)

WhenSlow = Literal["park", "drop_oldest", "disconnect"]
"""What happens when a subscriber's queue is full."""
REDELIVERIES_SHARE = 4
"""This part of a queue's bounds is what may wait beside it."""


class Delivered(Enum):
    """What became of one live delivery; all of them settle it."""

    QUEUED = "queued"
    DEFERRED = "deferred"
    """Accepted but not queued: it will be read from the log."""
    DUPLICATE = "duplicate"
    OVERFLOW = "overflow"
    """Not accepted, and nothing is from now on: the subscriber has to be disconnected."""


@dataclass(frozen=True, slots=True)
class Read:
    """A read of the log that would bring the subscriber forward."""

    partition: int
    after_seq: int
    limit: int


class Feed(Generic[T]):
    """The state of one subscriber; `T` is whatever is sent, its length counts as bytes."""

    # Ten thousand of them are looked at for one event: what lies together is found sooner.
    __slots__ = (
        "_again",
        "_again_next",
        "_flowing",
        "_held",
        "_last_read",
        "_lineage",
        "_lost",
        "_positions",
        "_queue",
        "_read_limit",
        "_sent",
        "_targets",
        "_when_slow",
    )

    def __init__(
        self,
        starts: Mapping[int, int],
        *,
        capacity: int,
        capacity_bytes: int,
        read_limit: int,
        when_slow: WhenSlow = "park",
        budget: Budget | None = None,
        lineage: Lineage | None = None,
    ) -> None:
        """`starts` are the seqs after which each partition begins. Held until `release`."""
        self._lineage = None if lineage is None or lineage.is_plain else lineage
        self._positions = dict(starts)
        self._targets = dict(starts)
        self._sent = dict(starts)
        self._read_limit = read_limit
        self._when_slow = when_slow
        budget = budget or Budget(UNLIMITED)
        self._queue: FeedQueue[T] = FeedQueue(
            capacity=capacity,
            capacity_bytes=capacity_bytes,
            budget=budget,
            drops_oldest=when_slow == "drop_oldest",
        )
        self._again: Redeliveries[T] = Redeliveries(
            capacity=max(1, capacity // REDELIVERIES_SHARE),
            capacity_bytes=capacity_bytes // REDELIVERIES_SHARE,
            budget=budget,
        )
        self._again_next = False
        self._held = True
        self._last_read = -1
        self._lost: dict[int, tuple[int, int]] = {}
        """Of partitions that are read in the log: after which seq, and up to which, records are
        lost that begin before the place where it is read on."""
        self._flowing = False
        """Everything is live and nothing waits: what comes next may go out at once. `_sent` is
        behind the positions meanwhile."""

    def repartitioned(self, lineage: Lineage, begins: Mapping[int, int]) -> None:
        """The topic has another version; those of `begins` that are news begin after these seqs."""
        self._end_flow()
        self._lineage = None if lineage.is_plain else lineage
        for partition, seq in begins.items():
            if partition not in self._positions:
                for table in (self._positions, self._targets, self._sent):
                    table[partition] = seq

    @property
    def lineage(self) -> Lineage | None:
        """None where there is but one version, or no order to keep across them."""
        return self._lineage

    def version_of(self, partition: int, seq: int) -> int:
        """The version that this record is of; 0 where there is but one to know of."""
        return 0 if self._lineage is None else self._lineage.version_of(partition, seq)

    # --- from the lanes --------------------------------------------------------------------------

    def pass_through(self, partition: int, seq: int) -> bool:
        """Whether a live delivery needs no place in the queue: then it counts as sent, and the
        caller sends it now. Otherwise nothing has happened, and it is one for `deliver`."""
        if (self._flowing or self._begin_flow()) and self._positions.get(partition, seq) < seq:
            self._positions[partition] = seq
            return True
        return False

    def would_pass(self, partition: int, seq: int) -> bool:
        """Whether `pass_through` is sure to be true; it may also be where this is false."""
        return self._flowing and self._positions.get(partition, seq) < seq

    def deliver(self, partition: int, seq: int, value: T, *, since: int = 0) -> Delivered:
        """`since`: the lane had read up to there before it knew of this subscription."""
        position = self._positions.setdefault(partition, 0)
        if seq <= position:
            return Delivered.DUPLICATE
        if (instead := self._not_now(partition, seq, since=since)) is not None:
            return instead
        self._append(partition, seq, value)
        self._positions[partition] = seq
        return Delivered.QUEUED

    def lost(
        self,
        partition: int,
        first_seq: int,
        last_seq: int,
        *,
        since: int = 0,
        reason: ResyncReason = "gap",
    ) -> Delivered:
        """The lane goes on after `last_seq`: nothing from `first_seq` up to there will come.

        Who catches up reads the log up to there, and finds out by itself; `gone` says what lies
        before that, too. `since`: so far the lane may have read without this subscription.
        """
        position = self._positions.setdefault(partition, 0)
        if last_seq <= position:
            return Delivered.DUPLICATE
        # From its beginning, though some of it may have come: a letter that was parked before its
        # neighbours were lost arrives before the news of them.
        if (instead := self._not_now(partition, last_seq, since=since)) is not None:
            if instead is Delivered.DEFERRED and first_seq <= position:
                self._lost[partition] = first_seq - 1, last_seq
            return instead
        # But from where this subscriber began, if nothing has come since: a log that had just lost
        # its history was shorter then than what lanes had read of it, and saved later.
        after_seq = first_seq - 1
        if reason == "gap" and position <= self._targets.get(partition, 0):
            after_seq = min(position, after_seq)
        self._end_flow()
        self._queue.say(Resync(partition, after_seq, last_seq + 1, reason))
        self._positions[partition] = last_seq
        return Delivered.QUEUED

    def has_reached(self, partition: int, seq: int) -> bool:
        """Whether the subscription has had every record up to there that it wants, or was told that
        it won't."""
        return seq <= self._positions.get(partition, 0)

    def has_passed(self, partition: int, seq: int) -> bool:
        """Whether it has gone on without that record, which it isn't going to read in the log: in
        other partitions, under a later version, it has had what may be of the same key."""
        position = self._positions.get(partition, 0)
        if self._lineage is None or self._held or self._targets.get(partition, 0) > position:
            return False
        return self._lineage.is_before(partition, seq, self._positions)

    def read_former(self) -> None:
        """Lanes may go on without it, in some partitions sooner than in others: from now on nothing
        of a version comes before what the former ones end with was read in the log, unless some of
        it has come already, when that was sure."""
        if self._lineage is None:
            return
        for ref, last in boundaries(self._lineage.topic).items():
            partition = ref.partition
            position = self._positions.get(partition, 0)
            if position < last and not self._lineage.is_before(partition, last, self._positions):
                self._end_flow()
                self._targets[partition] = max(last, self._targets.get(partition, 0))

    @property
    def takes_redeliveries(self) -> bool:
        return self._again.has_room

    def takes_redelivery(self, *, beside_bytes: int) -> bool:
        """The same, once others have taken so much."""
        return self._again.has_room_beside(beside_bytes)

    @property
    def wants_redeliveries(self) -> bool:
        """Is there room for some of them?"""
        return self._again.is_roomy

    def redeliver(self, partition: int, seq: int, value: T, mark: Hashable = None) -> None:
        """Deliver it whatever was delivered before; only with room for it. `awaits` knows it by
        its `mark`."""
        if not self._again.has_room:
            raise ValueError("there is no room for a redelivery")
        self._end_flow()
        again = Redelivery(partition, seq, value, mark)
        self._again.add(again, position=self._positions.get(partition, 0))

    def awaits(self, mark: Hashable) -> bool:
        """Does a redelivery with this mark wait here?"""
        return mark in self._again

    def _not_now(self, partition: int, seq: int, *, since: int = 0) -> Delivered | None:
        """What becomes of what a lane delivered up to `seq`; None when it may be queued."""
        position = self._positions[partition]
        behind = self._targets.get(partition, 0) > position or since > position
        if not self._held and not behind and not self._comes_later(partition, seq):
            if self._queue.has_room() or self._queue.makes_room():
                return None
            if self._when_slow == "disconnect":
                return Delivered.OVERFLOW
        self._end_flow()
        self._targets[partition] = max(seq, self._targets.get(partition, 0))
        return Delivered.DEFERRED

    def _comes_later(self, partition: int, seq: int) -> bool:
        """Must something be taken up first that may have the same key?"""
        if self._lineage is None:
            return False
        version = self._lineage.version_of(partition, seq)
        positions, targets = self._positions, self._targets
        return any(
            positions.get(number, 0) < min(last, targets.get(number, 0))
            for number, last in self._lineage.before(version, partition).items()
        )

    def _begin_flow(self) -> bool:
        """Whether nothing has to be asked of what comes from now on, until `_end_flow`."""
        if not self._queue and not self._again and self.live:
            self._flowing = True
        return self._flowing

    def _end_flow(self) -> None:
        if self._flowing:
            self._flowing = False
            self._sent.update(self._positions)

    # --- from the log ----------------------------------------------------------------------------

    def hold(self) -> None:
        """Lanes may have settled records without this subscription: trust none until `release`."""
        self._end_flow()
        self._held = True

    def release(self, heads: Mapping[int, int]) -> None:
        """Begin: deliveries are complete after `heads`, everything up to them is in the log."""
        self._end_flow()
        self._held = False
        for partition, head in heads.items():
            self._positions.setdefault(partition, 0)
            self._targets[partition] = max(head, self._targets.get(partition, 0))

    def next_read(self) -> Read | None:
        """The read to do now; None when live, held, or without room for its result.

        Partitions take turns, so that a busy one can't starve the others.
        """
        self._queue.reserve_nothing()
        if self._held or not self.roomy:
            return None
        behind = self.behind()
        if self._lineage is not None:
            positions = self._positions
            behind = [one for one in behind if not self._comes_later(one, positions[one] + 1)]
        if not behind:
            return None
        partition = next((number for number in behind if number > self._last_read), behind[0])
        self._last_read = partition
        limit = self._queue.reserve(min(self._read_limit, self._left_of_version(partition)))
        return Read(partition, self._positions[partition], limit)

    def _left_of_version(self, partition: int) -> int:
        """How many records may be read before the reader has to ask again what comes first."""
        if self._lineage is None:
            return UNLIMITED
        position = self._positions[partition]
        end = self._lineage.end_of(partition, position + 1)
        return UNLIMITED if end is None else end - position

    def replayed(self, read: Read, through_seq: int, matches: Sequence[tuple[int, T]]) -> None:
        """The result of `read`: its matches, and how far it went (matching or not)."""
        if self._positions[read.partition] != read.after_seq:
            raise ValueError(f"{read} is not the read that this subscriber waits for")
        if through_seq < read.after_seq or len(matches) > read.limit:
            raise ValueError(f"{read} can't have gone to {through_seq} with {len(matches)} matches")
        self._queue.reserve_nothing()
        for seq, value in matches:
            self._append(read.partition, seq, value)
        self._positions[read.partition] = through_seq

    def gone(self, read: Read, earliest: int) -> None:
        """The result of `read` when retention was quicker: the partition begins at `earliest`."""
        if self._positions[read.partition] != read.after_seq or earliest <= read.after_seq + 1:
            raise ValueError(f"{read} can't have missed anything before {earliest}")
        self._queue.reserve_nothing()
        resync = self._resynced(read.partition, read.after_seq, earliest, "retention")
        before, last = self._lost.pop(read.partition, (read.after_seq, 0))
        if before < read.after_seq < last:
            resync = replace(resync, after_seq=before)
        self._queue.say(resync)

    def lost_at_origin(self, read: Read) -> None:
        """The result of `read` when the first record that it found says that the origin has lost
        changes."""
        if self._positions[read.partition] != read.after_seq:
            raise ValueError(f"{read} is not the read that this subscriber waits for")
        self._queue.reserve_nothing()
        self.resync(read.partition, read.after_seq, read.after_seq + 2, "origin")

    def corrupt(self, read: Read, seq: int) -> None:
        """The result of `read` when the first record that there is, `seq`, is corrupt."""
        if self._positions[read.partition] != read.after_seq or seq <= read.after_seq:
            raise ValueError(f"{read} is not the read that this subscriber waits for")
        self._queue.reserve_nothing()
        self.resync(read.partition, read.after_seq, seq + 1, "corrupt")

    def resync(
        self, partition: int, after_seq: int, from_seq: int, reason: ResyncReason = "retention"
    ) -> None:
        """Go on at `from_seq`, because the log has nothing of (after_seq, from_seq) any more; who
        has not been told so is still before that."""
        self._queue.say(self._resynced(partition, after_seq, from_seq, reason))

    def _resynced(
        self, partition: int, after_seq: int, from_seq: int, reason: ResyncReason
    ) -> Resync:
        self._end_flow()
        self._sent[partition] = min(after_seq, self._sent.get(partition, after_seq))
        self._positions[partition] = max(from_seq - 1, self._positions.get(partition, 0))
        return Resync(partition, after_seq, from_seq, reason)

    def goes_back(
        self, partition: int, after_seq: int, from_seq: int, reason: ResyncReason
    ) -> None:
        """The subscriber gets the partition from `from_seq` on, also if it has seen more of it; it
        is told before everything else, also before what the log doesn't have any more behind
        that."""
        self._queue.say_first(self._resynced(partition, after_seq, from_seq, reason))

    def behind(self) -> list[int]:
        """The partitions that are catching up."""
        return sorted(
            partition
            for partition, target in self._targets.items()
            if target > self._positions[partition]
        )

    # --- to the subscriber -----------------------------------------------------------------------

    def peek(self) -> Item[T] | Resync | Redelivery[T] | None:
        """What `take` would return."""
        return self._again.peek() if self._is_turn_of_again else self._queue.first

    def take(self) -> Item[T] | Resync | Redelivery[T] | None:
        """The next item to send; it counts as sent."""
        if self._is_turn_of_again:
            self._again_next = False
            return self._again.take()
        self._again_next = True
        item = self._queue.take()
        if item is not None:
            self._sent[item.partition] = item.reaches
        return item

    def sent(self) -> dict[int, int]:
        """Per partition the seq up to which everything that matches was taken.

        With an empty queue that includes what was read and didn't match.
        """
        if not self._queue:
            return dict(self._positions)
        return {partition: self._sent.get(partition, 0) for partition in self._positions}

    @property
    def roomy(self) -> bool:
        """Is the queue half empty?"""
        return self._queue.is_roomy

    @property
    def dropped(self) -> int:
        """Records that were left out because it was too slow."""
        return self._queue.dropped

    @property
    def held(self) -> bool:
        return self._held

    @property
    def live(self) -> bool:
        return not self._held and not self.behind()

    @property
    def catching_up(self) -> bool:
        """Would a read bring it forward, now or once there is room?"""
        return not self._held and bool(self.behind())

    def __len__(self) -> int:
        """What waits: items, and what has to be said about those that don't come."""
        return len(self._queue) + len(self._again)

    def clear(self) -> None:
        """The subscriber is gone: nothing waits for it any more."""
        self._queue.clear()
        self._again.clear()

    @property
    def _is_turn_of_again(self) -> bool:
        """Neither may keep the other waiting, but for records that came after redeliveries."""
        if not self._again:
            return False
        first = self._queue.first
        if self._again_next or first is None:
            return True
        return self._again.go_before(first.partition, first.reaches)

    def _append(self, partition: int, seq: int, value: T) -> None:
        self._end_flow()
        self._queue.add(Item(partition, seq, value))
