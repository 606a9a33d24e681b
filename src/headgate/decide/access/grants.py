"""Grants as people write them: text to values and back.

    produce on orders.*
    subscribe on flights where tenant == claims.tenant
    consume on flights in billing,audit-*
    read:topics on orders.*          write:letters          metrics
    deny subscribe on secrets
    admin                            (everything there is)

Invariant: `parsed(written(grant)) == (grant,)`; what isn't understood is refused with a sentence
that says what was expected, and never means more than it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import get_args

from headgate.decide.filter.parser import parse
from headgate.errors import HeadgateError, InvalidFilter, InvalidRequest
from headgate.model.access import EVERY, TOPICAL_AREAS, Action, Area, Grant

ADMIN = "admin"
GRANTS_MAX = 100
TEXT_CHARS = 5_000
AREAS: tuple[Area, ...] = get_args(Area)
ABOUT_TOPICS: tuple[Action, ...] = ("produce", "subscribe", "consume")
SHOWS_RECORDS = frozenset(
    {("subscribe", None), ("consume", None), ("read", "letters"), ("write", "letters")}
)
"""What may carry a filter."""
EXAMPLES = (
    "write one such as 'produce on orders.*', 'subscribe on flights where tenant == claims.tenant',"
    " 'consume on flights in billing', 'read:topics', 'write:letters on orders', 'metrics', "
    "'admin', or 'deny' and one of these"
)
_PATTERN = re.compile(r"[A-Za-z0-9*][A-Za-z0-9._*-]{0,127}")
_FORM = re.compile(
    r"(?P<deny>deny\s+)?(?P<what>[a-z:]+)"
    r"(?:\s+on\s+(?P<topics>[^\s,]+(?:\s*,\s*[^\s,]+)*))?"
    r"(?:\s+in\s+(?P<groups>[^\s,]+(?:\s*,\s*[^\s,]+)*))?"
    r"(?:\s+where\s+(?P<where>.+))?",
    re.DOTALL,
)


def parsed(text: str) -> tuple[Grant, ...]:
    """The grants that `text` stands for, which is one but for admin. Raises InvalidRequest."""
    if len(text) > TEXT_CHARS:
        raise InvalidRequest(f"a grant is longer than {TEXT_CHARS} characters", parameter="grant")
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise _unknown(text)
    what, deny = form["what"], form["deny"] is not None
    topics, groups = _patterns(form["topics"]), _patterns(form["groups"])
    if what == ADMIN:
        if form["topics"] or form["groups"] or form["where"]:
            raise InvalidRequest(
                "admin is everything, everywhere: it takes neither on, in nor where",
                parameter="grant",
            )
        return everything(deny=deny)
    grant = Grant(*_action(what, text), topics, groups, form["where"], deny)
    check(grant)
    return (grant,)


def all_parsed(texts: Iterable[str]) -> tuple[Grant, ...]:
    """Of several. Raises InvalidRequest, also where there are too many."""
    found = tuple(grant for text in texts for grant in parsed(text))
    if len(found) > GRANTS_MAX:
        raise InvalidRequest(f"more than {GRANTS_MAX} grants; join some by patterns of topics")
    return found


def everything(*, deny: bool = False) -> tuple[Grant, ...]:
    plain: tuple[Action, ...] = (*ABOUT_TOPICS, "metrics")
    areas = [(how, area) for how in ("read", "write") for area in AREAS]
    return (
        *(Grant(action, deny=deny) for action in plain),
        *(Grant(how, area, deny=deny) for how, area in areas),  # type: ignore[arg-type]  # literals
    )


def check(grant: Grant) -> None:
    """Raises InvalidRequest for what makes no sense, wherever the grant came from."""
    name = _what(grant)
    if (grant.area is None) == (grant.action in ("read", "write")):
        raise _unknown(name)
    is_topical = grant.action in ABOUT_TOPICS or grant.area in TOPICAL_AREAS
    if grant.topics != EVERY and not is_topical:
        raise InvalidRequest(
            f"{name} is about the whole cluster: leave out on TOPICS", parameter="grant"
        )
    if grant.groups != EVERY and grant.action != "consume":
        raise InvalidRequest(
            f"only consume is about groups: leave out in GROUPS after {name}", parameter="grant"
        )
    for pattern in (*grant.topics, *grant.groups):
        if _PATTERN.fullmatch(pattern) is None:
            raise InvalidRequest(
                f"{pattern[:100]!r} is no pattern of names: use letters, digits, dots, hyphens, "
                "underscores, and * for any of them",
                parameter="grant",
            )
    if grant.where is None:
        return
    if (grant.action, grant.area) not in SHOWS_RECORDS:
        raise InvalidRequest(
            f"{name} shows no records, so a filter would mean nothing: leave out where",
            parameter="grant",
        )
    try:
        parse(grant.where)
    except InvalidFilter as error:
        raise InvalidRequest(f"in a grant's where: {error.message}", parameter="grant") from error


def written(grant: Grant) -> str:
    """As `parsed` reads it."""
    parts = ["deny"] if grant.deny else []
    parts.append(_what(grant))
    if grant.topics != EVERY:
        parts.append(f"on {','.join(grant.topics)}")
    if grant.groups != EVERY:
        parts.append(f"in {','.join(grant.groups)}")
    if grant.where is not None:
        parts.append(f"where {grant.where}")
    return " ".join(parts)


def all_written(grants: tuple[Grant, ...]) -> list[str]:
    """As people want to read them: an administrator's twenty are one word."""
    full = everything()
    if set(full) <= set(grants):
        return [ADMIN, *(written(one) for one in grants if one not in full)]
    return [written(one) for one in grants]


def _what(grant: Grant) -> str:
    return grant.action if grant.area is None else f"{grant.action}:{grant.area}"


def _action(what: str, text: str) -> tuple[Action, Area | None]:
    how, _, name = what.partition(":")
    for action in get_args(Action):
        if action != how:
            continue
        if not name and action not in ("read", "write"):
            return action, None
        for area in AREAS:
            if area == name and action in ("read", "write"):
                return action, area
    raise _unknown(text)


def _patterns(text: str | None) -> tuple[str, ...]:
    return EVERY if text is None else tuple(part.strip() for part in text.split(","))


def _unknown(text: str) -> HeadgateError:
    return InvalidRequest(f"{text[:100]!r} is no grant: {EXAMPLES}", parameter="grant")
