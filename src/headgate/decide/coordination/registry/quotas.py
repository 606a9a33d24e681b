"""How many subscriptions there may be, of one gateway, of one tenant and in all, and what the
filters of a gateway and of a tenant may cost together.

Invariant: a quota refuses what is new and nothing else; whatever was taken up stays, also when a
quota is lowered. A subscription that names no tenant counts for none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headgate.model.subscription import Subscription

COSTLY_US = 50
"""From here on a filter is looked at when the costliest are asked for."""


@dataclass(frozen=True, slots=True)
class Quotas:
    per_gateway: int = 10_000
    per_tenant: int = 50_000
    total: int = 1_000_000
    cost_per_gateway_us: int = 1_000_000
    cost_per_tenant_us: int = 1_000_000
    """Of all filters together, for one document, at worst."""

    def refusal(self, wanted: Subscription, *, of_gateway: int, of_tenant: int, in_all: int) -> str:
        """Why there is no room for one more subscription; empty where there is."""
        if of_gateway >= self.per_gateway:
            return _full(f"gateway {wanted.gateway_id}", self.per_gateway, "max_per_gateway")
        if in_all >= self.total:
            return _full("this system", self.total, "max_total")
        return self.tenant_refusal(wanted.tenant, of_tenant)

    def cost_refusal(self, wanted: Subscription, *, of_gateway_us: int, of_tenant_us: int) -> str:
        """Why its filter finds no room among the others; empty when it does."""
        charge_us = wanted.charge_us
        if charge_us and of_gateway_us + charge_us > self.cost_per_gateway_us:
            who, taken_us = f"gateway {wanted.gateway_id}", of_gateway_us
            return _spent(who, charge_us, taken_us, self.cost_per_gateway_us, "gateway")
        if wanted.tenant and charge_us and of_tenant_us + charge_us > self.cost_per_tenant_us:
            who, taken_us = f"tenant {wanted.tenant[:100]}", of_tenant_us
            return _spent(who, charge_us, taken_us, self.cost_per_tenant_us, "tenant")
        return ""

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


@dataclass(slots=True)
class Costs:
    """What the filters of each gateway and of each tenant cost together, and the costly ones."""

    _of_gateway: Counter[str] = field(default_factory=Counter)
    _of_tenant: Counter[str] = field(default_factory=Counter)
    costly: dict[str, Subscription] = field(default_factory=dict)
    """By id, those from COSTLY_US on: few enough to look through, since budgets bound them."""

    def of_gateway(self, gateway_id: str) -> int:
        return self._of_gateway[gateway_id]

    def of_tenant(self, tenant: str) -> int:
        return self._of_tenant[tenant] if tenant else 0

    def add(self, one: Subscription) -> None:
        if one.cost_us >= COSTLY_US:
            self.costly[one.id] = one
        self._change(one, one.charge_us)

    def drop(self, one: Subscription) -> None:
        self.costly.pop(one.id, None)
        self._change(one, -one.charge_us)

    def _change(self, one: Subscription, by_us: int) -> None:
        if not by_us:
            return
        for costs, name in ((self._of_gateway, one.gateway_id), (self._of_tenant, one.tenant)):
            if name:
                costs[name] += by_us
                if not costs[name]:
                    del costs[name]

    def contradictions(self, subscriptions: Iterable[Subscription]) -> Iterator[str]:
        found = Costs()
        for one in subscriptions:
            found.add(one)
        if found != self:
            yield f"filters cost {found}, and {self} is kept"


def _full(who: str, quota: int, setting: str) -> str:
    return (
        f"{who} has {quota} subscriptions, the most it may (subscriptions.{setting}); "
        "try again when others have ended, or raise it"
    )


def _spent(who: str, charge_us: int, taken_us: int, budget_us: int, kind: str) -> str:
    return (
        f"the filter may cost {charge_us} µs per document, and those of {who} cost {taken_us} of "
        f"the {budget_us} they may together (subscriptions.max_cost_per_{kind}); ask for less, end "
        "others, or raise it"
    )
