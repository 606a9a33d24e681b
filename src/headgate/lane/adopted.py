"""The subscriptions a lane matches with, and since when.

Invariant: the index is swapped whole, between two reads; an older revision changes nothing. For a
subscription that came while the lane was reading it is known how far the lane had read by then: a
gateway that gets a record of it must look into the log for earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.decide.matching import MatchIndex
from headgate.model.control import SubscriptionChanges, SubscriptionSnapshot
from headgate.model.event import PartitionRef

Read = Mapping[PartitionRef, int]
"""How far each partition was read; empty while the lane hasn't begun to read."""


class Adopted:
    def __init__(self) -> None:
        self.index = MatchIndex.empty()
        self.revision = 0
        self._late: dict[str, Read] = {}

    def replace(self, snapshot: SubscriptionSnapshot, read: Read) -> None:
        if snapshot.revision > self.revision:
            ids = [subscription.id for subscription in snapshot.subscriptions]
            self._swap(snapshot.revision, MatchIndex.of(snapshot.subscriptions), ids, read)

    def patch(self, changes: SubscriptionChanges, read: Read) -> None:
        if changes.revision > self.revision:
            ids = [subscription.id for subscription in changes.upserts]
            index = self.index.patched(changes.upserts, changes.removals)
            self._swap(changes.revision, index, ids, read)

    def since(self, ref: PartitionRef, subscriptions: tuple[str, ...]) -> tuple[int, ...]:
        """How far `ref` was read without each of `subscriptions`; empty when all were there."""
        late = self._late
        if not late or not any(s in late for s in subscriptions):
            return ()
        return tuple(late[s][ref] if s in late else 0 for s in subscriptions)

    def _swap(self, revision: int, index: MatchIndex, ids: Iterable[str], read: Read) -> None:
        if read:
            self._late.update((i, read) for i in ids if i not in self.index)
        self._late = {i: then for i, then in self._late.items() if i in index}
        self.index = index
        self.revision = revision
