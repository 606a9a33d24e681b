"""What lanes and routers write down for whoever must go on without the coordinator."""

from __future__ import annotations

import msgspec

from headgate.model.control import Assign, PushTopology, SubscriptionChanges, SubscriptionSnapshot
from headgate.model.event import Fence, PartitionRef
from headgate.model.subscription import Subscription
from headgate.model.topology import Topology


class Holds(msgspec.Struct, frozen=True, tag=True):
    """The lane has claimed the positions of these, and of no others any more."""

    fences: tuple[tuple[PartitionRef, Fence], ...]


class Waits(msgspec.Struct, frozen=True, tag=True):
    """The lane reads nothing of these, for a reason that an operator should know."""

    refs: tuple[PartitionRef, ...]
    reason: str


Entry = Holds | Waits | PushTopology | SubscriptionSnapshot | SubscriptionChanges
"""What a lane notes: what it is, and what it was told, before it says that it knows it."""


class Left(msgspec.Struct, frozen=True):
    """What lanes that are gone have left of some partitions: under which fence each was held, and
    all that those lanes knew. With `is_held`, somebody who lives holds one of them, and goes on;
    `silent` is the process of one that lives and has given no sign of it for a while (0: none)."""

    fences: dict[PartitionRef, Fence] = {}
    is_held: bool = False
    silent: int = 0
    topology: Topology = Topology(0)
    revision: int = 0
    subscriptions: tuple[Subscription, ...] = ()


class RouterMemory(msgspec.Struct, frozen=True):
    """What a router knew when it planned its last window, whose number is `window`."""

    window: int = 0
    assignment: Assign = Assign(0, ())
    topology: Topology = Topology(0)
