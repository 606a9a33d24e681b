"""The cluster as an operator sees it: the body of GET /v1/status, made from the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd, lcm
from typing import Literal

import msgspec

from headgate.decide.coordination.cluster import Cluster
from headgate.decide.coordination.members.members import Member
from headgate.decide.coordination.sources import moving
from headgate.decide.coordination.views import accounting
from headgate.decide.coordination.views.connector_status import describe_connectors
from headgate.decide.coordination.views.filter_status import costliest
from headgate.decide.coordination.views.group_status import describe_groups, planned_targets
from headgate.decide.log.lineage import boundaries
from headgate.model import api
from headgate.model.control.reports import GatewayReport, LaneReport, PartitionReport, RouterReport
from headgate.model.event import PartitionRef
from headgate.model.position import Position
from headgate.model.topology import Role, Topic


@dataclass(frozen=True, slots=True)
class Stored:
    """What the stores say, for partitions of which no running lane reports something newer.

    `oldest_ms` are the times of the records after the stored positions; where the log doesn't say,
    something has waited there at least since `since_ms`.
    """

    positions: Mapping[PartitionRef, Position]
    oldest_ms: Mapping[PartitionRef, int]
    since_ms: Mapping[PartitionRef, int] = field(default_factory=dict)


def unreported(cluster: Cluster, stored: Mapping[PartitionRef, Position]) -> list[PartitionRef]:
    """Partitions that are behind and have no lane to say since when."""
    reports = _reports(cluster)
    return [
        ref
        for topic in cluster.topics.values()
        for ref in topic.all_refs()
        if not _tells_age(reports.get(ref))
        and cluster.heads.get(ref, 0) > stored.get(ref, Position()).settled
    ]


def _tells_age(report: PartitionReport | None) -> bool:
    """A lane that reads on has looked what comes next, and has said so if anything waits."""
    return report is not None and (report.state == "flowing" or report.oldest_unsettled_ms > 0)


def describe(
    cluster: Cluster, *, version: str, stored: Stored, now_ms: int, wall_ms: int
) -> api.Status:
    gateways = [m for m in cluster.members.values() if m.hello.role == "gateway"]
    topics = [
        describe_topic(cluster, topic, stored=stored, now_ms=now_ms, wall_ms=wall_ms)
        for _, topic in sorted(cluster.topics.items())
    ]
    return api.Status(
        version=version,
        generation=cluster.generation,
        revision=cluster.registry.revision,
        nodes=[_node(cluster, m, now_ms) for _, m in sorted(cluster.members.items())],
        topics=topics,
        lanes=_lanes(cluster, now_ms),
        gateways=[
            api.GatewayStatus(
                m.hello.node_id,
                r.subscribers,
                r.depth,
                r.sent,
                r.held,
                cluster.registry.costs.of_gateway(m.hello.node_id),
                list(r.slowest[: api.SLOWEST_MAX]),
            )
            for m in gateways
            if isinstance(r := m.report, GatewayReport)
        ],
        windows=[
            api.WindowStatus(m.hello.node_id, r.state, r.window, r.change_ms)
            for m in cluster.members.values()
            if isinstance(r := m.report, RouterReport)
        ],
        subscriptions=len(cluster.registry.subscriptions),
        ws_url=next((m.hello.ws_url for m in gateways if m.session is not None), ""),
        leader=cluster.coordinator_id,
        learning=cluster.learning.is_on,
        leads_ms=max(0, now_ms - cluster.started_ms),
        seen=sorted(cluster.seen_roles),
        clients=len(cluster.clients),
        moves=[
            api.MoveStatus(
                move.ref.topic,
                move.ref.partition,
                move.from_id,
                move.to_id,
                cluster.handoffs.phase(move.ref, cluster.sources),
                max(0, now_ms - cluster.handoffs.by_ref[move.ref].since_ms),
            )
            for move in cluster.handoffs.moves()
        ],
        totals=accounting.sum_of(topic.totals for topic in topics),
        groups=describe_groups(cluster),
        connectors=describe_connectors(cluster, now_ms=now_ms),
        filters=costliest(cluster.registry.costs),
    )


def planned_moves(cluster: Cluster) -> list[api.PlannedMove]:
    """What a plan made now would move."""
    kinds: tuple[tuple[Role, Literal["log", "source"]], ...] = (
        ("ingest", "log"),
        ("router", "source"),
    )
    return [
        api.PlannedMove(kind, move.ref.topic, move.ref.partition, move.from_id, move.to_id)
        for role, kind in kinds
        for move in moving.planned(cluster, role)
    ] + [*_planned_connectors(cluster), *planned_targets(cluster)]


def _planned_connectors(cluster: Cluster) -> list[api.PlannedMove]:
    return [
        api.PlannedMove("connector", move.ref.topic, 0, move.from_id, move.to_id)
        for move in moving.planned_intakes(cluster)
    ]


def describe_topic(
    cluster: Cluster, topic: Topic, *, stored: Stored, now_ms: int, wall_ms: int
) -> api.TopicInfo:
    reports = _reports(cluster)
    details = [
        _partition(cluster, ref, reports.get(ref), stored, now_ms=now_ms, wall_ms=wall_ms)
        for ref in topic.all_refs()
    ]
    return api.TopicInfo(
        topic.name,
        topic.partitions,
        topic.placement,
        topic.version,
        details,
        cluster.adoption_floor(topic.name),
        accounting.totals(details),
        _repartition(cluster, topic, details, now_ms),
        cluster.repartitions.given_up.get(topic.name, ""),
    )


def _repartition(
    cluster: Cluster, topic: Topic, details: list[api.TopicPartition], now_ms: int
) -> api.RepartitionStatus | None:
    if (under_way := topic.repartition) is None:
        return None
    settled = {one.partition: one.settled for one in details}
    ends = {ref.partition: last for ref, last in boundaries(topic).items()}
    progress = cluster.repartitions.progress.get(topic.name)
    return api.RepartitionStatus(
        under_way.to,
        under_way.phase,
        progress.waits_for if progress is not None else "",
        sum(max(0, last - settled[number]) for number, last in ends.items()),
        max(0, now_ms - progress.since_ms) if progress is not None else 0,
    )


def repartition_plan(
    cluster: Cluster, info: api.TopicInfo, to: int, *, now_ms: int
) -> api.RepartitionPlan:
    """What it means to bring a topic to `to` partitions, as it is now."""
    count, step = info.partitions, gcd(info.partitions, to)
    is_ordered = info.placement == "keyed"
    waits = [
        api.Predecessors(number, [n for n in range(number % step, count, step) if n != number])
        for number in (range(to) if is_ordered else ())
    ]
    backlog = sum(one.lag for one in info.details)
    meters = [m for ref, m in cluster.settling.items() if ref.topic == info.name]
    rate = sum(meter.per_s(now_ms) for meter in meters)
    return api.RepartitionPlan(
        info.name,
        count,
        to,
        round(1 - min(count, to) / lcm(count, to), 4) if is_ordered else 0.0,
        [one for one in waits if one.after],
        backlog,
        round(rate, 1),
        (0.0 if not backlog else round(backlog / rate, 1) if rate else None) if is_ordered else 0.0,
    )


def _reports(cluster: Cluster) -> dict[PartitionRef, PartitionReport]:
    """The reports of the lanes that read; one that a lane made before it let go may be above a
    reset."""
    return {
        report.ref: report
        for session, lane in cluster.lanes.by_session.items()
        if lane.report is not None
        for report in lane.report.partitions
        if cluster.lanes.reader(report.ref) == session
    }


def _partition(
    cluster: Cluster,
    ref: PartitionRef,
    report: PartitionReport | None,
    stored: Stored,
    *,
    now_ms: int,
    wall_ms: int,
) -> api.TopicPartition:
    settled, tally = accounting.newest(report, stored.positions.get(ref, Position()))
    head = max(cluster.heads.get(ref, 0), report.head if report else 0, settled)
    is_told = _tells_age(report)
    oldest_ms = report.oldest_unsettled_ms if report and is_told else stored.oldest_ms.get(ref, 0)
    lag_known = is_told or bool(oldest_ms) or head <= settled
    if not lag_known:
        oldest_ms = stored.since_ms.get(ref, 0)
    log = cluster.logs.owners.get(ref)
    source = cluster.sources.owners.get(ref)
    growth = cluster.growth.get(ref)
    partition = api.TopicPartition(
        partition=ref.partition,
        head=head,
        settled=settled,
        lag=head - settled,
        lag_ms=max(0, wall_ms - oldest_ms) if oldest_ms and head > settled else 0,
        owner=(log.node_id or None) if log else None,
        router=(source.node_id or None) if source else None,
        epoch=source.epoch if source else 0,
        log_epoch=log.epoch if log else 0,
        rate=round(growth.per_s(now_ms), 1) if growth else 0.0,
        tally=tally,
        last_event_ms=wall_ms - (now_ms - growth.moved_ms) if growth and growth.moved_ms else 0,
        lag_known=lag_known,
    )
    unclaimed = cluster.unclaimed.get(ref, "")
    state, reason = accounting.partition_state(partition, report, unclaimed=unclaimed)
    return msgspec.structs.replace(partition, state=state, reason=reason)


def _node(cluster: Cluster, member: Member, now_ms: int) -> api.NodeStatus:
    hello = member.hello
    table = {"ingest": cluster.logs, "router": cluster.sources}.get(hello.role)
    return api.NodeStatus(
        hello.node_id,
        hello.role,
        _node_state(cluster, member),
        hello.url,
        hello.ws_url,
        hello.pid,
        max(0, now_ms - member.seen_ms),
        0 if table is None else len(table.of_node(hello.node_id)),
        hello.incarnation,
        len(cluster.lapses.get(hello.node_id, ())),
    )


def _node_state(
    cluster: Cluster, member: Member
) -> Literal["ready", "starting", "draining", "lost"]:
    if member.session is None:
        return "lost"
    if member.hello.node_id in cluster.draining:
        return "draining"
    return "starting" if member.is_starting else "ready"


def _lanes(cluster: Cluster, now_ms: int) -> list[api.LaneStatus]:
    nothing = LaneReport(partitions=(), read=0, matched=0, delivered=0, filter_errors=0)
    lanes = []
    for lane in cluster.lanes.by_session.values():
        hello, report = lane.hello, lane.report or nothing
        lanes.append(
            api.LaneStatus(
                router=hello.node_id,
                lane=hello.lane,
                window=hello.window,
                attempt=hello.attempt,
                pid=hello.pid,
                partitions=[str(ref) for ref in lane.refs],
                read=report.read,
                matched=report.matched,
                delivered=report.delivered,
                filter_errors=report.filter_errors,
                revision=lane.adopted,
                cpu=round(lane.load.per_s(now_ms), 3),
                links=list(report.links),
                letters=report.letters,
                checkpoints=report.checkpoints,
            )
        )
    return sorted(lanes, key=lambda lane: (lane.router, lane.lane))
