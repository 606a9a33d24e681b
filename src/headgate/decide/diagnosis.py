"""What is wrong, and what to do about it: `headgate doctor`'s judgement, from values alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headgate.model.api import Status

Verdict = Literal["ok", "warn", "bad"]

LAG_THRESHOLD_MS = 30_000
"""A partition whose oldest unsettled record is older than this is lagging."""
ROLES = ("coordinator", "ingest", "router", "gateway")


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` says what to do; it is empty when all is well."""

    subject: str
    verdict: Verdict
    what: str
    advice: str = ""


def judge_status(status: Status) -> list[Finding]:
    """Findings about a system that runs: its roles, its partitions and their lag."""
    return [*(_role(status, role) for role in ROLES), *_partitions(status)]


def _role(status: Status, role: str) -> Finding:
    nodes = [node for node in status.nodes if node.role == role]
    if not nodes:
        return Finding(role, "bad", "none is connected", f"start one with `headgate {role}`")
    if lost := [node.id for node in nodes if node.state == "lost"]:
        return Finding(
            role,
            "warn",
            f"{', '.join(lost)} lost its connection to the coordinator",
            "see its log; what it owns moves when its lease ends",
        )
    if starting := [node.id for node in nodes if node.state == "starting"]:
        return Finding(role, "warn", f"{', '.join(starting)} is starting", "wait a little")
    return Finding(role, "ok", ", ".join(node.id for node in nodes))


def _partitions(status: Status) -> list[Finding]:
    findings = []
    read = {ref for lane in status.lanes for ref in lane.partitions}
    for topic in status.topics:
        refs = [f"{topic.name}:{detail.partition}" for detail in topic.details]
        unowned = [r for r, d in zip(refs, topic.details, strict=True) if d.owner is None]
        unread = [r for r in refs if r not in read]
        lagging = [
            r for r, d in zip(refs, topic.details, strict=True) if d.lag_ms > LAG_THRESHOLD_MS
        ]
        subject = f"topic {topic.name}"
        if unowned:
            what = f"{', '.join(unowned)} can't be produced to"
            findings.append(Finding(subject, "bad", what, "start an ingest node"))
        elif unread:
            what = f"no lane reads {', '.join(unread)} at the moment"
            advice = "normal for a second between two windows; if it stays, see the router's log"
            findings.append(Finding(subject, "warn", what, advice))
        elif lagging:
            what = f"{', '.join(lagging)} is more than {LAG_THRESHOLD_MS // 1000} s behind"
            findings.append(Finding(subject, "warn", what, "see `headgate status`"))
        else:
            findings.append(Finding(subject, "ok", f"{topic.partitions} partitions, keeping up"))
    return findings
