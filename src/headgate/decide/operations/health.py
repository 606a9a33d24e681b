"""How well a node is: the body of GET /health, from values alone.

    healthy     nothing is wrong
    degraded    something is, and `reasons` says what
    unhealthy   more than half of the partitions aren't healthy, or the node is stopping

Invariant: whatever isn't well has a sentence among the reasons; there are never so many of them
that a probe's answer gets large.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from headgate.decide.operations.diagnosis import judge_status, unknown_ages
from headgate.model.api import (
    Health,
    HealthStatus,
    PartitionHealth,
    PartitionVitals,
    Status,
)
from headgate.model.event import PartitionRef

LATE_MS = 30_000
"""A partition whose oldest unsettled record is older than this is lagging."""
HEARD_MAX_S = 5.0
REASONS_MAX = 20
STOPPING = "it is stopping"
DISCONNECTED = "the coordinator can't be reached; what was known before still holds"


def judged(
    *,
    role: str,
    version: str,
    uptime_s: float,
    partitions: Sequence[PartitionVitals] = (),
    reasons: Iterable[str] = (),
    stopping: bool = False,
) -> Health:
    ill = [one for one in partitions if one.status != "healthy"]
    said = [*([STOPPING] if stopping else []), *reasons, *(_sentence(one) for one in ill)]
    status: HealthStatus = "degraded" if said else "healthy"
    if stopping or 2 * len(ill) > len(partitions):
        status = "unhealthy"
    return Health(
        status=status,
        role=role,
        version=version,
        uptime_s=round(uptime_s, 3),
        partitions=list(partitions),
        reasons=_shortened(list(dict.fromkeys(said))),
    )


def http_status(health: Health) -> int:
    """A probe that only looks at the status takes an unhealthy node out."""
    return 503 if health.status == "unhealthy" else 200


def log_status(*, is_open: bool, lag_ms: int) -> tuple[PartitionHealth, str]:
    """A log partition as its ingest node sees it: can it be appended to, and is it followed?"""
    if not is_open:
        return "failed", "this node should take records for it and can't open it; see its log"
    if lag_ms > LATE_MS:
        return "lagging", f"its oldest record waits for more than {LATE_MS // 1_000} s"
    return "healthy", ""


def of_cluster(status: Status) -> tuple[list[PartitionVitals], list[str]]:
    """All partitions as the coordinator sees them, and what else isn't well in the cluster."""
    partitions = [
        PartitionVitals(
            id=one.partition,
            topic=topic.name,
            status=one.state,
            lag=one.lag,
            lag_ms=one.lag_ms,
            event_rate=one.rate,
            last_event=instant(one.last_event_ms),
            reason=one.reason,
            lag_known=one.lag_known,
        )
        for topic in status.topics
        for one in topic.details
    ]
    # What the doctor says of topics is said of each of their partitions already; what he waits for
    # at the start is missing all the same.
    begun = msgspec.structs.replace(status, leads_ms=None)
    reasons = [
        f"{finding.subject}: {finding.what}"
        for finding in judge_status(begun)
        if finding.verdict == "bad" and not finding.subject.startswith("topic ")
    ]
    unknown = [f"{one.topic}:{one.id}" for one in partitions if one.lag and not one.lag_known]
    return partitions, [*reasons, *([unknown_ages(unknown)] if unknown else [])]


@dataclass(frozen=True, slots=True)
class RouterView:
    """The router's state as its driver sees it; `trouble` says what is wrong with its query,
    `waiting` what its lanes wait for."""

    state: str
    connected: bool
    sources: frozenset[PartitionRef] = frozenset()
    window: int = 0
    lanes: int = 0
    trouble: str = ""
    waiting: tuple[str, ...] = ()


def of_router(
    view: RouterView,
    known: Iterable[PartitionVitals],
    *,
    heard_ago_s: float | None,
    version: str,
    uptime_s: float,
    deaths: Sequence[str] = (),
) -> Health:
    """`known` are all partitions, as the coordinator told `heard_ago_s` ago (None: never);
    `deaths` says which of the driver's own tasks died lately."""
    reasons = [*deaths, *([] if view.connected else [DISCONNECTED])]
    if view.state == "starting":
        reasons.append("Spark is starting")
    if view.trouble:
        reasons.append(view.trouble)
    reasons += view.waiting
    if view.sources and heard_ago_s is None:
        reasons.append("the coordinator hasn't told yet how its partitions fare")
    elif view.sources and heard_ago_s is not None and heard_ago_s > HEARD_MAX_S:
        reasons.append(f"how its partitions fare is what was known {heard_ago_s:.0f} s ago")
    return judged(
        role="router",
        version=version,
        uptime_s=uptime_s,
        partitions=[one for one in known if PartitionRef(one.topic, one.id) in view.sources],
        reasons=reasons,
        stopping=view.state == "stopping",
    )


def instant(time_ms: int) -> datetime | None:
    return datetime.fromtimestamp(time_ms / 1_000, UTC) if time_ms else None


def _sentence(one: PartitionVitals) -> str:
    return f"{one.topic}:{one.id} is {one.status}" + (f": {one.reason}" if one.reason else "")


def _shortened(reasons: list[str]) -> list[str]:
    more = len(reasons) - REASONS_MAX
    return reasons if more <= 0 else [*reasons[:REASONS_MAX], f"and {more} more"]
