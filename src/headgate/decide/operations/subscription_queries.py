"""Operators' queries about subscriptions, and the answers.

Invariant: whatever can't be understood is refused with one sentence that names the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.errors import InvalidRequest
from headgate.model.subscription import Subscription
from headgate.model.subscriptions_api import (
    SUBSCRIPTIONS_DEFAULT,
    SUBSCRIPTIONS_MAX,
    SubscriptionInfo,
)

PARAMETERS: Mapping[str, str] = {
    "search": "Only those that have this text in their id, filter or tenant.",
    "topic": "Only those of this topic.",
    "gateway": "Only those that are held by this gateway.",
    "offset": "How many to leave out at the beginning (default 0).",
    "limit": f"How many, up to {SUBSCRIPTIONS_MAX} (default {SUBSCRIPTIONS_DEFAULT}).",
}
"""With their description."""
OFFSET_MAX = 10_000_000


@dataclass(frozen=True, slots=True)
class SubscriptionQuestion:
    search: str
    topic: str
    gateway: str
    offset: int
    limit: int

    def is_about(self, one: Subscription) -> bool:
        if (self.topic and one.topic != self.topic) or (
            self.gateway and one.gateway_id != self.gateway
        ):
            return False
        text = self.search
        return not text or text in one.id or text in (one.where or "") or text in one.tenant

    @property
    def is_about_all(self) -> bool:
        return not (self.search or self.topic or self.gateway)


@dataclass(slots=True)
class SubscriptionSearch:
    """Given all subscriptions, some at a time, it keeps the wanted ones and counts the matching."""

    question: SubscriptionQuestion
    matching: int = 0
    found: list[SubscriptionInfo] = field(default_factory=list)

    def look_at(self, some: tuple[Subscription, ...]) -> None:
        asked = self.question
        fits = some if asked.is_about_all else [one for one in some if asked.is_about(one)]
        first = max(0, asked.offset - self.matching)
        room = asked.limit - len(self.found)
        self.found += [described(one) for one in fits[first : first + room]]
        self.matching += len(fits)


def question_of(parameters: Mapping[str, str]) -> SubscriptionQuestion:
    if unknown := sorted(set(parameters) - set(PARAMETERS)):
        raise InvalidRequest(
            f"subscriptions have no parameter {unknown[0][:100]}; there are "
            f"{', '.join(PARAMETERS)}",
            parameter=unknown[0][:100],
        )
    return SubscriptionQuestion(
        parameters.get("search", ""),
        parameters.get("topic", ""),
        parameters.get("gateway", ""),
        _number(parameters, "offset", default=0, least=0, most=OFFSET_MAX),
        _number(
            parameters, "limit", default=SUBSCRIPTIONS_DEFAULT, least=1, most=SUBSCRIPTIONS_MAX
        ),
    )


def described(one: Subscription) -> SubscriptionInfo:
    return SubscriptionInfo(
        one.id,
        one.gateway_id,
        one.topic,
        one.where,
        one.priority,
        one.tenant,
        one.cost_us,
        None if one.shard is None else one.shard[1],
        one.ttl_ms,
    )


def _number(given: Mapping[str, str], name: str, *, default: int, least: int, most: int) -> int:
    if not (text := given.get(name)):
        return default
    if text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    raise InvalidRequest(
        f"{name} is a number from {least} to {most}, not {text[:100]!r}", parameter=name
    )
