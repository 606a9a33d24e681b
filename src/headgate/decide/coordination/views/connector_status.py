"""A connector as an operator sees it, made from what is decided and what its reader said."""

from __future__ import annotations

from headgate.decide.coordination.connectors import intakes
from headgate.decide.coordination.connectors.heard import Heard
from headgate.decide.coordination.state import State
from headgate.decide.durations import written
from headgate.model.connector import (
    Connector,
    ConnectorReport,
    ConnectorState,
    Snapshot,
    SnapshotReport,
    intake_ref,
)
from headgate.model.connectors_api import (
    ConnectorInfo,
    FedTopic,
    RouteInfo,
    SkippedInfo,
    SnapshotInfo,
    SnapshotState,
)

HISTORY_MIN_MS = 3_600_000
"""An origin that keeps less than this loses changes while somebody sleeps."""
HISTORY_PER_LAG = 4
"""An origin that keeps less than so many times the lag will lose some before they are read."""
FINAL: frozenset[ConnectorState] = frozenset({"history-lost", "stopped"})
"""The states that end only when an operator acts."""


def describe_connectors(state: State, *, now_ms: int) -> list[ConnectorInfo]:
    return [describe_connector(state, name, now_ms=now_ms) for name in sorted(state.connectors)]


def describe_connector(state: State, name: str, *, now_ms: int) -> ConnectorInfo:
    connector, owner = state.connectors[name], state.intakes.owners.get(intake_ref(name))
    heard = intakes.last_heard(state, name)
    report = ConnectorReport(name=name, epoch=0, state="starting") if not heard else heard.report
    now, reason = _state(state, connector, heard)
    is_told = heard is not None and now == report.state
    return ConnectorInfo(
        name=name,
        type=connector.type,
        state=now,
        reason=reason,
        warning="" if now == "history-lost" else history_warning(report),
        since_ms=max(0, now_ms - heard.since_ms) if heard is not None and is_told else None,
        node=(owner.node_id or None) if owner is not None else None,
        epoch=owner.epoch if owner is not None else 0,
        paused=connector.paused,
        topics=[_fed(state, connector, topic) for topic in connector.topics],
        routes=[RouteInfo(route.topic, route.pattern) for route in connector.routes],
        settings=dict(connector.settings),
        begin_at=connector.begin_at,
        begun=connector.begun,
        position=report.position,
        taken=report.taken,
        left_out=report.left_out,
        lag_ms=report.lag_ms,
        lag_records=report.lag_records,
        history_ms=report.history_ms,
        held_bytes=report.held_bytes,
        stopped_at=report.stopped_at,
        stopped_what=report.stopped_what,
        snapshots=[_snapshot(one, report.snapshot) for one in connector.snapshots],
        skipped=[SkippedInfo(one.position, one.what, one.time_ms) for one in connector.skipped],
    )


def _snapshot(wanted: Snapshot, said: SnapshotReport | None) -> SnapshotInfo:
    collections = list(wanted.collections)
    if said is None or said.id != wanted.id:
        return SnapshotInfo(id=wanted.id, collections=collections, compares=wanted.compares)
    state: SnapshotState = "comparing" if said.compares else "reading"
    return SnapshotInfo(
        id=wanted.id,
        collections=collections,
        compares=wanted.compares,
        state="failing" if said.error else state,
        reason=said.error,
        collection=said.collection,
        through=said.through,
        of=said.collections,
        rows=said.rows,
        expected=said.expected,
    )


def _fed(state: State, connector: Connector, topic: str) -> FedTopic:
    patterns = [route.pattern for route in connector.routes if route.topic == topic]
    return FedTopic(topic, patterns, topic in state.topics)


def _state(state: State, connector: Connector, heard: Heard | None) -> tuple[ConnectorState, str]:
    """In which state it is, and why, in a sentence."""
    report = None if heard is None else heard.report
    name = connector.name
    if report is not None and report.state in FINAL:
        return report.state, _final_reason(report)
    if connector.paused:
        return "paused", f"go on with `headgate connector resume {name}`"
    if missing := [topic for topic in connector.topics if topic not in state.topics]:
        return "waiting", (
            f"topic {missing[0]} is gone; create it, or delete the connector, and make one "
            "without it"
        )
    owner = state.intakes.owners.get(intake_ref(name))
    member = None if owner is None else state.members.get(owner.node_id)
    if owner is None or not owner.node_id:
        return "waiting", "no ingest node is there to read it; start one"
    if member is None or member.session is None:
        return "waiting", (
            f"{owner.node_id} reads it and is not connected; another one takes over when its "
            "lease ends"
        )
    if report is None:
        return "starting", ""
    # A reader that has yet to hear that it may go on.
    is_late = report.state == "paused"
    return ("starting", "") if is_late else (report.state, report.error)


def _final_reason(report: ConnectorReport) -> str:
    name, why = report.name, _without_command(report.error)
    said = f" ({why})" if why else ""
    if report.state == "history-lost":
        return (
            f"the origin no longer has the changes behind {report.stopped_at or 'the last one'}"
            f"{said}; say where to go on with `headgate connector reset {name} --to now`"
        )
    if not report.stopped_at:
        return f"{report.error or 'its origin refuses it'}; mend that, and it goes on by itself"
    return (
        f"it can't take {report.stopped_what or 'a change'} at {report.stopped_at}{said}; leave "
        f"that one out with `headgate connector skip {name}`"
    )


def _without_command(error: str) -> str:
    """The error without the command that it ends with: the connector's state names that, too."""
    what, _, advice = error.rpartition("; ")
    return what if "`headgate connector " in advice else error


def history_warning(report: ConnectorReport) -> str:
    """That changes may be lost before they are read, or that they fill the origin's disk; empty
    where nothing speaks for it."""
    if report.warning:
        return report.warning
    history_ms = report.history_ms
    if history_ms is None:
        return ""
    # A position grows old also where nothing has changed since: history is cut off all the same.
    behind_ms = max(report.lag_ms or 0, report.age_ms or 0)
    if report.age_ms is not None and history_ms < report.age_ms:
        return (
            f"the origin keeps {written(history_ms)} of history, and this connector is "
            f"{written(behind_ms)} behind, so changes are lost already; say where to go on with "
            f"`headgate connector reset {report.name} --to …`"
        )
    if history_ms < HISTORY_PER_LAG * behind_ms:
        what = (
            f"the origin keeps {written(history_ms)} of history, and this connector is "
            f"{written(behind_ms)} behind; let the origin keep more"
        )
        if report.state == "paused":
            what += f", or go on with `headgate connector resume {report.name}`,"
        return f"{what} before changes are lost"
    if history_ms < HISTORY_MIN_MS:
        return (
            f"the origin keeps only {written(history_ms)} of history; let it keep more, or a pause "
            "of that length loses changes"
        )
    return ""
