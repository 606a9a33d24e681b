"""What waits for one subscriber: a bounded queue, and what has to be said about what was left out.

Invariants: never more than `capacity` items wait, nor more bytes than its bound and its share of
the gateway's budget, but for a single item of any size, or a large document could never pass.
What is left out is always the oldest, and stands before all that waits of its partition: so one
note per partition, said before anything else, says it all. Nothing is left out in silence.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Generic, Literal, NamedTuple, TypeVar

from headgate.decide.feed.redeliveries import Sized

T = TypeVar("T", bound=Sized)

UNLIMITED = 2**62
ResyncReason = Literal["retention", "gap", "slow", "origin", "lost_history", "reset", "corrupt"]
"""Why records are left out: the log doesn't have them any more, a router never got to read them,
the subscriber was too slow, or they are corrupt; or the origin that the log is fed from has lost
changes, which never came into it. Or the log has lost its history, and gives out its seqs again.
After a reset none are: an operator has a consumer group go back, and records come again."""


class Item(NamedTuple, Generic[T]):
    """A record for one subscriber. A tuple, because one is made for every delivery."""

    partition: int
    seq: int
    value: T

    @property
    def reaches(self) -> int:
        """The seq up to which a subscriber that has this item has everything."""
        return self.seq


@dataclass(frozen=True, slots=True)
class Resync:
    """Matching records of this partition with after_seq < seq < from_seq are left out."""

    partition: int
    after_seq: int
    from_seq: int
    reason: ResyncReason

    @property
    def reaches(self) -> int:
        return self.from_seq - 1


@dataclass(slots=True)
class Budget:
    """What may wait for all subscribers together.

    A queue grows while it is smaller than an eighth of what is left. So the more there are that
    don't read, the less each of them has, and something is always left for those that do.
    """

    limit_bytes: int
    taken_bytes: int = 0

    @property
    def share_bytes(self) -> int:
        return max(0, self.limit_bytes - self.taken_bytes) // 8

    def share_beside(self, size_bytes: int) -> int:
        """What it will be once so much more is taken."""
        return max(0, self.limit_bytes - self.taken_bytes - size_bytes) // 8


class FeedQueue(Generic[T]):
    """`drops_oldest`: what has waited longest may be left out to make room."""

    # There is one per subscriber.
    __slots__ = (
        "_budget",
        "_bytes",
        "_capacity",
        "_capacity_bytes",
        "_drops_oldest",
        "_items",
        "_left_out",
        "_reserved",
        "dropped",
    )

    def __init__(
        self, *, capacity: int, capacity_bytes: int, budget: Budget, drops_oldest: bool
    ) -> None:
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._budget = budget
        self._drops_oldest = drops_oldest
        self._items: deque[Item[T] | Resync] = deque()
        self._bytes = 0
        self._left_out: dict[int, Resync] = {}
        """What was dropped from the front and not yet said."""
        self._reserved = 0
        """Room for the result of a read that is under way; nothing else may take it."""
        self.dropped = 0
        """Records that were left out to make room."""

    def __len__(self) -> int:
        """Items, and what has to be said about those that don't come."""
        return len(self._items) + len(self._left_out)

    # --- in --------------------------------------------------------------------------------------

    def add(self, item: Item[T]) -> None:
        """The caller has asked for room before it adds a record."""
        self._items.append(item)
        size = len(item.value)
        self._bytes += size
        self._budget.taken_bytes += size

    def say(self, resync: Resync) -> None:
        """In its place among the records."""
        self._items.append(resync)

    def say_first(self, resync: Resync) -> None:
        """Before everything that waits; what else is left out up to there needs no word then."""
        told = [self._behind(one, resync) for one in self._items]
        self._items = deque([resync, *[one for one in told if one is not None]])

    def _behind(self, item: Item[T] | Resync, told: Resync) -> Item[T] | Resync | None:
        """What of `item` isn't said by `told` already."""
        last = told.from_seq - 1
        if isinstance(item, Item) or item.partition != told.partition or item.after_seq >= last:
            return item
        return None if item.from_seq <= told.from_seq else replace(item, after_seq=last)

    # --- room ------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        if not self._items and not self._reserved:
            return True
        if self._bytes >= self._budget.share_bytes:
            return False
        taken = len(self._items) + self._reserved
        return taken < self._capacity and self._bytes < self._capacity_bytes

    @property
    def is_roomy(self) -> bool:
        """Is it half empty? Reading earlier would mean many reads of a record or two."""
        return 2 * len(self._items) <= self._capacity and self.has_room()

    def makes_room(self) -> bool:
        """Leave out what has waited longest, if that is allowed and helps."""
        while self._drops_oldest and self._items:
            self._drop(self._pop())
            if self.has_room():
                return True
        return False

    def reserve(self, wanted: int) -> int:
        """Keep room for up to so many items; half of what there is, so that partitions that are
        live can stay so meanwhile. Returns how many."""
        room = self._capacity - len(self._items)
        self._reserved = min(wanted, (room + 1) // 2)
        return self._reserved

    def reserve_nothing(self) -> None:
        self._reserved = 0

    # --- out -------------------------------------------------------------------------------------

    @property
    def first(self) -> Item[T] | Resync | None:
        """What `take` would return."""
        if self._left_out:
            return next(iter(self._left_out.values()))
        return self._items[0] if self._items else None

    def take(self) -> Item[T] | Resync | None:
        if self._left_out:
            return self._left_out.pop(next(iter(self._left_out)))
        return self._pop() if self._items else None

    def clear(self) -> None:
        while self._items:
            self._pop()
        self._left_out.clear()

    def _pop(self) -> Item[T] | Resync:
        item = self._items.popleft()
        if isinstance(item, Item):
            self._bytes -= len(item.value)
            self._budget.taken_bytes -= len(item.value)
        return item

    def _drop(self, item: Item[T] | Resync) -> None:
        told = self._left_out.get(item.partition)
        if isinstance(item, Item):
            self.dropped += 1
            first, last = item.seq, item.seq
        else:
            first, last = item.after_seq + 1, item.from_seq - 1
        after_seq = told.after_seq if told is not None else first - 1
        self._left_out[item.partition] = Resync(item.partition, after_seq, last + 1, "slow")
