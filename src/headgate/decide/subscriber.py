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

Invariant: what `take` returns is, per partition, exactly the matching records after the start, in
order, without a gap or a repeat, and never more than `capacity` items wait. It must never look at a
clock, wait, or drop anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    def __len__(self) -> int: ...


T = TypeVar("T", bound=Sized)


class Delivered(Enum):
    """What became of one live delivery; all three settle it."""

    QUEUED = "queued"
    DEFERRED = "deferred"
    """Accepted but not queued: it will be read from the log."""
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Read:
    """A read of the log that would bring the subscriber forward."""

    partition: int
    after_seq: int
    limit: int


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    partition: int
    seq: int
    value: T


class Feed(Generic[T]):
    """The state of one subscriber; `T` is whatever is sent, its length counts as bytes."""

    def __init__(
        self, starts: Mapping[int, int], *, capacity: int, capacity_bytes: int, read_limit: int
    ) -> None:
        """`starts` are the seqs after which each partition begins. Held until `release`."""
        self._positions = dict(starts)
        self._targets = dict(starts)
        self._sent = dict(starts)
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._read_limit = read_limit
        self._queue: deque[Item[T]] = deque()
        self._queued_bytes = 0
        self._held = True
        self._last_read = -1
        self._reserved = 0
        """Room for the result of the read that is under way; live deliveries must not take it."""

    # --- from the lanes --------------------------------------------------------------------------

    def deliver(self, partition: int, seq: int, value: T, *, since: int = 0) -> Delivered:
        """`since`: the lane had read up to there before it knew of this subscription."""
        position = self._positions.setdefault(partition, 0)
        if seq <= position:
            return Delivered.DUPLICATE
        behind = self._targets.get(partition, 0) > position or since > position
        if self._held or behind or not self._has_room():
            self._targets[partition] = max(seq, self._targets.get(partition, 0))
            return Delivered.DEFERRED
        self._append(partition, seq, value)
        self._positions[partition] = seq
        return Delivered.QUEUED

    # --- from the log ----------------------------------------------------------------------------

    def hold(self) -> None:
        """Lanes may have settled records without this subscription: trust none until `release`."""
        self._held = True

    def release(self, heads: Mapping[int, int]) -> None:
        """Begin: deliveries are complete after `heads`, everything up to them is in the log."""
        self._held = False
        for partition, head in heads.items():
            self._positions.setdefault(partition, 0)
            self._targets[partition] = max(head, self._targets.get(partition, 0))

    def next_read(self) -> Read | None:
        """The read to do now; None when live, held, or without room for its result.

        Partitions take turns, so that a busy one can't starve the others.
        """
        self._reserved = 0
        if self._held or not self.roomy:
            return None
        behind = self.behind()
        if not behind:
            return None
        partition = next((number for number in behind if number > self._last_read), behind[0])
        self._last_read = partition
        # Half of the room, so that partitions that are live can stay so meanwhile.
        room = self._capacity - len(self._queue)
        self._reserved = min(self._read_limit, (room + 1) // 2)
        return Read(partition, self._positions[partition], self._reserved)

    def replayed(self, read: Read, through_seq: int, matches: Sequence[tuple[int, T]]) -> None:
        """The result of `read`: its matches, and how far it went (matching or not)."""
        if self._positions[read.partition] != read.after_seq:
            raise ValueError(f"{read} is not the read that this subscriber waits for")
        if through_seq < read.after_seq or len(matches) > read.limit:
            raise ValueError(f"{read} can't have gone to {through_seq} with {len(matches)} matches")
        self._reserved = 0
        for seq, value in matches:
            self._append(read.partition, seq, value)
        self._positions[read.partition] = through_seq

    def behind(self) -> list[int]:
        """The partitions that are catching up."""
        return sorted(
            partition
            for partition, target in self._targets.items()
            if target > self._positions[partition]
        )

    # --- to the subscriber -----------------------------------------------------------------------

    def take(self) -> Item[T] | None:
        """The next item to send; it counts as sent."""
        if not self._queue:
            return None
        item = self._queue.popleft()
        self._queued_bytes -= len(item.value)
        self._sent[item.partition] = item.seq
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
        """Is the queue half empty? Reading earlier would mean many reads of a record or two."""
        return 2 * len(self._queue) <= self._capacity and self._has_room()

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
        return len(self._queue)

    def _has_room(self) -> bool:
        # An empty queue takes an item of any size, or a large document could never pass.
        if not self._queue and not self._reserved:
            return True
        taken = len(self._queue) + self._reserved
        return taken < self._capacity and self._queued_bytes < self._capacity_bytes

    def _append(self, partition: int, seq: int, value: T) -> None:
        self._queue.append(Item(partition, seq, value))
        self._queued_bytes += len(value)
