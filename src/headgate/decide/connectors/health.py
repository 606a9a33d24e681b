"""How well a connector is, for the doctor and for /health."""

from __future__ import annotations

from typing import Literal

from headgate.decide.durations import written
from headgate.model.connectors_api import ConnectorInfo

RETRYING_THRESHOLD_MS = 60_000
"""A database that changes its primary, or is restarted, is back by then."""


def advice_of(one: ConnectorInfo) -> tuple[Literal["ok", "warn", "bad"], str, str]:
    """A verdict, what is the matter, and what to do about it (empty when all is well)."""
    why, _, advice = one.reason.rpartition("; ")
    why = why or one.reason
    match one.state:
        case "history-lost" | "stopped":
            return "bad", f"{one.state}: {why}", advice
        case "retrying":
            since_ms = one.since_ms or 0
            what = f"retrying for {written(since_ms)}" + (f": {one.reason}" if one.reason else "")
            advice = "see that its database can be reached; it goes on by itself, nothing is lost"
            return "bad" if since_ms > RETRYING_THRESHOLD_MS else "warn", what, advice
        case "waiting":
            return "warn", f"waiting: {why}", advice
        case "paused" if not one.warning:
            return "ok", "paused", ""
        case _ if why_not := next((s.reason for s in one.snapshots if s.state == "failing"), ""):
            what, _, advice = why_not.partition(": ")
            return "warn", f"{one.state}, but its snapshot doesn't go on: {what}", advice
        case _ if one.warning:
            what, _, advice = one.warning.rpartition("; ")
            return "warn", f"{one.state}: {what}", advice
        case _:
            return "ok", one.state, ""
