"""What became of a record as a whole: where it is on its way, and as what it is settled.

Like verdicts.py for one subscription. Invariant: `unmatched` is said only where no node that could
have had it is missing and all of them remember that time; else it isn't known any more.
"""

from __future__ import annotations

from headgate.decide.explaining.facts import Facts, clock
from headgate.decide.explaining.verdicts import (
    dead_before_told,
    evidence_told,
    letter_told,
    skip_told,
    unread_why,
)
from headgate.model.explain_api import RecordOutcome, RecordStatus


def outcome_of(
    facts: Facts, *, is_marker: bool, wanted: int
) -> tuple[RecordStatus, RecordOutcome, str]:
    """Of a record that is in the log; `wanted`: how many of the present subscriptions want it."""
    where = f"{facts.ref}:{facts.seq}"
    if not facts.is_settled:
        lane = facts.lane
        if lane is None or lane.read_seq < facts.seq:
            return "unread", "", f"{where} isn't read yet: {unread_why(facts)}"
        return "on_the_way", "", f"{where} is read, and not every gateway has answered for it yet"
    if is_marker:
        why = "every subscriber of the topic is told to resync"
        return "settled", "told", f"{where} says that the origin has lost changes: {why}"
    outcome, why = _settled(facts, wanted)
    return "settled", outcome, f"{where} is settled: {why}"


def _settled(facts: Facts, wanted: int) -> tuple[RecordOutcome, str]:
    letters = facts.letters
    for state in ("dead", "parked"):
        if found := [one for one in letters if one.state == state]:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            return ("dead" if state == "dead" else "parked"), letter_told(found[-1]) + more
    came_to = {one.outcome: one for one in facts.attempts}
    if taken := came_to.get("accepted") or came_to.get("duplicate"):
        return "acknowledged", f"{taken.gateway} took it at {clock(taken.at_ms)}"
    if told := came_to.get("told"):
        return "told", (
            f"it was passed over, and its subscribers were told to resync, at {clock(told.at_ms)}"
        )
    if facts.skip is not None and not came_to:
        return "skipped", skip_told(facts.skip)
    if gone := came_to.get("no_subscriber") or came_to.get("released"):
        return "released", (
            f"its subscribers at {gone.gateway} had left when it came, at {clock(gone.at_ms)}"
        )
    if dead := came_to.get("dead"):
        return "dead", dead_before_told(dead)
    if came_to:
        last = facts.attempts[-1]
        return "unknown", f"the last that is known is {last.outcome} at {clock(last.at_ms)}"
    if facts.remembers_all:
        later = " (those who want it now came later, or read it from the log)" if wanted else ""
        return "unmatched", f"no subscription of that moment wanted it{later}"
    return "unknown", f"as what isn't known any more; {evidence_told(facts)}"
