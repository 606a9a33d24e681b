"""Another topology: kept, fenced, told to everybody it concerns; then routers are assigned anew.

The order of the effects is the safety: durable first, then the checkpoints' fence, then the pushes.
A router hears of what it got only after the fence holds and every live gateway has adopted the new
epochs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from headgate.decide.coordination import windows
from headgate.decide.coordination.effects import Effect, FenceCheckpoints, Persist, Send
from headgate.decide.coordination.members import Member
from headgate.decide.coordination.state import State
from headgate.model import control
from headgate.model.topology import Owner


def changed(
    state: State,
    *,
    grown: Iterable[str] = (),
    shrunk: Iterable[str] = (),
    fenced: Collection[Owner] = (),
    to_all: bool = False,
) -> list[Effect]:
    """`grown` are routers that got something, `shrunk` those that only lost; `fenced` are the
    source partitions with a new epoch."""
    generation = state.generation + 1
    concerned = state.out.publish(state.described(generation), to_all=to_all)
    grown = set(grown)
    for router_id in grown | set(shrunk):
        member = state.members.get(router_id)
        if member is not None and member.hello.role == "router":
            member.assignment += 1
            if router_id in grown:
                member.grown_at = member.assignment
            state.unassigned[router_id] = generation
    effects: list[Effect] = [Persist(state.to_store())]
    if fenced:
        state.unfenced |= {owner.ref: owner for owner in fenced}
        effects.append(fence(state, fenced))
        effects += windows.overtaken(state.lanes.fence(fenced))
    effects += [
        Send(session, state.out.message)
        for role in concerned
        for session in state.sessions_of(role)
    ]
    return effects + assign_routers(state)


def fence(state: State, owners: Collection[Owner]) -> FenceCheckpoints:
    return FenceCheckpoints(tuple(owners), state.resets.wanted(owner.ref for owner in owners))


def assign_routers(state: State) -> list[Effect]:
    """Assign where the checkpoints are fenced and every live gateway has adopted the epochs.

    Windows that lack something end.
    """
    effects: list[Effect] = []
    if any(node.role == "gateway" for node in state.expected.values()):
        return effects  # it may be alive and take deliveries, and adopts nothing before it is back
    gateways = state.of_role("gateway")
    for router_id, generation in list(state.unassigned.items()):
        member = state.members.get(router_id)
        if member is None or member.session is None:
            continue
        if not all(state.has_adopted(gateway, generation) for gateway in gateways):
            continue
        if any(owner.node_id == router_id for owner in state.unfenced.values()):
            continue
        del state.unassigned[router_id]
        effects.append(Send(member.session, assignment(state, member)))
        if any(lane.hello.assignment < member.grown_at for _, lane in windows.of(state, router_id)):
            effects += windows.end_window(state, router_id, "the assignment changed")
    return effects


def assignment(state: State, member: Member) -> control.Assign:
    sources = tuple(state.sources.of_node(member.hello.node_id))
    return control.Assign(member.assignment, sources)
