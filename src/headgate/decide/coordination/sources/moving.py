"""Partitions change hands: the plan, and each move step by step.

A log partition moves in one step: the store itself fences the former owner when the new one opens
the partition. So does a connector, whose former reader the stores refuse. A source partition is
handed off (see handoffs.py). Every step is kept before it is told, so that a coordinator killed
between two of them goes on where it was; one that fails holds nobody but itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from headgate.decide.coordination.connectors import intakes
from headgate.decide.coordination.effects import Effect, Persist
from headgate.decide.coordination.lanes import windows
from headgate.decide.coordination.members import damping
from headgate.decide.coordination.sources.handoffs import Handoff
from headgate.decide.coordination.sources.ownership import NOBODY, Ownership
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics.topology_changes import changed
from headgate.decide.planning.plan import plan
from headgate.decide.planning.starting_point import Candidate
from headgate.model.connector import intake_ref
from headgate.model.event import PartitionRef
from headgate.model.topology import Move, Owner, Role

GATHER_MS = 250
"""How long a partition that was let go waits for others, so that they change hands together."""


def planned(state: State, role: Role) -> Sequence[Move]:
    """What the plan for the nodes of `role` would move; nothing that is on its way already.

    Nodes that are cut off, and what they own, are left as they are until they are passed over or
    their lease ends, and so are routers that are still starting, and nodes that are on trial. What
    belongs to a node that isn't known has no owner.
    """
    moving = state.handoffs.by_ref if role == "router" else {}
    return _planned(state, role, table_of(state, role), state.refs(), moving)


def planned_intakes(state: State) -> Sequence[Move]:
    """What the plan for the connectors would move, from one ingest node to another."""
    refs = [intake_ref(name) for name in sorted(state.connectors)]
    return _planned(state, "ingest", state.intakes, refs, {}) if refs else ()


def _planned(
    state: State,
    role: Role,
    table: Ownership,
    there: Iterable[PartitionRef],
    moving: Mapping[PartitionRef, Handoff],
) -> Sequence[Move]:
    connected = [m for m in state.of_role(role) if m.session is not None]
    started = [m for m in connected if not m.is_starting and m.trial_until_ms is None]
    members = started or connected or state.of_role(role)
    owners = {ref: owner.node_id for ref, owner in table.owners.items()}
    owners |= {ref: handoff.move.to_id for ref, handoff in moving.items()}
    here = {member.hello.node_id for member in members}
    away = {*state.members, *state.expected} - here
    refs = [ref for ref in there if owners.get(ref, NOBODY) not in away]
    staying = here - state.draining
    candidates = [
        Candidate(
            m.hello.node_id,
            damping.weight(state, m),
            draining=bool(staying) and m.hello.node_id not in staying,
        )
        for m in members
    ]
    moves = plan(
        refs,
        owners,
        candidates,
        strategy=state.balance.strategy,
        imbalance=state.balance.imbalance(role),
        moving=[ref for ref in refs if ref in moving],
    ).moves
    return moves if connected else _homeless(moves)


def table_of(state: State, role: Role) -> Ownership:
    return {"ingest": state.logs, "router": state.sources}[role]


def place_ownerless(
    state: State,
    *,
    grown: Iterable[str] = (),
    shrunk: Iterable[str] = (),
    fenced: Iterable[Owner] = (),
    to_all: bool = False,
) -> list[Effect]:
    """Give away the partitions without an owner, and no others; those in `fenced` have changed
    hands already, and routers in `shrunk` have lost something."""
    taken = list(fenced)
    if not state.learning.is_on:
        for move in _homeless(planned(state, "ingest")):
            state.logs.take(move.ref, move.to_id)
        for move in _homeless(planned_intakes(state)):
            state.intakes.take(move.ref, move.to_id)
        taken += [
            state.sources.take(move.ref, move.to_id) for move in _homeless(planned(state, "router"))
        ]
    grown = {*grown, *(owner.node_id for owner in taken)}
    return changed(state, grown=grown, shrunk=shrunk, fenced=taken, to_all=to_all)


def _homeless(moves: Iterable[Move]) -> list[Move]:
    return [move for move in moves if not move.from_id]


def rebalance(state: State, now_ms: int) -> list[Effect]:
    """Carry out a new plan: log partitions and connectors at once, source partitions as
    handoffs."""
    state.plan_at_ms = now_ms + state.timing.rebalance_ms
    if state.learning.is_on:
        return []
    logs, sources = planned(state, "ingest"), planned(state, "router")
    connectors = planned_intakes(state)
    for move in logs:
        state.logs.take(move.ref, move.to_id)
    for move in connectors:
        state.intakes.take(move.ref, move.to_id)
    taken = [state.sources.take(move.ref, move.to_id) for move in _homeless(sources)]
    leaving = [move for move in sources if move.from_id]
    for move in leaving:
        state.handoffs.begin(move, now_ms)
    effects: list[Effect] = []
    if logs or connectors or taken:
        effects = changed(state, grown={owner.node_id for owner in taken}, fenced=taken)
    elif leaving:
        effects = [Persist(state.to_store())]
    effects += windows.let_go(state, [state.sources.owners[move.ref] for move in leaving])
    return effects + advance(state, now_ms)


def plan_soon(state: State, now_ms: int) -> None:
    """Somebody came or went."""
    state.plan_at_ms = min(state.plan_at_ms, now_ms + state.timing.settle_ms)


# --- handoffs --------------------------------------------------------------------------------


def released(state: State, session: int, owners: Sequence[Owner], now_ms: int) -> list[Effect]:
    """A lane has let go of partitions. It hears when another lane has them."""
    current = [owner for owner in owners if state.sources.owners.get(owner.ref) == owner]
    state.lanes.hand_off(session, current)
    for owner in current:
        handoff = state.handoffs.by_ref.get(owner.ref)
        if handoff is not None and handoff.released_ms is None:
            handoff.released_ms = now_ms
    return windows.not_theirs(session, owners, current) + advance(state, now_ms)


def advance(state: State, now_ms: int) -> list[Effect]:
    """Fence the partitions on the move that were let go, that no lane reads, or that took too
    long."""
    forgotten = _forget_stuck(state, now_ms)
    releasing = state.handoffs.releasing(state.sources)
    ready = [handoff for handoff in releasing if _is_ready(state, handoff, now_ms)]
    waited_ms = max((now_ms - (h.released_ms or h.since_ms) for h in ready), default=0)
    if not ready or (len(ready) < len(releasing) and waited_ms < GATHER_MS):
        return forgotten
    return forgotten + _change_hands(state, ready, now_ms)


def _is_ready(state: State, handoff: Handoff, now_ms: int) -> bool:
    return (
        handoff.released_ms is not None
        or not state.lanes.may_be_read(handoff.move.ref)
        or now_ms - handoff.since_ms >= state.timing.handoff_ms
    )


def _forget_stuck(state: State, now_ms: int) -> list[Effect]:
    """A recipient that knows of a partition and doesn't start it keeps it, but no longer as one
    that is on its way: its window may be ended for it, and a plan may move it on."""
    stuck = [
        ref
        for ref, handoff in state.handoffs.by_ref.items()
        if now_ms - handoff.since_ms >= state.timing.handoff_ms
        and handoff.move.to_id not in state.unassigned
        and state.handoffs.phase(ref, state.sources) == "starting"
    ]
    if not stuck:
        return []
    state.handoffs.end(stuck)
    return [Persist(state.to_store())]


def _change_hands(state: State, ready: Sequence[Handoff], now_ms: int) -> list[Effect]:
    for handoff in ready:
        handoff.since_ms = now_ms
    moves = [handoff.move for handoff in ready]
    fenced = [state.sources.take(move.ref, move.to_id) for move in moves]
    return changed(
        state,
        grown={move.to_id for move in moves},
        shrunk={move.from_id for move in moves},
        fenced=fenced,
    )


def started(state: State, session: int) -> list[Effect]:
    """A lane reads: partitions that were on the move to it have arrived."""
    lane = state.lanes.by_session[session]
    arrived = [
        ref
        for ref in state.lanes.held(session)
        if (handoff := state.handoffs.by_ref.get(ref)) is not None
        and handoff.move.to_id == lane.hello.node_id
    ]
    if not arrived:
        return []
    state.handoffs.end(arrived)
    return [Persist(state.to_store())]


def without_ingest(state: State, node_id: str) -> list[Effect]:
    """Go on without an ingest node: its partitions go to others, as far as there are any."""
    for owner in state.logs.of_node(node_id):
        state.logs.release(owner.ref)
    intakes.release(state, node_id)
    return place_ownerless(state)


def without_router(state: State, router_id: str) -> list[Effect]:
    """Go on without a router: its partitions go to others, from the last checkpoint on."""
    fenced = []
    for ref, handoff in list(state.handoffs.by_ref.items()):
        move = handoff.move
        releasing = state.handoffs.phase(ref, state.sources) == "releasing"
        if move.to_id == router_id:
            state.handoffs.end([ref])
            if releasing:
                # Its donor has let go, or will: it takes the partition back.
                fenced.append(state.sources.take(ref, move.from_id))
        elif move.from_id == router_id and releasing:
            fenced.append(state.sources.take(ref, move.to_id))
    for owner in state.sources.of_node(router_id):
        state.sources.release(owner.ref)
    return place_ownerless(state, shrunk={router_id}, fenced=fenced)


def renewed(state: State, router_id: str, kept: Collection[Owner]) -> list[Owner]:
    """New epochs for a router's partitions but for those `kept`; one that was being handed off has
    left."""
    leaving: Mapping[PartitionRef, Handoff] = state.handoffs.by_ref
    return [
        state.sources.take(
            owner.ref,
            leaving[owner.ref].move.to_id
            if owner.ref in leaving and leaving[owner.ref].move.from_id == router_id
            else router_id,
        )
        for owner in state.sources.of_node(router_id)
        if owner not in kept
    ]
