"""Which filters cost most: what an operator looks at when lanes are slow, or a budget is spent."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest

from headgate.decide.coordination.registry.quotas import Costs
from headgate.model import api
from headgate.model.subscription import Subscription

SHOWN = 10
NAMED = 5


def costliest(costs: Costs) -> list[api.FilterStatus]:
    """Of those that are costly at all; subscriptions with one filter, such as the targets of a
    consumer group, are shown as one."""
    found: dict[tuple[str, str], list[Subscription]] = {}
    for one in costs.costly.values():
        found.setdefault((one.topic, one.where or ""), []).append(one)
    together = {filter_: sum(one.charge_us for one in some) for filter_, some in found.items()}
    return [
        api.FilterStatus(
            topic,
            where,
            cost_us=found[topic, where][0].cost_us,
            together_us=together[topic, where],
            subscriptions=len(found[topic, where]),
            gateways=_named(one.gateway_id for one in found[topic, where]),
            tenants=_named(one.tenant for one in found[topic, where]),
        )
        for topic, where in nlargest(SHOWN, found, key=lambda filter_: (together[filter_], filter_))
    ]


def _named(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name})[:NAMED]
