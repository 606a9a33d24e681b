"""Who belongs to the cluster, and how patient the coordinator is with each of them."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.decide.planning.plan import Strategy, check_imbalance
from headgate.model.control.reports import GatewayReport, RouterReport
from headgate.model.control.to_coordinator import Hello
from headgate.model.event import PartitionRef
from headgate.model.topology import Node, Owner, Role


@dataclass(frozen=True, slots=True)
class Timing:
    """`lease_ms` is how long a silent member keeps what it has, `grace_ms` one whose connection is
    gone, where others can take it (grace.py).

    Plans are made every `rebalance_ms`, and `settle_ms` after a node came or went, so that a
    whole rack that starts is planned for once. A donor has `handoff_ms` to let go of a partition.
    A repartition is given up when its partitions aren't served within `announce_ms` or, once
    appends wait for it, not sealed within `seal_ms`; lanes have `read_ms` to begin with those that
    come; one that is drained waits for everybody to
    route by it for `adoption_ms`.
    """

    lease_ms: int = 30_000
    grace_ms: int = 2_000
    check_in_ms: int = 5_000
    lane_report_timeout_ms: int = 5_000
    rebalance_ms: int = 10_000
    settle_ms: int = 1_000
    handoff_ms: int = 20_000
    learn_for_ms: int = 60_000
    announce_ms: int = 30_000
    read_ms: int = 15_000
    seal_ms: int = 5_000
    adoption_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Balance:
    """How partitions are spread: by which strategy, and how many more than its peers a node may
    keep, beyond the one of uneven counts. A new consumer group gets a target partition for every
    `keys_per_target` keys that it expects. `places_subscribers`: they are spread over the gateways
    by the hash of their ids."""

    strategy: Strategy = "balanced"
    ingest: int = 0
    router: int = 0
    consumer: int = 0
    keys_per_target: int = 100
    places_subscribers: bool = False

    def __post_init__(self) -> None:
        for imbalance in (self.ingest, self.router, self.consumer):
            check_imbalance(imbalance)

    def imbalance(self, role: Role) -> int:
        return {"ingest": self.ingest, "router": self.router}[role]


@dataclass(slots=True)
class Member:
    """An ingest node, router or gateway; `session` is None while its stream is broken."""

    hello: Hello
    session: int | None
    seen_ms: int
    gone_ms: int | None = None
    """Since when its stream is broken; None while it isn't, or where the node said that it would be
    back."""
    is_missed: bool = False
    """The stream has been broken for longer than the grace: nothing waits for the node's word."""
    trial_until_ms: int | None = None
    """Until then the node keeps what it has and is given nothing, because it comes and goes
    (damping.py)."""
    generation: int = 0
    assignment: int = 0
    grown_at: int = 0
    """The last assignment that gave the router something; windows planned before it must end."""
    told: frozenset[Owner] = frozenset()
    """The partitions that the router was last told to own."""
    report: GatewayReport | RouterReport | None = None
    undropped: frozenset[str] = frozenset()
    """Deleted topics of which this ingest node couldn't drop everything yet."""
    unopened: frozenset[PartitionRef] = frozenset()
    """The partitions that the node owns and couldn't open yet."""

    @property
    def is_starting(self) -> bool:
        """True for a router whose Spark isn't warm yet: partitions that it gets would wait for
        that."""
        return isinstance(self.report, RouterReport) and self.report.state == "starting"

    def node(self) -> Node:
        role: Role = self.hello.role  # type: ignore[assignment]  # lanes and clients are no members
        hello = self.hello
        return Node(
            hello.node_id,
            role,
            hello.url,
            hello.ws_url,
            hello.pid,
            hello.public_url,
            hello.incarnation,
        )
