"""How connectors look in a terminal. Only shapes what it's given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich.text import Text

from headgate.cli.views.tables import Grid, number
from headgate.decide.durations import written
from headgate.model.connectors_api import ConnectorInfo, OriginFinding, SnapshotInfo

STATE_STYLES = {
    "running": "green",
    "paused": "dim",
    "starting": "yellow",
    "waiting": "yellow",
    "retrying": "yellow",
    "stopped": "red",
    "history-lost": "red",
}
VERDICT_STYLES = {"ok": "green", "warning": "yellow", "failed": "red"}
UNKNOWN = "-"
ILL = ("retrying", "waiting", "stopped", "history-lost")


def connectors_table(connectors: Sequence[ConnectorInfo]) -> Grid:
    rows = [
        (
            one.name,
            state(one),
            one.node or "nobody",
            ", ".join(fed.topic for fed in one.topics),
            number(one.lag_records) if one.lag_records is not None else UNKNOWN,
            _time(one.lag_ms),
            _time(one.history_ms),
            number(one.taken),
            one.type,
        )
        for one in connectors
    ]
    columns = ("lag>", "behind>", "history>", "?taken>", "?type")
    return Grid(("connector", "state", "node", "topics", *columns), rows)


def state(one: ConnectorInfo) -> Text:
    return Text(one.state, style=STATE_STYLES[one.state])


def _time(ms: int | None) -> str:
    return UNKNOWN if ms is None else written(ms)


def findings_table(findings: Sequence[OriginFinding]) -> Grid:
    rows = [
        (one.what, Text(one.verdict, style=VERDICT_STYLES[one.verdict]), one.sentence)
        for one in findings
    ]
    return Grid(("what", "verdict", "what to do"), rows)


def trouble(one: ConnectorInfo) -> str:
    """Why a connector isn't well, in a line; empty when it is."""
    if one.state in ILL:
        return f"connector {one.name} is {one.state}" + (f": {one.reason}" if one.reason else "")
    for snapshot in one.snapshots:
        if snapshot.state == "failing":
            return f"connector {one.name}: its snapshot doesn't go on: {snapshot.reason}"
    return f"connector {one.name}: {one.warning}" if one.warning else ""


def description(one: ConnectorInfo) -> Iterator[Text]:
    """All that is known of a connector, a line each."""
    since = "" if one.since_ms is None else f" for {written(one.since_ms)}"
    where = f" on {one.node}" if one.node else ""
    yield Text.assemble(f"{one.name}: {one.type}, ", state(one), f"{since}{where}")
    if one.reason:
        yield Text(f"  {one.reason}", style=STATE_STYLES[one.state])
    for name in sorted(one.settings):
        yield Text(f"{name}: {one.settings[name]}")
    begun = "" if one.begun else ", nothing stored yet"
    yield Text(f"begins at: {one.begin_at}{begun}")
    yield Text(f"position: {one.position or UNKNOWN}")
    records = UNKNOWN if one.lag_records is None else f"{one.lag_records:,} records"
    yield Text(f"lag: {records}, {_time(one.lag_ms)} behind")
    yield Text(f"history left at the origin: {_time(one.history_ms)}")
    if one.held_bytes is not None:
        yield Text(f"kept there for this connector: {one.held_bytes / 1024**2:,.1f} MiB")
    if one.warning:
        yield Text(f"  {one.warning}", style="yellow")
    yield Text(f"taken: {one.taken:,}, left out: {one.left_out:,} (since its reader began)")
    if one.stopped_at:
        yield Text(f"stopped at: {one.stopped_at} ({one.stopped_what or 'unknown'})", style="red")
    for fed in one.topics:
        gone = "" if fed.exists else " (there is no such topic)"
        yield Text(f"{', '.join(fed.patterns)} -> {fed.topic}{gone}")
    for snapshot in one.snapshots:
        yield Text(snapshot_line(snapshot), style="red" if snapshot.state == "failing" else "")
    for skipped in one.skipped:
        at = datetime.fromtimestamp(skipped.time_ms / 1_000, UTC)
        yield Text(f"skipped {skipped.what} at {skipped.position} ({at:%Y-%m-%d %H:%M:%SZ})")


def snapshot_line(one: SnapshotInfo) -> str:
    """Which snapshot it is, and how far."""
    what = ", ".join(one.collections) or "everything"
    begun = f"snapshot of {what}"
    match one.state:
        case "waiting":
            return f"{begun}: waiting"
        case "failing":
            return f"{begun}: {one.reason}"
        case "comparing":
            return f"{begun}: {one.rows:,} rows, looking for what is gone"
        case _:
            of = "" if one.expected is None else f" of about {one.expected:,}"
            at = f", in {one.collection}" if one.collection else ""
            return f"{begun}: {one.rows:,}{of} rows{at} ({one.through} of {one.of} done)"
