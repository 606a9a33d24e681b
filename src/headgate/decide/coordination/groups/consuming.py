"""Consumers come and go.

As with members, the loss of a connection alone changes nothing: the lease decides. Gateways speak
for the consumers that are connected to them, and name all of them again after a broken stream.

Invariant: a consumer that is lost loses its targets when its lease has ended, and gets new epochs
for them when it is back before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.decide.coordination.effects import Effect, Send
from headgate.decide.coordination.groups import sharing
from headgate.decide.coordination.groups.groups import Consumer, Key
from headgate.decide.coordination.groups.joining import joined_group, refusal
from headgate.decide.coordination.sources import moving
from headgate.decide.coordination.sources.handoffs import Handoff
from headgate.decide.coordination.state import State
from headgate.decide.coordination.topics.topology_changes import changed
from headgate.errors import HeadgateError, NotNow, UnknownTopic
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.groups import group_id
from headgate.model.topology import Owner

# --- consumers -------------------------------------------------------------------------------


def join(
    state: State, session: int, gateway_id: str, message: to_coordinator.JoinGroup, now_ms: int
) -> list[Effect]:
    groups = state.groups
    key = group_id(message.topic, message.group), message.consumer
    if (error := refusal(state, key, gateway_id, message)) is not None:
        return [Send(session, _refused(key, message.incarnation, error))]
    group = joined_group(state, key[0], message)
    is_new_group = groups.by_id.get(group.id) != group
    groups.by_id[group.id] = group
    before = groups.targets.all()
    if state.learning.is_on:
        for owner in message.owns:
            groups.targets.claim(owner)
    known = groups.consumers.get(key)
    effects = _moved_on(state, known, gateway_id)
    is_same = known is None or known.incarnation == message.incarnation
    kept = message.owns if message.known is not None and is_same else ()
    touched = _renew(state, key, kept, now_ms, may_work=is_same)
    groups.consumers[key] = Consumer(*key, message.incarnation, gateway_id)
    groups.doubtful.get(gateway_id, set()).discard(key)
    moving.plan_soon(state, now_ms)
    touched |= {key, *sharing.place(state, group)}
    is_news = is_new_group or groups.targets.all() != before
    if is_news and not state.learning.is_blank:
        effects += changed(state)
    return effects + sharing.assign(state, touched)


def _moved_on(state: State, known: Consumer | None, gateway_id: str) -> list[Effect]:
    """The gateway that spoke for a consumer until now need not keep its place."""
    if known is None or known.gateway_id == gateway_id:
        return []
    former = state.members.get(known.gateway_id)
    if former is None or former.session is None:
        return []
    error = NotNow(f"consumer {known.id} has joined at another gateway")
    return [Send(former.session, _refused(known.key, known.incarnation, error))]


def _renew(
    state: State, key: Key, kept: Iterable[Owner], now_ms: int, *, may_work: bool
) -> set[Key]:
    """New epochs for the targets of a consumer but for those `kept`. A target that was being handed
    off has left, unless the consumer's process `may_work` on it: then it is asked for anew, in a
    handoff that is as old as it was."""
    groups, kept = state.groups, set(kept)
    touched: set[Key] = set()
    if state.learning.is_on:
        return touched
    for owner in groups.owned_by(key):
        if owner in kept:
            continue
        handoff = groups.handoffs.by_ref.get(owner.ref)
        to_id = key[1]
        if handoff is not None and may_work and handoff.released_ms is None:
            handoff.heard_ms = now_ms
        elif handoff is not None:
            to_id = handoff.move.to_id if _has_recipient(state, handoff) else to_id
            groups.handoffs.end([owner.ref])
        groups.targets.take(owner.ref, to_id)
        touched.add((key[0], to_id))
    return touched


def leave(
    state: State, gateway_id: str, message: to_coordinator.LeaveGroup, now_ms: int
) -> list[Effect]:
    consumer = state.groups.consumers.get((message.group_id, message.consumer))
    if consumer is None or consumer.gateway_id != gateway_id:
        return []
    if consumer.incarnation != message.incarnation:
        return []
    if message.for_good:
        return _gone(state, [consumer])
    _lose([consumer], now_ms)
    return []


def gateway_returns(state: State, gateway_id: str, now_ms: int) -> None:
    """The gateway's consumers are in doubt until it has named all of them again; then they are
    asked for targets that are being handed off."""
    sharing.ask_anew(state, gateway_id, now_ms)
    keys = {consumer.key for consumer in state.groups.of_gateway(gateway_id)}
    state.groups.doubtful[gateway_id] = keys


def all_named(state: State, gateway_id: str, now_ms: int) -> None:
    doubtful = state.groups.doubtful.pop(gateway_id, set())
    _lose(
        [state.groups.consumers[key] for key in doubtful if key in state.groups.consumers], now_ms
    )


def gateway_gone(state: State, gateway_id: str, seen_ms: int) -> None:
    """Its consumers had until now, or have a lease from now on, to go elsewhere."""
    state.groups.doubtful.pop(gateway_id, None)
    state.groups.full_since_ms.pop(gateway_id, None)
    _lose(state.groups.of_gateway(gateway_id), seen_ms)


def _lose(consumers: Iterable[Consumer], at_ms: int) -> None:
    for consumer in consumers:
        consumer.lost_ms = at_ms if consumer.lost_ms is None else consumer.lost_ms


def _gone(state: State, consumers: Sequence[Consumer]) -> list[Effect]:
    """Go on without some consumers: their targets go to others, from the positions they
    acknowledged."""
    groups = state.groups
    touched: set[Key] = set()
    for consumer in consumers:
        del groups.consumers[consumer.key]
        for ref, handoff in list(groups.handoffs.by_ref.items()):
            if ref.topic != consumer.group_id:
                continue
            # A handoff whose recipient is gone goes on: its donor was asked, finishes with the
            # target under the epoch that it has, and takes it back.
            if consumer.id == handoff.move.from_id:
                groups.handoffs.end([ref])
                if _has_recipient(state, handoff):
                    groups.targets.take(ref, handoff.move.to_id)
                    touched.add((ref.topic, handoff.move.to_id))
        for owner in groups.owned_by(consumer.key):
            groups.targets.release(owner.ref)
    for group in {consumer.group_id for consumer in consumers}:
        touched.update(sharing.place(state, groups.by_id[group]))
    return changed(state) + sharing.assign(state, touched)


def _has_recipient(state: State, handoff: Handoff) -> bool:
    return (handoff.move.ref.topic, handoff.move.to_id) in state.groups.consumers


def topic_gone(state: State, topic: str) -> list[Effect]:
    """Its groups end with it; their consumers are told, after the change is kept."""
    effects: list[Effect] = []
    error = UnknownTopic(f"topic {topic} was deleted")
    for group in [group for group in state.groups.all() if group.topic == topic]:
        for consumer in state.groups.end(group.id):
            session = sharing.session_of(state, consumer)
            if session is not None:
                refused = _refused(consumer.key, consumer.incarnation, error)
                effects.append(Send(session, refused))
    return effects


# --- time --------------------------------------------------------------------------------------


def tick(state: State, now_ms: int) -> list[Effect]:
    """Ends leases, and handoffs that took too long; nothing while the coordinator learns."""
    if state.learning.is_on:
        return []
    groups, lease_ms = state.groups, state.timing.lease_ms
    gone = [
        consumer
        for consumer in groups.consumers.values()
        if consumer.lost_ms is not None and now_ms - consumer.lost_ms >= lease_ms
    ]
    effects = _gone(state, gone) if gone else []
    if now_ms - state.started_ms >= lease_ms and (strangers := groups.strangers()):
        effects += _without_strangers(state, strangers)
    return effects + sharing.look_for_room(state, now_ms) + sharing.advance(state, now_ms)


def _without_strangers(state: State, owners: Sequence[Owner]) -> list[Effect]:
    """Consumers from before a restart have not come back within a lease."""
    groups = state.groups
    for owner in owners:
        groups.handoffs.end([owner.ref])
        groups.targets.release(owner.ref)
    touched: set[Key] = set()
    for name in {owner.ref.topic for owner in owners} & groups.by_id.keys():
        touched.update(sharing.place(state, groups.by_id[name]))
    return changed(state) + sharing.assign(state, touched)


def _refused(key: Key, incarnation: str, error: HeadgateError) -> from_coordinator.RefuseConsumer:
    return from_coordinator.RefuseConsumer(*key, incarnation, error.code, error.message)
