"""Subscriptions on their way to the lanes, and the floor on its way back to the gateways."""

from __future__ import annotations

from headgate.decide.coordination.effects import Effect, EndSession, Persist, Send
from headgate.decide.coordination.members.members import Member
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics import topology_changes
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.control.from_coordinator import SubscriptionChanges
from headgate.model.control.to_coordinator import Hello


def registry_lost(state: State, gateway_id: str) -> list[Effect]:
    """The gateway is gone for good: its subscriptions end, and nobody waits for it."""
    was_complete = state.registry.complete
    change = state.registry.gateway_gone(gateway_id)
    kept = Persist(state.to_store())
    if not was_complete:
        return [kept, *completed(state)]
    return [kept, *spread_change(state, change), *topology_changes.assign_routers(state)]


def register(
    state: State, gateway_id: str, session: int, request: to_coordinator.Register, now_ms: int
) -> list[Effect]:
    new = frozenset(request.new)
    done = state.registry.upsert(gateway_id, request.subscriptions, now_ms, new=new)
    answer = from_coordinator.Registered(
        request.request_id, state.registry.revision, done.refused, done.over_quota
    )
    return [Send(session, answer), *spread_change(state, done.change), *place_anew(state)]


def unregister(
    state: State, gateway_id: str, session: int, request: to_coordinator.Unregister
) -> list[Effect]:
    change = state.registry.remove(gateway_id, request.ids)
    answer = from_coordinator.Registered(request.request_id, state.registry.revision)
    return [Send(session, answer), *spread_change(state, change), *place_anew(state)]


def place_anew(state: State) -> list[Effect]:
    """Another gateway has reached its bound, or has room again: newcomers go elsewhere."""
    if state.learning.is_on or state.ring() == state.topology().ring:
        return []
    return topology_changes.changed(state)


def expire(state: State, now_ms: int) -> list[Effect]:
    """End the subscriptions that weren't renewed in time.

    Their gateway may be there all the same, and its subscribers believe that they miss nothing: so
    its stream ends, and when it is back it hears that it was not resumed, and looks into the log.
    The next coordinator must say so, too: it is stored before a lane matches without them.
    """
    change, gateways = state.registry.expire(now_ms)
    if not gateways:
        return []
    members = (state.members.get(gateway_id) for gateway_id in gateways)
    cut = [effect for member in members if member is not None for effect in _cut_off(state, member)]
    return [Persist(state.to_store()), *cut, *spread_change(state, change)]


def _cut_off(state: State, member: Member) -> list[Effect]:
    session, member.session = member.session, None
    if session is None:
        return []
    state.sessions.pop(session, None)
    return [EndSession(session)]


def registration_complete(state: State, hello: Hello) -> list[Effect]:
    registry = state.registry
    was_complete, kept_before = registry.complete, dict(registry.kept)
    change = registry.registration_complete(hello.node_id, hello.incarnation)
    effects = spread_change(state, change) if was_complete else completed(state)
    return effects if registry.kept == kept_before else [Persist(state.to_store()), *effects]


def completed(state: State) -> list[Effect]:
    """Lanes that waited for the registry get it whole, once it is."""
    return [*spread_snapshot(state), *settle_floor(state)]


def spread_change(state: State, change: SubscriptionChanges | None) -> list[Effect]:
    if change is None or not state.registry.complete:
        return settle_floor(state)
    changed = [Send(session, change) for session in state.lanes.by_session]
    return [*changed, *settle_floor(state)]


def spread_snapshot(state: State) -> list[Effect]:
    """The parts go to a lane one right after the other, with nothing in between."""
    if not state.registry.complete:
        return []
    parts = state.registry.snapshot()
    return [Send(session, part) for session in state.lanes.by_session for part in parts]


def settle_floor(state: State) -> list[Effect]:
    adopted = [lane.adopted for lane in state.lanes.by_session.values()]
    # A lane that was overtaken by an epoch that the store doesn't know yet may be reading as well;
    # what it settles is read again where that has been kept.
    holds = state.lanes.in_doubt or not state.unfenced.keys() <= state.again_from.keys()
    if not state.registry.advance_floor(adopted, holds=holds):
        return []
    return floor_to_gateways(state)


def floor_to_gateways(state: State) -> list[Effect]:
    floor = from_coordinator.AdoptionFloor(state.registry.floor)
    return [Send(m.session, floor) for m in state.of_role("gateway") if m.session is not None]
