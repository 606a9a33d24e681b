"""What a subscriber may ask for, from a query string or a message, as a SubscribeRequest.

Invariant: both ways lead to the same SubscribeRequest; whatever can't be understood is refused with
one sentence that names the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from headgate import errors
from headgate.decide.feed.start_positions import Start, parse_last_event_id, parse_start, start_of
from headgate.decide.filter.structured import where_of
from headgate.model.api import NAME_PATTERN, NAME_RULE
from headgate.model.http import Parameter
from headgate.model.subscription import Priority
from headgate.services.gateway.subscriptions.protocol import Subscribe
from headgate.services.gateway.subscriptions.subscriptions import SubscribeRequest

VERSION = "1"
SUBPROTOCOL = f"headgate.v{VERSION}"
PRIORITIES: tuple[Priority, ...] = get_args(Priority)

SUBSCRIBE_PARAMETERS = (
    Parameter("topic", "The topic to follow.", required=True),
    Parameter("where", "A CEL expression over the document's fields; without it all records."),
    Parameter("filter", "The same as a JSON list of {field, op, value}; instead of where."),
    Parameter(
        "from",
        "now (default), earliest, a time such as 2026-01-31T12:00:00Z, or PARTITION:SEQ,… with the "
        "first seq wanted.",
    ),
    Parameter("priority", "high, normal (default) or low: what happens when you are too slow."),
    Parameter("tenant", "The tenant that the subscription counts for, where tenants have quotas."),
    Parameter("id", "What you call yourself, where subscribers are placed by that; keep it."),
    Parameter("unreachable", "Gateways, by commas, that you were sent to and couldn't reach."),
    Parameter("v", "The version of the protocol: 1."),
)
_NAMES = tuple(parameter.name for parameter in SUBSCRIBE_PARAMETERS)


def question_of(query: Mapping[str, str], last_event_id: str = "") -> SubscribeRequest:
    """From query parameters; `last_event_id` wins over `from`."""
    check_parameters(query)
    topic = query.get("topic", "")
    if not topic:
        raise errors.InvalidRequest("say which topic to follow: ?topic=NAME", parameter="topic")
    start: Start
    if last_event_id:
        start = parse_last_event_id(last_event_id)
    else:
        start = parse_start(query.get("from", "now"))
    return SubscribeRequest(
        topic,
        where_in(query.get("where") or None, _decoded(query.get("filter", ""))),
        start,
        _priority(query.get("priority") or "normal"),
        tenant=_tenant(query.get("tenant", "")),
    )


def question_in(message: Subscribe) -> SubscribeRequest:
    """From a message."""
    return SubscribeRequest(
        message.topic,
        where_in(message.where or None, message.filter),
        start_of(message.from_),
        message.priority,
        message.id,
        tenant=_tenant(message.tenant),
    )


def check_parameters(query: Mapping[str, str]) -> None:
    """Raises what is wrong with the names, and with the version."""
    unknown = sorted(set(query) - set(_NAMES))
    if unknown:
        raise errors.InvalidRequest(
            f"subscribe has no parameter {unknown[0][:100]}; it has "
            f"{', '.join(_NAMES[:-1])} and {_NAMES[-1]}",
            parameter=unknown[0][:100],
        )
    check_version(query.get("v") or VERSION)


def check_version(version: str) -> None:
    if version != VERSION:
        raise errors.InvalidRequest(
            f"this gateway speaks version {VERSION} of the subscriber protocol "
            f"(v={VERSION} or {SUBPROTOCOL}), not {version[:100]}",
            parameter="v",
            supported=[VERSION],
        )


def where_in(where: str | None, conditions: object) -> str | None:
    """The filter, from either of the two ways to write it."""
    if where is not None and conditions is not None:
        raise errors.InvalidRequest(
            "a subscription has where or filter, not both; join the conditions in one of them",
            parameter="filter",
        )
    return where_of(conditions) if conditions is not None else where


def _tenant(name: str) -> str:
    if name and not re.fullmatch(NAME_PATTERN, name):
        raise errors.InvalidRequest(
            f"tenant {name[:100]!r} is not a name: use {NAME_RULE}", parameter="tenant"
        )
    return name


def _decoded(text: str) -> object:
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise errors.InvalidFilter(f"The filter is not JSON: {error}") from error


def _priority(name: Any) -> Priority:
    for priority in PRIORITIES:
        if priority == name:
            return priority
    raise errors.InvalidRequest(
        f"there is no priority {str(name)[:100]}: write high, normal or low", parameter="priority"
    )
