"""Which nodes' partitions go to others before the lease ends, because the connection is gone.

A process that dies takes its connections along, so a stream that breaks says more than silence
does. Its partitions go to others after a short grace, where a node is there to take them:
log partitions and connectors, because the store refuses their former owner, and source partitions,
because their positions are fenced. Nothing else does. What a consumer works on is refused by
nobody, and what subscribers of a gateway were promised ends with its lease only. A node that said
that it would be back keeps everything for its lease, and so does one that nobody can replace.

A router is connected for as long as one of its lanes is: that one goes on with what it reads.

Invariant: nobody is passed over within the grace, nor where nobody else could take over.
"""

from __future__ import annotations

from headgate.decide.coordination.effects import Effect
from headgate.decide.coordination.members import damping
from headgate.decide.coordination.members.members import Member
from headgate.decide.coordination.sources import moving
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics.topology_changes import assign_routers


def tick(state: State, now_ms: int) -> list[Effect]:
    """Miss the nodes whose grace has ended, and pass them over where others can take over; end
    trials, and forget lapses, when it is time. Not while the coordinator only learns."""
    damping.forget(state, now_ms)
    effects: list[Effect] = []
    for node_id, member in list(state.members.items()):
        if member.trial_until_ms is not None and now_ms >= member.trial_until_ms:
            member.trial_until_ms = None
            moving.plan_soon(state, now_ms)
        if _is_gone(state, member, now_ms):
            if not member.is_missed and member.hello.role == "gateway":
                member.is_missed = True
                effects += assign_routers(state)
            member.is_missed = True
            if _owns(state, member) and _has_heir(state, member):
                effects += _passed_over(state, node_id, now_ms)
    return effects


def _is_gone(state: State, member: Member, now_ms: int) -> bool:
    """Whether its connection has been gone for the grace, and those of all lanes of its own are."""
    if member.gone_ms is None or now_ms - member.gone_ms < state.timing.grace_ms:
        return False
    return not state.lanes.of_router(member.hello.node_id)


def _owns(state: State, member: Member) -> bool:
    """Something that can go to others."""
    node_id = member.hello.node_id
    if member.hello.role == "ingest":
        return bool(state.logs.of_node(node_id) or state.intakes.of_node(node_id))
    moves = (handoff.move for handoff in state.handoffs.by_ref.values())
    return member.hello.role == "router" and bool(
        state.sources.of_node(node_id) or any(move.to_id == node_id for move in moves)
    )


def _has_heir(state: State, member: Member) -> bool:
    return any(
        other.session is not None
        and not other.is_starting
        and other.hello.node_id not in state.draining
        for other in state.of_role(member.node().role)
    )


def _passed_over(state: State, node_id: str, now_ms: int) -> list[Effect]:
    damping.note(state, node_id, now_ms)
    moving.plan_soon(state, now_ms)
    if state.members[node_id].hello.role == "router":
        return moving.without_router(state, node_id)
    return moving.without_ingest(state, node_id)
