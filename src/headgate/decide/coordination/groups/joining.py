"""Who may join a consumer group, and what a new group is like."""

from __future__ import annotations

import re

from headgate.decide.coordination.groups.groups import Key
from headgate.decide.coordination.plausible import join_refusal
from headgate.decide.coordination.state import State
from headgate.decide.groups.targets import DEFAULT_KEYS, targets_for
from headgate.decide.produce.unknown_topic import unknown_topic
from headgate.errors import HeadgateError, InvalidRequest, NotNow, TooLarge
from headgate.model.api import NAME_PATTERN, NAME_RULE
from headgate.model.control.to_coordinator import JoinGroup
from headgate.model.groups import Group

MAX_GROUPS = 1_000


def refusal(state: State, key: Key, gateway_id: str, message: JoinGroup) -> HeadgateError | None:
    """Why a consumer can't join; None when it can."""
    for what, name in (("group", message.group), ("consumer", message.consumer)):
        if not re.fullmatch(NAME_PATTERN, name):
            return InvalidRequest(f"{what} name {name[:100]!r} is not allowed: use {NAME_RULE}")
    if reason := join_refusal(state, message):
        return InvalidRequest(reason)
    group = state.groups.by_id.get(key[0])
    if group is None and message.known is None:
        return _no_new_group(state, message)
    if not state.learning.is_on and message.topic not in state.topics:
        return _unknown_topic(state, message)
    asked = message.known or message
    if group is not None and asked.where != group.where:
        if message.restricted:  # the filter may have what another one is granted in it
            return InvalidRequest(
                f"group {message.group} of topic {message.topic} has another filter than you ask "
                "for together with what you are granted; choose another group"
            )
        has = "no filter" if group.where is None else f"the filter {group.where}"
        return InvalidRequest(
            f"group {message.group} of topic {message.topic} has {has}; join with that, or choose "
            "another group"
        )
    return _taken_name(state, key, gateway_id, message)


def _no_new_group(state: State, message: JoinGroup) -> HeadgateError | None:
    if state.learning.is_on:
        return NotNow("the coordinator is learning which groups there are; try again in a minute")
    if message.topic not in state.topics:
        return _unknown_topic(state, message)
    if len(state.groups.by_id) >= MAX_GROUPS:
        return TooLarge(f"there are {MAX_GROUPS} consumer groups, the most there can be")
    return None


def _unknown_topic(state: State, message: JoinGroup) -> HeadgateError:
    """With what may have been meant, unless the consumer may not know of every topic."""
    return unknown_topic(message.topic, () if message.restricted else state.topics)


def _taken_name(
    state: State, key: Key, gateway_id: str, message: JoinGroup
) -> HeadgateError | None:
    known = state.groups.consumers.get(key)
    gateway = None if known is None else state.members.get(known.gateway_id)
    if known is None or known.lost_ms is not None or gateway is None:
        return None
    is_cut_off = gateway.session is None
    if known.incarnation == message.incarnation:
        # The consumer itself may come in anywhere; a gateway that it has left can't call it back.
        is_left = message.known is not None and known.gateway_id != gateway_id and not is_cut_off
        return NotNow(f"consumer {known.id} has joined at another gateway") if is_left else None
    if is_cut_off:
        return NotNow(
            f"a consumer {known.id} of group {message.group} may be connected to a gateway that is "
            "cut off; try again in a moment, or choose another id"
        )
    return InvalidRequest(
        f"a consumer {known.id} of group {message.group} is connected already; choose another id"
    )


def joined_group(state: State, group_id: str, message: JoinGroup) -> Group:
    """The group that a consumer joins: the one there is, or a new one made for it."""
    known = state.groups.by_id.get(group_id) or message.known
    if known is not None:
        return known
    return Group(
        group_id,
        message.topic,
        message.group,
        targets_for(message.keys or DEFAULT_KEYS, shard_size=state.balance.keys_per_target),
        message.where,
        message.starts,
    )
