"""What lanes had better know of each other: which gateways others have given up on for now, and
that an operator wants letters sent again. Hints only: nothing depends on their being heard."""

from __future__ import annotations

from collections.abc import Collection

from headgate.decide.coordination.effects import Effect, Send
from headgate.decide.coordination.lanes.lanes import Lane
from headgate.decide.coordination.state import State
from headgate.model.control.from_coordinator import LettersRevived, TroubledGateways
from headgate.model.control.reports import LaneReport
from headgate.model.event import PartitionRef


def reported(state: State, lane: Lane, report: LaneReport) -> list[Effect]:
    """Take a lane's report; tell all lanes when the gateways in trouble are others than before."""
    before, lane.report = _troubled(lane), report
    if _troubled(lane) == before:
        return []
    message = TroubledGateways(in_trouble(state))
    return [Send(session, message) for session in state.lanes.by_session]


def in_trouble(state: State) -> tuple[str, ...]:
    found = {name for lane in state.lanes.by_session.values() for name in _troubled(lane)}
    return tuple(sorted(found))


def letters_revived(state: State, refs: Collection[PartitionRef]) -> list[Effect]:
    """The lanes that read `refs` had better look for letters."""
    found = (state.lanes.reader(ref) for ref in refs)
    readers = {session for session in found if session is not None}
    return [Send(session, LettersRevived()) for session in sorted(readers)]


def _troubled(lane: Lane) -> frozenset[str]:
    links = lane.report.links if lane.report is not None else ()
    return frozenset(link.gateway_id for link in links if link.breaker != "closed")
