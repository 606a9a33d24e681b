"""What the notes of lanes say, and which of them somebody may go on from.

A subscriber is told "subscribed" when every lane that may settle a record has said that it matches
with its subscription, and a lane notes a subscription before it says so. A lane that is lost keeps
anybody from being told until somebody newer holds its positions. So for as long as a lane that is
gone still holds a position, its notes have every subscription that anybody was ever told of and
that still lives. Whoever goes on from them claims the position from that lane and from no other
(`ports.checkpoints`), which is what proves it.

Invariant: never less than the notes of each lane that is gone on from; more does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headgate.model.control import PushTopology, SubscriptionChanges, SubscriptionSnapshot
from headgate.model.event import Fence, PartitionRef
from headgate.model.notes import Entry, Holds, Left, Waits
from headgate.model.subscription import Subscription
from headgate.model.topology import Topology

SILENT_S = 30.0
"""A lane that gave no sign of life for so long is frozen."""


@dataclass(slots=True)
class Known:
    """What a lane knew, from its entries in their order."""

    holds: dict[PartitionRef, Fence] = field(default_factory=dict)
    waits: Waits | None = None
    topology: Topology = field(default_factory=lambda: Topology(0))
    revision: int = 0
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    _parts: dict[str, Subscription] = field(default_factory=dict)

    def read(self, entry: Entry) -> None:
        match entry:
            case Holds(fences):
                self.holds, self.waits = dict(fences), None
            case Waits():
                self.waits = entry
            case PushTopology(topology):
                self.topology = topology
            case SubscriptionSnapshot(revision, subscriptions, more):
                self._parts.update((one.id, one) for one in subscriptions)
                if not more:
                    self.revision, self.subscriptions = revision, self._parts
                    self._parts = {}
            case SubscriptionChanges(revision, upserts, removals):
                self.revision = revision
                for name in removals:
                    self.subscriptions.pop(name, None)
                self.subscriptions.update((one.id, one) for one in upserts)


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody who noted that it holds something; `lives` is whether its process still does, and
    `sign_s` how long ago it gave a sign of that."""

    name: str
    pid: int
    lives: bool
    sign_s: float
    holds: Mapping[PartitionRef, Fence]


def last_holders(
    holders: Iterable[Holder], refs: Iterable[PartitionRef]
) -> dict[PartitionRef, Holder]:
    """Who was the last to hold each of `refs`, as far as anybody noted it."""
    last: dict[PartitionRef, Holder] = {}
    for ref in refs:
        held = [holder for holder in holders if ref in holder.holds]
        if held:
            last[ref] = max(held, key=lambda holder: holder.holds[ref])
    return last


def held_by(holders: Iterable[Holder]) -> Left | None:
    """While one of them lives, nothing is left; None: all are gone."""
    living = [holder for holder in holders if holder.lives]
    if not living:
        return None
    silent = [holder.pid for holder in living if holder.sign_s > SILENT_S]
    return Left(is_held=True, silent=silent[0] if silent else 0)


def together(fences: dict[PartitionRef, Fence], known: Iterable[Known]) -> Left:
    """All that several lanes knew; of what they knew differently, the newest. One that knew nothing
    has left nothing, and so have the others then."""
    by_age = sorted(known, key=lambda one: one.revision)
    if not by_age or not by_age[0].revision:
        return Left()
    subscriptions: dict[str, Subscription] = {}
    for one in by_age:
        subscriptions.update(one.subscriptions)
    return Left(
        fences=fences,
        topology=max((one.topology for one in by_age), key=lambda topology: topology.generation),
        revision=by_age[-1].revision,
        subscriptions=tuple(subscriptions.values()),
    )
