"""What lanes and routers write down, so that their successors can go on without the coordinator."""

from __future__ import annotations

import msgspec

from headgate.model.control.from_coordinator import (
    Assign,
    PushTopology,
    SubscriptionChanges,
    SubscriptionSnapshot,
)
from headgate.model.event import Fence, PartitionRef
from headgate.model.subscription import Subscription
from headgate.model.topology import Topology


class Claims(msgspec.Struct, frozen=True, tag=True):
    """The lane is about to claim the positions of these; whether it has, the store knows."""

    fences: tuple[tuple[PartitionRef, Fence], ...]


class Holds(msgspec.Struct, frozen=True, tag=True):
    """The lane has claimed the positions of these, and of no others any more."""

    fences: tuple[tuple[PartitionRef, Fence], ...]


class Waits(msgspec.Struct, frozen=True, tag=True):
    """The lane should read these and doesn't, each for a reason that an operator should know."""

    reasons: tuple[tuple[PartitionRef, str], ...]


Entry = Claims | Holds | Waits | PushTopology | SubscriptionSnapshot | SubscriptionChanges
"""What a lane notes: its own claims, and every message of the coordinator before it acknowledges
it."""


class Left(msgspec.Struct, frozen=True):
    """What the notes of some partitions say. `fences`: the partitions of lanes that are gone, each
    with fences of which one is the last that it was held under; `topology` and what follows is all
    that those lanes knew. `held`: the partitions that living lanes hold, and go on with, each with
    the process of a lane that has given no sign of life for a while (0: it has)."""

    fences: dict[PartitionRef, frozenset[Fence]] = {}
    held: dict[PartitionRef, int] = {}
    topology: Topology = Topology(0)
    revision: int = 0
    subscriptions: tuple[Subscription, ...] = ()


class RouterMemory(msgspec.Struct, frozen=True):
    """What a router knew when it planned its last window, whose number is `window`."""

    window: int = 0
    assignment: Assign = Assign(0, ())
    topology: Topology = Topology(0)
