"""How many subscriptions there may be: of one gateway, of one tenant, and in all.

Invariant: a quota refuses what is new and nothing else; whatever was taken up stays, also when a
quota is lowered. A subscription that names no tenant counts for none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headgate.model.subscription import Subscription


@dataclass(frozen=True, slots=True)
class Quotas:
    per_gateway: int = 10_000
    per_tenant: int = 50_000
    total: int = 1_000_000

    def refusal(self, wanted: Subscription, *, of_gateway: int, of_tenant: int, in_all: int) -> str:
        """Why one more finds no room among those that there are; empty when it does."""
        if of_gateway >= self.per_gateway:
            return _full(f"gateway {wanted.gateway_id}", self.per_gateway, "max_per_gateway")
        if in_all >= self.total:
            return _full("this system", self.total, "max_total")
        return self.tenant_refusal(wanted.tenant, of_tenant)

    def tenant_refusal(self, tenant: str, of_tenant: int) -> str:
        if tenant and of_tenant >= self.per_tenant:
            return _full(f"tenant {tenant[:100]}", self.per_tenant, "max_per_tenant")
        return ""


@dataclass(slots=True)
class Tenants:
    """How many subscriptions each tenant has."""

    _counts: Counter[str] = field(default_factory=Counter)

    def __getitem__(self, tenant: str) -> int:
        return self._counts[tenant] if tenant else 0

    def add(self, tenant: str) -> None:
        if tenant:
            self._counts[tenant] += 1

    def drop(self, tenant: str) -> None:
        if tenant:
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant]

    def contradictions(self, subscriptions: Iterable[Subscription]) -> Iterator[str]:
        found = Counter(one.tenant for one in subscriptions if one.tenant)
        if found != self._counts:
            yield f"tenants have {found}, and {self._counts} is kept"


def _full(who: str, quota: int, setting: str) -> str:
    return (
        f"{who} has {quota} subscriptions, the most it may (subscriptions.{setting}); "
        "try again when others have ended, or raise it"
    )
