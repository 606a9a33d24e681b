"""Subscriptions on their way to the lanes, and the floor on its way back to the gateways."""

from __future__ import annotations

from headgate.decide.coordination import topology_changes
from headgate.decide.coordination.effects import Effect, Persist, Send
from headgate.decide.coordination.state import State
from headgate.model import control
from headgate.model.control import SubscriptionChanges, SubscriptionSnapshot


def registry_lost(state: State, gateway_id: str) -> list[Effect]:
    """The gateway is gone for good: its subscriptions end, and nobody waits for it."""
    was_complete = state.registry.complete
    change = state.registry.gateway_gone(gateway_id)
    kept = Persist(state.to_store())
    if not was_complete:
        return [kept, *completed(state)]
    return [kept, *spread_change(state, change), *topology_changes.assign_routers(state)]


def registration_complete(state: State, gateway_id: str) -> list[Effect]:
    was_complete = state.registry.complete
    change = state.registry.registration_complete(gateway_id)
    return spread_change(state, change) if was_complete else completed(state)


def completed(state: State) -> list[Effect]:
    """Lanes that waited for the registry get it whole, once it is."""
    return [*spread_snapshot(state), *settle_floor(state)]


def spread_change(state: State, change: SubscriptionChanges | None) -> list[Effect]:
    if change is None or not state.registry.complete:
        return settle_floor(state)
    return [*_to_lanes(state, change), *settle_floor(state)]


def spread_snapshot(state: State) -> list[Effect]:
    return _to_lanes(state, state.registry.snapshot()) if state.registry.complete else []


def _to_lanes(state: State, message: SubscriptionChanges | SubscriptionSnapshot) -> list[Effect]:
    return [Send(session, message) for session in state.lanes.by_session]


def settle_floor(state: State) -> list[Effect]:
    adopted = [lane.adopted for lane in state.lanes.by_session.values()]
    if not state.registry.advance_floor(adopted, holds=bool(state.lanes.lost_since_ms)):
        return []
    return floor_to_gateways(state)


def floor_to_gateways(state: State) -> list[Effect]:
    floor = control.AdoptionFloor(state.registry.floor)
    return [Send(m.session, floor) for m in state.of_role("gateway") if m.session is not None]
