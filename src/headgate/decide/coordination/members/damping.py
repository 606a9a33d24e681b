"""A node that comes and goes is given less, more slowly.

Everything that it is given moves twice. A node that was passed over (grace.py) more than once in
`LAPSES_MS` is on trial after it is back, for the grace doubled with every further time and at most
for a lease: it keeps what it has and is given nothing. And its share of every plan is divided by
how often that was. One time counts for nothing: everybody dies once.

Invariant: a time is forgotten after `LAPSES_MS`, so a node that stays has its whole share again.
"""

from __future__ import annotations

from headgate.decide.coordination.members.members import Member
from headgate.decide.coordination.state import State
from headgate.decide.planning.starting_point import WEIGHT_MIN

LAPSES_MS = 600_000
"""For so long it counts that a node was passed over."""
LAPSES_MAX = 16
"""So often it is counted at most."""


def note(state: State, node_id: str, now_ms: int) -> None:
    """The node was passed over."""
    state.lapses[node_id] = (*state.lapses.get(node_id, ()), now_ms)[-LAPSES_MAX:]


def forget(state: State, now_ms: int) -> None:
    if any(now_ms - lapses[0] >= LAPSES_MS for lapses in state.lapses.values()):
        recent = {
            node_id: tuple(at_ms for at_ms in lapses if now_ms - at_ms < LAPSES_MS)
            for node_id, lapses in state.lapses.items()
        }
        state.lapses = {node_id: lapses for node_id, lapses in recent.items() if lapses}


def trial_until_ms(state: State, node_id: str, now_ms: int) -> int | None:
    """Until when a node that is back is given nothing; None for one that may have something."""
    lapses = len(state.lapses.get(node_id, ()))
    if lapses < 2:
        return None
    return now_ms + min(state.timing.grace_ms << (lapses - 1), state.timing.lease_ms)


def weight(state: State, member: Member) -> float:
    """What a plan counts it with."""
    lapses = len(state.lapses.get(member.hello.node_id, ()))
    return max(WEIGHT_MIN, member.hello.weight / max(1, lapses))
