"""What all lanes have done so far, whether they still run or not.

A lane reports totals since it started, and a lane that starts again begins at zero; here only what
is new in each report is added, so these sums never fall. Of a lane that ran before this coordinator
led, only what it does from now on counts: what was before was counted by another.

Invariant: the bookkeeping is bounded; what was not heard of for longest is forgotten first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from headgate.decide.operations.latencies import plus, since
from headgate.model.control.reports import GatewayLink, LaneReport, Latencies
from headgate.model.control.to_coordinator import Hello

LANE_COUNTS = (
    "read",
    "matched",
    "delivered",
    "filter_errors",
    "checkpoints_saved",
    "checkpoint_errors",
    "gaps",
)
LANE_LATENCIES = ("routing", "saving")
LINK_COUNTS = (
    "sent",
    "acknowledged",
    "retries",
    "failures",
    "parked",
    "redriven",
    "dead",
    "released",
    "soft",
    "hard",
)
LINK_LATENCIES = ("round_trips",)
LANES_MAX = 4_096
GATEWAYS_MAX = 4_096

LaneKey = tuple[str, str, int, int, int]
K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class Sums:
    """Totals by the names they have in a report."""

    counts: dict[str, int] = field(default_factory=dict)
    latencies: dict[str, Latencies] = field(default_factory=dict)

    def add(self, counts: Mapping[str, int], latencies: Mapping[str, Latencies]) -> None:
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        for name, more in latencies.items():
            self.latencies[name] = plus(self.latencies.get(name, Latencies()), more)


@dataclass(slots=True)
class LaneTotals:
    """`routers` are sums over the lanes of each router, `gateways` over the links to each."""

    routers: dict[str, Sums] = field(default_factory=dict)
    gateways: dict[str, Sums] = field(default_factory=dict)
    _last: dict[LaneKey, LaneReport] = field(default_factory=dict)

    def heard(self, hello: Hello, report: LaneReport) -> None:
        """`hello` is what the lane said when it connected this time."""
        key = (hello.node_id, hello.incarnation, hello.lane, hello.window, hello.attempt)
        before = self._last.pop(key, None)
        _keep(self._last, key, report, LANES_MAX)
        router = _kept(self.routers, hello.node_id)
        if before is None and hello.revision:
            return  # the lane knew subscriptions before it came to this coordinator
        router.add(*_new(report, before, LANE_COUNTS, LANE_LATENCIES))
        earlier = {link.gateway_id: link for link in before.links} if before else {}
        for link in report.links:
            sums = _kept(self.gateways, link.gateway_id)
            sums.add(*_new(link, earlier.get(link.gateway_id), LINK_COUNTS, LINK_LATENCIES))


def _new(
    now: LaneReport | GatewayLink,
    before: LaneReport | GatewayLink | None,
    counts: tuple[str, ...],
    latencies: tuple[str, ...],
) -> tuple[dict[str, int], dict[str, Latencies]]:
    if before is None:
        return {n: getattr(now, n) for n in counts}, {n: getattr(now, n) for n in latencies}
    return (
        {name: max(0, getattr(now, name) - getattr(before, name)) for name in counts},
        {name: since(getattr(now, name), getattr(before, name)) for name in latencies},
    )


def _kept(table: dict[str, Sums], name: str) -> Sums:
    sums = table.pop(name, None) or Sums()
    _keep(table, name, sums, GATEWAYS_MAX)
    return sums


def _keep(table: dict[K, V], key: K, value: V, most: int) -> None:
    """The last one that was put in is the last one to be forgotten."""
    table[key] = value
    if len(table) > most:
        del table[next(iter(table))]
