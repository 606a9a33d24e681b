"""What the notes of lanes say, and which of them a successor may go on from.

A subscriber is told "subscribed" when every lane that may settle a record has said that it matches
with its subscription, and a lane notes a subscription before it says so. A lane that is lost keeps
every subscriber from being told until a newer lane holds its positions. So for as long as a lane
that is gone still holds a position, its notes have every subscription that was ever told
"subscribed" and that still lives. A successor that goes on from them claims the position from that
lane and from no other (`ports.checkpoints`): the claim proves that it was the holder. A lane notes
a claim before it makes it, so of the lanes that were about to claim, any may hold the position.

Invariant: never less than the notes of each lane that may be gone on from; more does no harm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from headgate.model.control.from_coordinator import (
    PushTopology,
    SubscriptionChanges,
    SubscriptionSnapshot,
)
from headgate.model.event import Fence, PartitionRef
from headgate.model.notes import Claims, Entry, Holds, Left, Waits
from headgate.model.subscription import Subscription
from headgate.model.topology import Topology

SILENT_S = 30.0
"""A lane that gave no sign of life for so long is frozen."""


@dataclass(slots=True)
class Known:
    """What a lane knew, from its entries in their order."""

    holds: dict[PartitionRef, Fence] = field(default_factory=dict)
    claims: dict[PartitionRef, Fence] = field(default_factory=dict)
    """What it may hold as well."""
    waits: dict[PartitionRef, str] = field(default_factory=dict)
    topology: Topology = field(default_factory=lambda: Topology(0))
    revision: int = 0
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    _parts: dict[str, Subscription] = field(default_factory=dict)

    def read(self, entry: Entry) -> None:
        match entry:
            case Claims(fences):
                self.claims = dict(fences)
            case Holds(fences):
                self.holds, self.claims = dict(fences), {}
            case Waits(reasons):
                self.waits = dict(reasons)
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
class NotedOwner:
    """A lane that noted that it holds something, or was about to; `lives` is whether its process
    lives, and `sign_s` how long ago it gave a sign of that."""

    name: str
    pid: int
    lives: bool
    sign_s: float
    holds: Mapping[PartitionRef, Fence]
    claims: Mapping[PartitionRef, Fence]

    def fence(self, ref: PartitionRef) -> Fence | None:
        return self.claims.get(ref, self.holds.get(ref))


def last_holders(holders: Collection[NotedOwner], ref: PartitionRef) -> list[NotedOwner]:
    """The lanes of which one is the last to hold `ref`, as far as any noted it: the one that surely
    held it last, and those that were about to take it over."""
    surely = max((h.holds[ref] for h in holders if ref in h.holds), default=Fence(0))
    return [h for h in holders if (fence := h.fence(ref)) is not None and fence >= surely]


def is_of_use(holder: NotedOwner, others: Collection[NotedOwner]) -> bool:
    """Whether a successor could go on from its notes: it may be the last to hold something."""
    among = (holder, *others)
    return any(holder in last_holders(among, ref) for ref in {*holder.holds, *holder.claims})


def silent_pid(holders: Iterable[NotedOwner]) -> int:
    """The process of one that lives and has given no sign of it for a while; 0: there is none."""
    return next((h.pid for h in holders if h.lives and h.sign_s > SILENT_S), 0)


def together(
    fences: dict[PartitionRef, frozenset[Fence]],
    known: Iterable[Known],
    held: dict[PartitionRef, int],
) -> Left:
    """All that several lanes knew, in the newest version of each. Where one of them knew nothing,
    nothing counts as left."""
    by_age = sorted(known, key=lambda one: one.revision)
    if not by_age or not by_age[0].revision:
        return Left(held=held)
    subscriptions: dict[str, Subscription] = {}
    for one in by_age:
        subscriptions.update(one.subscriptions)
    return Left(
        fences=fences,
        held=held,
        topology=max((one.topology for one in by_age), key=lambda topology: topology.generation),
        revision=by_age[-1].revision,
        subscriptions=tuple(subscriptions.values()),
    )


def by_reason(reasons: Mapping[PartitionRef, str]) -> dict[str, list[str]]:
    """What is waited for, and by which partitions."""
    found: dict[str, list[str]] = {}
    for ref in sorted(reasons):
        found.setdefault(reasons[ref], []).append(str(ref))
    return found


def nobody_reads(reasons: Mapping[PartitionRef, str]) -> list[str]:
    """A sentence for each reason."""
    return [f"nobody reads {', '.join(refs)}: {why}" for why, refs in by_reason(reasons).items()]
