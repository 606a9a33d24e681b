"""The consumer groups as an operator sees them."""

from __future__ import annotations

from headgate.decide.coordination.groups import sharing
from headgate.decide.coordination.groups.groups import Consumer
from headgate.decide.coordination.state import State
from headgate.model import api
from headgate.model.groups import Group


def describe_groups(state: State) -> list[api.GroupStatus]:
    return [_described(state, group) for group in state.groups.all()]


def planned_targets(state: State) -> list[api.PlannedMove]:
    """What a plan made now would move between the consumers of each group."""
    return [
        api.PlannedMove(
            "target", f"{group.topic}/{group.name}", move.ref.partition, move.from_id, move.to_id
        )
        for group in state.groups.all()
        for move in sharing.planned(state, group)
    ]


def _described(state: State, group: Group) -> api.GroupStatus:
    groups, refs = state.groups, group.refs()
    return api.GroupStatus(
        group.topic,
        group.name,
        group.targets,
        group.where,
        moving=sum(ref in groups.handoffs.by_ref for ref in refs),
        unowned=sum(not groups.targets.is_owned(ref) for ref in refs),
        consumers=[_consumer(state, one) for one in groups.of_group(group.id)],
    )


def _consumer(state: State, consumer: Consumer) -> api.ConsumerStatus:
    owned = state.groups.owned_by(consumer.key)
    return api.ConsumerStatus(
        consumer.id,
        consumer.gateway_id,
        "connected" if sharing.is_connected(state, consumer) else "lost",
        [owner.ref.partition for owner in owned],
    )
