"""The end of a run: how long to wait for what hasn't arrived, and what to call it then.

Missing is *lost* where Headgate has nothing left to do: every part serves, every record is settled,
nothing is parked, and still nothing has come for a while. Anything else is *on its way*, and is
waited for, longer than any part takes to be started again. Pure; time arrives as an argument.
"""

from __future__ import annotations

from typing import Literal

from headgate.model.api import Status
from headgate.model.connectors_api import ConnectorInfo

QUIET_S = 15.0
"""How long nothing may arrive, with nothing left to do, before what is missing counts as lost."""
PATIENCE_S = 240.0
"""Without any arrival; a part that takes longer to be started again counts as failed before."""
ROLES = ("coordinator", "ingest", "gateway", "router")

Verdict = Literal["wait", "lost", "on its way"]


class Drain:
    """Begins when the last event was sent."""

    def __init__(self, *, now_s: float) -> None:
        self._missing = -1
        self._arrived_s = now_s
        self._busy_s = now_s

    def judge(self, missing: int, busy: str, *, now_s: float) -> Verdict:
        """`busy` is why more may come, empty where nothing is left to do."""
        if missing != self._missing:
            self._missing, self._arrived_s = missing, now_s
        if busy:
            self._busy_s = now_s
        if now_s - max(self._arrived_s, self._busy_s) >= QUIET_S:
            return "lost"
        return "on its way" if now_s - self._arrived_s >= PATIENCE_S else "wait"


def busy_with(status: Status | None, topic: str) -> str:
    """What Headgate has still to do for `topic`, in a few words; empty where that is nothing."""
    if status is None:
        return "nobody answers"
    ready = {node.role for node in status.nodes if node.state == "ready"}
    starting = [f"{role} starting" for role in ROLES if role not in ready]
    if starting:
        return ", ".join(starting)
    waiting = [
        f"connector {one.name} is {one.state}" for one in status.connectors if not _reads(one)
    ]
    if waiting:
        return ", ".join(waiting)
    details = [one for info in status.topics if info.name == topic for one in info.details]
    if behind := sum(one.lag for one in details):
        return f"{behind:,} records aren't settled"
    if parked := sum(one.parked for one in status.letters):
        return f"{parked:,} letters are parked"
    if unowned := sum(group.unowned + group.moving for group in status.groups):
        return f"{unowned:,} targets change hands"
    return "" if details else "nobody answers"


def _reads(connector: ConnectorInfo) -> bool:
    return connector.state == "running"
