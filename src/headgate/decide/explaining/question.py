"""Which record a request asks about, and what of it, from its parameters.

Invariant: whatever can't be understood is refused with one sentence that names the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headgate.errors import InvalidRequest
from headgate.model.event import PartitionRef
from headgate.model.explain_api import LIMIT_DEFAULT, LIMIT_MAX, DryRun

PARAMETERS: Mapping[str, str] = {
    "record": "Which record: TOPIC:PARTITION:SEQ, or an event id.",
    "event_id": "The event id, where it reads like a place; instead of record.",
    "topic": "Look for the event id in this topic alone.",
    "subscription": "Only this subscription, by its id.",
    "where": "A CEL expression instead of subscriptions: would it match?",
    "show": "all, or matching: only who wants the record.",
    "limit": f"How many subscriptions, up to {LIMIT_MAX} (default {LIMIT_DEFAULT}).",
}
"""With their description."""
SUBSCRIPTION_CHARS_MAX = 512
ID_CHARS_MAX = 1_024

_PLACE = re.compile(
    r"(?P<topic>[A-Za-z0-9][A-Za-z0-9._-]{0,127}):(?P<partition>[0-9]{1,9}):(?P<seq>[0-9]{1,18})"
)

Show = Literal["all", "matching"]


@dataclass(frozen=True, slots=True)
class About:
    """What the request asks about: one `subscription`, a filter that no subscription need have, or
    all subscriptions, of which so many are shown."""

    subscription: str | None = None
    where: str | None = None
    show: Show = "all"
    limit: int = LIMIT_DEFAULT


@dataclass(frozen=True, slots=True)
class Question:
    """`place` of the record with its seq, or the `event_id` to look for, in `topic` if one is
    named. What reads like a place of a topic that there isn't may be an id all the same: then both
    are there."""

    about: About
    place: tuple[PartitionRef, int] | None = None
    event_id: str = ""
    topic: str = ""


def question_of(given: Mapping[str, str]) -> Question:
    if unknown := sorted(set(given) - set(PARAMETERS)):
        name = unknown[0][:100]
        raise InvalidRequest(
            f"explaining has no parameter {name}; there are {', '.join(PARAMETERS)}",
            parameter=name,
        )
    about = about_of(
        given.get("subscription") or None, given.get("where") or None, _show(given), _limit(given)
    )
    topic = given.get("topic", "")
    if event_id := given.get("event_id"):
        if "record" in given:
            raise InvalidRequest("give record or event_id, not both", parameter="event_id")
        return Question(about, event_id=_bounded_id(event_id), topic=topic)
    record = given.get("record", "")
    if not record:
        raise InvalidRequest(
            "which record? give record=TOPIC:PARTITION:SEQ, or its event id", parameter="record"
        )
    found = _PLACE.fullmatch(record)
    if found is None:
        return Question(about, event_id=_bounded_id(record), topic=topic)
    seq = int(found["seq"])
    if seq < 1:
        raise InvalidRequest("the first record of a partition has seq 1", parameter="record")
    ref = PartitionRef(found["topic"], int(found["partition"]))
    if topic not in ("", ref.topic):
        return Question(about, event_id=_bounded_id(record), topic=topic)
    return Question(about, (ref, seq), event_id=record)


def about_of(
    subscription: str | None, where: str | None, show: Show = "all", limit: int = LIMIT_DEFAULT
) -> About:
    if subscription is not None and where is not None:
        raise InvalidRequest(
            "a subscription has its own filter: give subscription or where, not both",
            parameter="where",
        )
    if subscription is not None and len(subscription) > SUBSCRIPTION_CHARS_MAX:
        raise InvalidRequest("no subscription has an id that long", parameter="subscription")
    return About(subscription, where, show, limit)


def about_dry_run(body: DryRun) -> About:
    """Raises InvalidRequest for what couldn't be produced; deletes may have no document."""
    raw = bytes(body.document)
    if not raw.startswith(b"{") and (raw != b"null" or body.op == "insert"):
        raise InvalidRequest(
            "the document is not a JSON object: it couldn't be produced", parameter="document"
        )
    return about_of(body.subscription, body.where, body.show, body.limit)


def _bounded_id(text: str) -> str:
    if len(text) > ID_CHARS_MAX:
        raise InvalidRequest(
            f"no event id is longer than {ID_CHARS_MAX} characters", parameter="event_id"
        )
    return text


def _show(given: Mapping[str, str]) -> Show:
    match given.get("show") or "all":
        case "all":
            return "all"
        case "matching":
            return "matching"
        case other:
            raise InvalidRequest(f"show is all or matching, not {other[:100]!r}", parameter="show")


def _limit(given: Mapping[str, str]) -> int:
    if not (text := given.get("limit")):
        return LIMIT_DEFAULT
    if text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= LIMIT_MAX:
        return int(text)
    raise InvalidRequest(
        f"limit is a number from 1 to {LIMIT_MAX}, not {text[:100]!r}", parameter="limit"
    )
