"""The live subscriptions, and how far the lanes have adopted them.

Every change makes a new revision. A subscriber may be told "subscribed" when the adoption floor has
reached its revision: then every lane that may read a record matches with it.

Invariants: revisions and the floor only grow; the floor stays put while a lane may be reading that
nobody hears from (`holds`), and while the registry is incomplete after a restart (`awaited`,
`lost`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.model.control import SubscriptionChanges, SubscriptionSnapshot
from headgate.model.subscription import Subscription

REVISIONS_PER_BOOT = 1 << 32
"""Revisions of one boot of the coordinator stay below those of the next."""


@dataclass(slots=True)
class Registry:
    boot: int
    awaited: set[str]
    """Gateways that held subscriptions before the restart and have not registered again."""
    lost: bool = False
    """Nobody has said yet which gateways there were."""
    revision: int = field(init=False)
    floor: int = field(init=False, default=0)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    _stale: dict[str, set[str]] = field(default_factory=dict)
    """Per gateway that came back: the ids it has not named again yet."""

    def __post_init__(self) -> None:
        self.revision = self.boot * REVISIONS_PER_BOOT + 1

    @property
    def complete(self) -> bool:
        return not self.awaited and not self.lost

    def raise_above(self, revision: int) -> bool:
        """Start above a revision that a node reports (this coordinator has lost its state)."""
        if revision <= self.revision:
            return False
        self.revision = revision + 1
        return True

    def snapshot(self) -> SubscriptionSnapshot:
        return SubscriptionSnapshot(self.revision, tuple(self.subscriptions.values()))

    def gateway_returns(self, gateway_id: str) -> None:
        """What the gateway had is doubtful until it has named it again."""
        self._stale[gateway_id] = {
            s.id for s in self.subscriptions.values() if s.gateway_id == gateway_id
        }

    def upsert(
        self, gateway_id: str, subscriptions: Iterable[Subscription]
    ) -> tuple[SubscriptionChanges | None, dict[str, str]]:
        """The change that makes them live (None: nothing new), and why some were refused."""
        upserts: list[Subscription] = []
        refused: dict[str, str] = {}
        stale = self._stale.get(gateway_id, set())
        for subscription in subscriptions:
            known = self.subscriptions.get(subscription.id)
            if subscription.gateway_id != gateway_id or (
                known is not None and known.gateway_id != gateway_id
            ):
                refused[subscription.id] = "the subscription belongs to another gateway"
                continue
            stale.discard(subscription.id)
            if known != subscription:
                upserts.append(subscription)
        return self._change(upserts, ()), refused

    def remove(self, gateway_id: str, ids: Iterable[str]) -> SubscriptionChanges | None:
        owned = [
            i
            for i in ids
            if (known := self.subscriptions.get(i)) is not None and known.gateway_id == gateway_id
        ]
        return self._change((), owned)

    def registration_complete(self, gateway_id: str) -> SubscriptionChanges | None:
        """The gateway has named all it has: the rest of what it had is over."""
        self.awaited.discard(gateway_id)
        return self._change((), self._stale.pop(gateway_id, ()))

    def gateway_gone(self, gateway_id: str) -> SubscriptionChanges | None:
        self.awaited.discard(gateway_id)
        self._stale.pop(gateway_id, None)
        gone = [s.id for s in self.subscriptions.values() if s.gateway_id == gateway_id]
        return self._change((), gone)

    def topic_gone(self, topic: str) -> SubscriptionChanges | None:
        return self._change((), [s.id for s in self.subscriptions.values() if s.topic == topic])

    def advance_floor(self, adopted: Iterable[int], *, holds: bool) -> bool:
        """Move the floor up to what every reading lane has adopted; True when it moved."""
        if holds or not self.complete:
            return False
        floor = min(adopted, default=self.revision)
        if floor <= self.floor:
            return False
        self.floor = floor
        return True

    def _change(
        self, upserts: Iterable[Subscription], removals: Iterable[str]
    ) -> SubscriptionChanges | None:
        upserts, removals = tuple(upserts), tuple(removals)
        if not upserts and not removals:
            return None
        for subscription in upserts:
            self.subscriptions[subscription.id] = subscription
        for subscription_id in removals:
            del self.subscriptions[subscription_id]
        self.revision += 1
        return SubscriptionChanges(self.revision, upserts, removals)
