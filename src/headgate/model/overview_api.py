"""The answer of GET /v1/overview: what pages that show the whole system draw, small enough to be
made every second.

It has no partition by itself: they are counted, and GET /v1/topics/{name} has them. Every list has
a bound, and says how much it leaves out.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.api import (
    FilterStatus,
    GatewayStatus,
    GroupStatus,
    HealthStatus,
    MoveStatus,
    NodeStatus,
    RepartitionStatus,
    Totals,
    WindowStatus,
)
from headgate.model.connectors_api import ConnectorInfo
from headgate.model.control.reports import BreakerState, Latencies, PressureLevel
from headgate.model.letters import GatewayLetters
from headgate.model.topology import Placement


class DoctorSentence(msgspec.Struct, frozen=True):
    """What `headgate doctor` says of a subject that isn't as it should be, and what to do."""

    subject: str
    verdict: Literal["advice", "warn", "bad"]
    what: str
    advice: str


class TopicFlow(msgspec.Struct, frozen=True):
    """A topic and its partitions as sums; `states` counts them by how they fare. `lag_ms` is that
    of the worst, and without `lag_known` at least that."""

    name: str
    partitions: int
    placement: Placement
    version: int
    rate: float
    lag: int
    lag_ms: int
    lag_known: bool
    states: dict[str, int]
    totals: Totals
    repartition: RepartitionStatus | None
    given_up: str


class PathFlow(msgspec.Struct, frozen=True):
    """The partitions of a topic that one ingest node takes records for and one lane reads; a name
    is empty, and `lane` -1, where nobody does."""

    ingest: str
    topic: str
    router: str
    lane: int
    partitions: int
    rate: float
    lag: int


class LinkFlow(msgspec.Struct, frozen=True):
    """A lane's way to a gateway; `acknowledged` counts since the lane started."""

    gateway: str
    waiting: int
    pressure: PressureLevel
    breaker: BreakerState
    acknowledged: int
    error: str


class LaneFlow(msgspec.Struct, frozen=True):
    """A lane; `partitions` is how many it reads, `trouble` what keeps it from reading or saving."""

    router: str
    lane: int
    window: int
    attempt: int
    partitions: int
    read: int
    matched: int
    delivered: int
    filter_errors: int
    cpu: float
    trouble: str
    links: list[LinkFlow]


class SlowAtGateway(msgspec.Struct, frozen=True):
    """A subscriber who doesn't keep up (model.subscription.SlowSubscriber), and its gateway."""

    gateway: str
    subscription: str
    topic: str
    waiting: int
    catching_up: bool


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """`routing` are the latencies from a record to its acknowledgement, all that the coordinator
    has heard of, in buckets with these bounds; `left_out` counts what a list would have had
    besides, by its name."""

    version: str
    leader: str
    learning: bool
    health: HealthStatus
    attention: list[DoctorSentence]
    totals: Totals
    routing: Latencies
    routing_bounds_s: tuple[float, ...]
    subscriptions: int
    clients: int
    nodes: list[NodeStatus]
    topics: list[TopicFlow]
    paths: list[PathFlow]
    lanes: list[LaneFlow]
    gateways: list[GatewayStatus]
    slowest: list[SlowAtGateway]
    windows: list[WindowStatus]
    moves: list[MoveStatus]
    groups: list[GroupStatus]
    connectors: list[ConnectorInfo]
    filters: list[FilterStatus]
    letters: list[GatewayLetters]
    letters_error: str
    checkpoints_error: str
    left_out: dict[str, int]
