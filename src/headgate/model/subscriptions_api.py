"""The answer of GET /v1/subscriptions."""

from __future__ import annotations

import msgspec

from headgate.model.subscription import Priority

SUBSCRIPTIONS_DEFAULT = 100
SUBSCRIPTIONS_MAX = 1_000


class SubscriptionInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """`gateway` is its holder; one with a `target` is that of a consumer group. `cost_us` is what
    its filter costs per document, at worst."""

    id: str
    gateway: str
    topic: str
    where: str | None = None
    priority: Priority = "normal"
    tenant: str = ""
    cost_us: int = 0
    target: int | None = None
    ttl_ms: int = 0


class SubscriptionList(msgspec.Struct, frozen=True):
    """`subscriptions` are those from `offset` on of the `matching` ones, of `total` that there are
    at `revision`; with the next revision others may be at the same place."""

    subscriptions: list[SubscriptionInfo]
    offset: int
    matching: int
    total: int
    revision: int
