"""A standing wish: which records of a topic a subscriber wants to hear about."""

from __future__ import annotations

import sys
from typing import Literal

import msgspec

Priority = Literal["high", "normal", "low"]


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One live subscription, owned by the gateway that registered it.

    `where` is a CEL expression over the document's fields; None matches every record. It counts
    for the quota of its `tenant`, if it names one. With a `ttl_ms` it ends when its gateway says
    nothing for so long; without (0), only with the gateway's lease. With a `shard` of (count,
    number) it is asked only about records whose key belongs to that target of a consumer group.
    `cost_us` is what its filter costs per document at worst, as its gateway found; 0: nobody has
    looked, or it has none.
    """

    id: str
    gateway_id: str
    topic: str
    where: str | None = None
    priority: Priority = "normal"
    tenant: str = ""
    ttl_ms: int = 0
    shard: tuple[int, int] | None = None
    cost_us: int = 0

    @property
    def charge_us(self) -> int:
        """What a record costs because of it: of all targets of a group only one is asked."""
        return self.cost_us if self.shard is None else -(-self.cost_us // self.shard[0])

    def sharing_names(self) -> Subscription:
        """The same with the names that a million others have too as one object each."""
        return Subscription(
            self.id,
            sys.intern(self.gateway_id),
            sys.intern(self.topic),
            self.where,
            self.priority,
            sys.intern(self.tenant),
            self.ttl_ms,
            self.shard,
            self.cost_us,
        )


class SlowSubscriber(msgspec.Struct, frozen=True):
    """A subscription for whose subscriber deliveries wait in its gateway, or, `catching_up`, for
    whom the log is read because its queue was full, or it has come back."""

    subscription: str
    topic: str
    waiting: int
    catching_up: bool
