"""Who belongs to the cluster, and how patient the coordinator is with each of them."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.model import control
from headgate.model.control import Hello
from headgate.model.topology import Node, Role


@dataclass(frozen=True, slots=True)
class Timing:
    """`lease_ms` is how long a silent member keeps what it has."""

    lease_ms: int = 30_000
    check_in_ms: int = 5_000
    lane_report_timeout_ms: int = 5_000


@dataclass(slots=True)
class Member:
    """An ingest node, router or gateway; `session` is None while its stream is broken."""

    hello: Hello
    session: int | None
    seen_ms: int
    generation: int = 0
    assignment: int = 0
    report: control.GatewayReport | control.RouterReport | None = None

    def node(self) -> Node:
        role: Role = self.hello.role  # type: ignore[assignment]  # lanes and clients are no members
        return Node(self.hello.node_id, role, self.hello.url, self.hello.ws_url, self.hello.pid)
