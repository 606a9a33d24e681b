"""What pages that show the whole system draw: the body of GET /v1/overview, made from the status.

Invariants: pure; what needs attention comes first, the worst of it at the top; no list is longer
than its bound, and what it leaves out is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import TypeVar

from msgspec.structs import replace

from headgate.decide.operations.diagnosis import Finding, judge_status
from headgate.decide.operations.health import judged, of_cluster
from headgate.decide.operations.latencies import plus
from headgate.model.api import (
    GatewayStatus,
    HealthStatus,
    LaneStatus,
    NodeStatus,
    Status,
    TopicInfo,
    TopicPartition,
)
from headgate.model.control.reports import LATENCY_BUCKETS_S, Latencies
from headgate.model.overview_api import (
    DoctorSentence,
    LaneFlow,
    LinkFlow,
    Overview,
    PathFlow,
    SlowAtGateway,
    TopicFlow,
)

T = TypeVar("T")

LISTED_MAX: Mapping[str, int] = {
    "attention": 50,
    "nodes": 200,
    "topics": 200,
    "paths": 500,
    "lanes": 200,
    "gateways": 200,
    "slowest": 20,
    "moves": 200,
    "groups": 100,
    "connectors": 100,
    "letters": 200,
}
"""What is made for everybody every second stays small, however large the system is."""
WORST_FIRST = ("bad", "warn", "advice")


def overview_of(status: Status, routing: Iterable[Latencies]) -> Overview:
    """`routing` are the latencies of each router's lanes."""
    left_out: dict[str, int] = {}

    def some(name: str, every: Sequence[T]) -> list[T]:
        most = LISTED_MAX[name]
        if len(every) > most:
            left_out[name] = len(every) - most
        return list(every[:most])

    return Overview(
        version=status.version,
        leader=status.leader,
        learning=status.learning,
        health=_health(status),
        attention=some("attention", attention(judge_status(status))),
        totals=status.totals,
        routing=reduce(plus, routing, Latencies()),
        routing_bounds_s=LATENCY_BUCKETS_S,
        subscriptions=status.subscriptions,
        clients=status.clients,
        nodes=some("nodes", [_node(one) for one in status.nodes]),
        topics=some("topics", [topic_flow(one) for one in status.topics]),
        paths=some("paths", paths(status)),
        lanes=some("lanes", [_lane(one) for one in status.lanes]),
        gateways=some("gateways", [replace(one, slowest=[]) for one in status.gateways]),
        slowest=some("slowest", slowest(status.gateways)),
        windows=status.windows,
        moves=some("moves", status.moves),
        groups=some("groups", status.groups),
        connectors=some("connectors", status.connectors),
        filters=status.filters,
        letters=some("letters", status.letters),
        letters_error=status.letters_error,
        checkpoints_error=status.checkpoints_error,
        left_out=left_out,
    )


def attention(findings: Iterable[Finding]) -> list[DoctorSentence]:
    """What isn't well, the worst first; otherwise in the doctor's own order."""
    said = [
        DoctorSentence(one.subject, one.verdict, one.what, one.advice)
        for one in findings
        if one.verdict != "ok"
    ]
    return sorted(said, key=lambda one: WORST_FIRST.index(one.verdict))


def topic_flow(topic: TopicInfo) -> TopicFlow:
    details = topic.details
    return TopicFlow(
        topic.name,
        topic.partitions,
        topic.placement,
        topic.version,
        rate=round(sum(one.rate for one in details), 1),
        lag=sum(one.lag for one in details),
        lag_ms=max((one.lag_ms for one in details), default=0),
        lag_known=all(one.lag_known for one in details),
        states=dict(Counter(one.state for one in details)),
        totals=topic.totals,
        repartition=topic.repartition,
        given_up=topic.given_up,
    )


def paths(status: Status) -> list[PathFlow]:
    """Which ways records go from ingest nodes to lanes; the busiest first."""
    read_by = {ref: lane for lane in status.lanes for ref in lane.partitions}
    found: dict[tuple[str, str, str, int], list[TopicPartition]] = {}
    for topic in status.topics:
        for one in topic.details:
            lane = read_by.get(f"{topic.name}:{one.partition}")
            router = one.router or "" if lane is None else lane.router
            number = -1 if lane is None else lane.lane
            found.setdefault((one.owner or "", topic.name, router, number), []).append(one)
    flows = [
        PathFlow(
            *way,
            partitions=len(those),
            rate=round(sum(one.rate for one in those), 1),
            lag=sum(one.lag for one in those),
        )
        for way, those in found.items()
    ]
    return sorted(flows, key=lambda flow: -flow.rate)


def slowest(gateways: Iterable[GatewayStatus]) -> list[SlowAtGateway]:
    """Of all gateways' slow subscribers those first who read the log, as those have been left
    behind by more than a queue holds; then those for whom most waits."""
    every = [
        SlowAtGateway(gateway.id, one.subscription, one.topic, one.waiting, one.catching_up)
        for gateway in gateways
        for one in gateway.slowest
    ]
    return sorted(every, key=lambda one: (not one.catching_up, -one.waiting))


def _health(status: Status) -> HealthStatus:
    partitions, reasons = of_cluster(status)
    return judged(
        role="coordinator", version="", uptime_s=0, partitions=partitions, reasons=reasons
    ).status


def _node(node: NodeStatus) -> NodeStatus:
    """When a node that is there was heard of last is always just now, and never twice the same."""
    is_away = node.state == "lost"
    return node if is_away else replace(node, last_seen_ms_ago=0)


def _lane(lane: LaneStatus) -> LaneFlow:
    links = [
        LinkFlow(
            link.gateway_id,
            link.waiting,
            link.pressure,
            link.breaker,
            link.acknowledged,
            link.error,
        )
        for link in lane.links[: LISTED_MAX["gateways"]]
    ]
    return LaneFlow(
        lane.router,
        lane.lane,
        lane.window,
        lane.attempt,
        partitions=len(lane.partitions),
        read=lane.read,
        matched=lane.matched,
        delivered=lane.delivered,
        filter_errors=lane.filter_errors,
        cpu=lane.cpu,
        trouble=lane.letters or lane.checkpoints,
        links=links,
    )
