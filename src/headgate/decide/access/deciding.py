"""Whether a principal may do something, and which records it is shown while it does.

Invariants: what no grant allows is denied; a grant that denies wins over all that allow. Where a
grant carries a filter, nobody is shown a record for which that doesn't hold, nor one on which it
fails, nor anything at all where it names a claim that the principal doesn't have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.decide.access.enforcing import Enforced, with_claims
from headgate.decide.filter.parser import parse
from headgate.decide.filter.syntax import And, Expression, Not, Or
from headgate.errors import Forbidden, Unauthorized
from headgate.model.access import Action, Area, Grant, Principal


def may(
    principal: Principal | None,
    action: Action,
    area: Area | None = None,
    *,
    topic: str | None = None,
    group: str | None = None,
) -> bool:
    """Whether it is allowed, at least for some records. The principal is None where callers need no
    credential. Without a `topic`: at least for one."""
    if principal is None:
        return True
    fitting = _fitting(principal.grants, action, area, topic, group)
    allowed = any(not grant.deny for grant in fitting)
    denied = any(_denies_all(grant, topic, group) for grant in fitting)
    return allowed and not denied


def check(
    principal: Principal | None,
    action: Action,
    area: Area | None = None,
    *,
    topic: str | None = None,
    group: str | None = None,
) -> None:
    """Raises Unauthorized for a caller without a credential, and Forbidden, which says which grant
    is missing and nothing about what there is."""
    if principal is None or may(principal, action, area, topic=topic, group=group):
        return
    raise refusal(principal, action, area, topic=topic, group=group)


def refusal(
    principal: Principal,
    action: Action,
    area: Area | None = None,
    *,
    topic: str | None = None,
    group: str | None = None,
) -> Unauthorized | Forbidden:
    if principal.kind == "nobody":
        return who_are_you()
    what = action if area is None else f"{action}:{area}"
    on = "" if topic is None else f" on {topic[:128]}"
    within = "" if group is None else f" in {group[:128]}"
    return Forbidden(
        f"{principal.name} is not granted {what}{on}{within}; ask an administrator for it",
        needs=what,
        principal=principal.name,
    )


def who_are_you() -> Unauthorized:
    return Unauthorized(
        "say who you are: send the header Authorization: Bearer TOKEN; an administrator makes "
        "tokens with headgate token create"
    )


def enforced(
    principal: Principal | None,
    action: Action,
    area: Area | None = None,
    *,
    topic: str,
    group: str | None = None,
) -> Enforced | None:
    """The filter that is added to whatever the principal asks for; None: there is none. Raises as
    `check` does, and Forbidden where a claim is missing."""
    if principal is None:
        return None
    check(principal, action, area, topic=topic, group=group)
    fitting = _fitting(principal.grants, action, area, topic, group)
    shown = [grant.where for grant in fitting if not grant.deny]
    hidden = [grant.where for grant in fitting if grant.deny and grant.where is not None]
    conditions: list[Expression] = []
    if None not in shown:
        texts = dict.fromkeys(text for text in shown if text is not None)
        conditions.append(_any_of([with_claims(parse(text), principal) for text in texts]))
    conditions += [Not(with_claims(parse(text), principal)) for text in dict.fromkeys(hidden)]
    if not conditions:
        return None
    return Enforced(conditions[0] if len(conditions) == 1 else And(tuple(conditions)))


def visible(
    principal: Principal | None, action: Action, area: Area | None, topics: Iterable[str]
) -> list[str]:
    """Those of `topics` that the principal may know of."""
    return [name for name in topics if may(principal, action, area, topic=name)]


def knows_topic(principal: Principal | None, topic: str) -> bool:
    """Whether anything is granted that is about the topic, so that its name is no news."""
    about: tuple[tuple[Action, Area | None], ...] = (
        ("read", "topics"),
        ("write", "topics"),
        ("produce", None),
        ("subscribe", None),
        ("consume", None),
    )
    return any(may(principal, action, area, topic=topic) for action, area in about)


def _fitting(
    grants: Sequence[Grant],
    action: Action,
    area: Area | None,
    topic: str | None,
    group: str | None,
) -> list[Grant]:
    return [
        grant
        for grant in grants
        if grant.action == action
        and grant.area == area
        and (topic is None or _fits(grant.topics, topic))
        and (group is None or _fits(grant.groups, group))
    ]


def _denies_all(grant: Grant, topic: str | None, group: str | None) -> bool:
    """Where no topic is named, only a grant that denies all topics denies it."""
    if not grant.deny or grant.where is not None:
        return False
    return (topic is not None or "*" in grant.topics) and (group is not None or "*" in grant.groups)


def _fits(patterns: Sequence[str], name: str) -> bool:
    return any(_fits_one(pattern, name) for pattern in patterns)


def _fits_one(pattern: str, name: str) -> bool:
    """In one pass: a name comes from the caller, and may be long."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    if not name.startswith(first):
        return False
    at, last = len(first), rest.pop()
    for part in rest:
        found = name.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(name) - at >= len(last) and name.endswith(last)


def _any_of(conditions: list[Expression]) -> Expression:
    return conditions[0] if len(conditions) == 1 else Or(tuple(conditions))
