"""Another topology: kept, fenced, told to everybody it concerns; then routers are assigned anew.

The order of the effects is the safety: durable first, then the checkpoints' fence, then the pushes.
A router hears of what it got only after the fence holds and every live gateway has adopted the new
epochs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from headgate.decide.coordination.effects import Effect, FenceCheckpoints, Persist, Send
from headgate.decide.coordination.lanes import windows
from headgate.decide.coordination.members.members import Member
from headgate.decide.coordination.state import State
from headgate.decide.log.lineage import lineage_of
from headgate.model.control import from_coordinator
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
        for owner in fenced:
            state.unfenced[owner.ref] = owner
            state.unclaimed.pop(owner.ref, None)
        effects.append(fence(state, fenced))
        effects += windows.overtaken(state.lanes.fence(fenced))
    effects += [
        Send(session, state.out.message)
        for role in concerned
        for session in state.sessions_of(role)
    ]
    return effects + assign_routers(state)


def fence(state: State, owners: Collection[Owner]) -> FenceCheckpoints:
    refs = [owner.ref for owner in owners]
    again = {ref: state.again_from[ref] for ref in refs if ref in state.again_from}
    resets = state.resets.wanted(refs)
    topics = {ref.topic for ref in resets}
    groups = tuple([group for group in state.groups.all() if group.topic in topics])
    behind = {
        ref: lineage_of(topic).behind(ref.partition, reset.settled)
        for ref, reset in resets.items()
        if (topic := state.topics.get(ref.topic)) is not None
    }
    epochs = {name: epoch for one in groups for name, epoch in state.groups.epochs(one).items()}
    return FenceCheckpoints(tuple(owners), resets, again, groups, behind, epochs)


def claimed_at_last(state: State, owner: Owner) -> None:
    """The position can be read after all: its router was assigned without the partition, and hears
    of it."""
    member = state.members.get(owner.node_id)
    if member is not None and owner.node_id not in state.unassigned:
        member.assignment += 1
        member.grown_at = member.assignment
        state.unassigned[owner.node_id] = state.generation


def assign_routers(state: State) -> list[Effect]:
    """Assign where the checkpoints are fenced and every live gateway has adopted the epochs.

    One that is missed doesn't count: should it live, then the first delivery of the new lane fences
    the former one there, whose deliveries are as good until then. A checkpoint that can't be
    claimed keeps nobody from the rest. Windows that lack something end.
    """
    effects: list[Effect] = []
    if any(node.role == "gateway" for node in state.expected.values()):
        return effects  # it may be alive and take deliveries, and adopts nothing before it is back
    gateways = [one for one in state.of_role("gateway") if not one.is_missed]
    for router_id, generation in list(state.unassigned.items()):
        member = state.members.get(router_id)
        if member is None or member.session is None:
            continue
        if not all(state.has_adopted(gateway, generation) for gateway in gateways):
            continue
        unfenced = [ref for ref, one in state.unfenced.items() if one.node_id == router_id]
        if any(ref not in state.unclaimed for ref in unfenced):
            continue
        told, ready = member.told, frozenset(_readable(state, router_id))
        if unfenced and ready == told:
            continue  # there is nothing to tell before those can be claimed
        del state.unassigned[router_id]
        effects.append(Send(member.session, assignment(state, member)))
        if unfenced and ready <= told:
            continue
        if any(lane.hello.assignment < member.grown_at for _, lane in windows.of(state, router_id)):
            effects += windows.end_window(state, router_id, "the assignment changed")
    return effects


def assignment(state: State, member: Member) -> from_coordinator.Assign:
    """All that the router may read, for it to be told now."""
    sources = _readable(state, member.hello.node_id)
    member.told = frozenset(sources)
    return from_coordinator.Assign(member.assignment, tuple(sources))


def _readable(state: State, router_id: str) -> list[Owner]:
    return [one for one in state.sources.of_node(router_id) if one.ref not in state.unfenced]
