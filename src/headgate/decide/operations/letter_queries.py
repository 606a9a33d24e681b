"""What operators ask about letters, as queries, and what they are shown.

Invariant: whatever can't be understood is refused with one sentence that names the parameter; a
mistyped filter never means "all of them".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, get_args

import msgspec

from headgate.decide.durations import parse_duration_ms
from headgate.decide.produce.headers import decoded
from headgate.errors import InvalidRequest
from headgate.model.api import MAX_PARTITIONS, NAME_PATTERN, NAME_RULE
from headgate.model.groups import group_of
from headgate.model.letters import (
    GatewayLetters,
    Letter,
    LetterCount,
    LetterQuery,
    LetterReason,
    LetterState,
)
from headgate.model.letters_api import (
    CHUNK,
    ID_MAX,
    LISTED_MAX,
    WAIT_MAX_MS,
    LetterFilter,
    LetterInfo,
    LetterList,
    LetterSelection,
)

T = TypeVar("T", bound=str)

STATES: tuple[LetterState, ...] = get_args(LetterState)
REASONS: tuple[LetterReason, ...] = get_args(LetterReason)
PARAMETERS: Mapping[str, str] = {
    "gateway": "Only letters for this gateway.",
    "group": "Only letters of this consumer group.",
    "topic": "Only letters of this topic.",
    "partition": "Only letters of this partition.",
    "key": "Only letters of events with this key.",
    "reason": f"Only letters with this reason: {', '.join(REASONS[:-1])} or {REASONS[-1]}.",
    "state": "dead (default) or parked.",
    "older_than": "Only letters written longer ago than this, such as 1h.",
    "newer_than": "Only letters written less long ago than this, such as 7d.",
    "after": "Only letters with a higher id; the last_id of the answer before.",
    "limit": f"How many, up to {LISTED_MAX} (default {CHUNK}).",
    "documents": "true: with the documents.",
}
"""Of the list, with their description."""


@dataclass(frozen=True, slots=True)
class ListQuestion:
    query: LetterQuery
    after_id: int
    limit: int
    documents: bool


def list_question(parameters: Mapping[str, str], *, now_ms: int) -> ListQuestion:
    """From the parameters of GET /v1/dead-letters."""
    if unknown := sorted(set(parameters) - set(PARAMETERS)):
        raise InvalidRequest(
            f"dead letters have no parameter {unknown[0][:100]}; there are {', '.join(PARAMETERS)}",
            parameter=unknown[0][:100],
        )
    given = {name: value for name, value in parameters.items() if value}
    wanted = LetterFilter(
        gateway=given.get("gateway"),
        topic=given.get("topic"),
        partition=_number(given, "partition", least=0, most=MAX_PARTITIONS - 1),
        key=given.get("key"),
        reason=_one_of("reason", given["reason"], REASONS) if "reason" in given else None,
        older_than=given.get("older_than"),
        newer_than=given.get("newer_than"),
        group=given.get("group"),
    )
    state = _one_of("state", given.get("state", "dead"), STATES)
    return ListQuestion(
        query_of(wanted, now_ms=now_ms, state=state),
        after_id=_number(given, "after", least=0, most=ID_MAX) or 0,
        limit=_number(given, "limit", least=1, most=LISTED_MAX) or CHUNK,
        documents=_one_of("documents", given.get("documents", "false"), ("true", "false"))
        == "true",
    )


def selected(selection: LetterSelection, *, now_ms: int) -> LetterQuery:
    """Which dead letters a change is about."""
    if (selection.ids is None) == (selection.filter is None):
        raise InvalidRequest(
            "say which letters are meant with either ids or a filter; an empty filter, {}, means "
            "every dead letter"
        )
    if selection.dry_run and selection.after:
        raise InvalidRequest("a dry run counts every letter that is meant: leave out after")
    if selection.filter is not None:
        return query_of(selection.filter, now_ms=now_ms)
    if not selection.ids:
        raise InvalidRequest("ids is empty: name at least one letter")
    return LetterQuery(ids=tuple(selection.ids))


def wait_ms(selection: LetterSelection) -> int:
    """How long a caller that wants letters sent again waits to hear what became of them."""
    if selection.wait is None:
        return 0
    try:
        asked_ms = parse_duration_ms(selection.wait)
    except InvalidRequest as error:
        raise InvalidRequest(f"wait: {error.message}", parameter="wait") from error
    if asked_ms > WAIT_MAX_MS:
        raise InvalidRequest("wait is 10s at most; look again later", parameter="wait")
    return asked_ms


def query_of(wanted: LetterFilter, *, now_ms: int, state: LetterState = "dead") -> LetterQuery:
    """Ages become times; what no store could hold is refused."""
    for name, value in (("gateway", wanted.gateway), ("topic", wanted.topic)):
        if "\0" in (value or ""):
            raise InvalidRequest(f"no {name} has a zero in its name", parameter=name)
    if wanted.group is not None and not re.fullmatch(NAME_PATTERN, wanted.group):
        raise InvalidRequest(f"a group's name has {NAME_RULE}", parameter="group")
    return LetterQuery(
        state=state,
        gateway_id=wanted.gateway,
        group=wanted.group,
        topic=wanted.topic,
        partition=wanted.partition,
        key=wanted.key,
        reason=wanted.reason,
        before_ms=_time_ms("older_than", wanted.older_than, now_ms),
        after_ms=_time_ms("newer_than", wanted.newer_than, now_ms),
    )


def letter_id(text: str) -> int:
    number = _number({"id": text}, "id", least=1, most=ID_MAX)
    assert number is not None
    return number


def described(letter: Letter, *, documents: bool = True) -> LetterInfo:
    event = letter.delivery
    group = group_of(letter.gateway_id)
    return LetterInfo(
        id=letter.id,
        state=letter.state,
        reason=letter.reason,
        gateway="" if group else letter.gateway_id,
        group=group,
        topic=event.topic,
        partition=event.partition,
        seq=event.seq,
        event_id=event.event_id,
        key=event.key,
        collection=event.collection,
        op=event.op,
        subscriptions=[] if group else list(event.subscriptions),
        attempts=letter.attempts,
        error=is_damaged(letter) if letter.damage else letter.error,
        at_ms=letter.at_ms,
        time_ms=event.time_ms,
        redelivery=event.redelivery,
        document=event.document if documents and not letter.damage else msgspec.UNSET,
        headers={} if event.headers is msgspec.UNSET else decoded(bytes(event.headers)),
        damaged=bool(letter.damage),
    )


def is_damaged(letter: Letter) -> str:
    """Says that the letter is damaged, and what can be done about it."""
    what = f"it is damaged ({letter.damage}), and can't be sent"
    if letter.state == "parked":
        what += "; what is behind it waits"
    return (
        f"{what}; restore the store of letters from a copy, or give it up with "
        f"`headgate dlq delete {letter.id}`"
    )


def page_of(found: Sequence[Letter], question: ListQuestion) -> LetterList:
    """`found` has one letter more than was asked for, where there is one."""
    shown = found[: question.limit]
    return LetterList(
        [described(letter, documents=question.documents) for letter in shown],
        last_id=shown[-1].id if shown else question.after_id,
        more=len(found) > len(shown),
    )


def by_gateway(counts: Iterable[LetterCount], *, now_ms: int) -> list[GatewayLetters]:
    """One entry per gateway, by its id, then one per consumer group."""
    found: dict[tuple[str, str], GatewayLetters] = {}
    for one in counts:
        name = group_of(one.gateway_id)
        whose = (f"{one.topic}/{name}", "") if name else ("", one.gateway_id)
        so_far = found.get(whose, GatewayLetters(whose[1], group=whose[0]))
        age_ms = max(0, now_ms - one.oldest_ms)
        if one.state == "parked":
            changes = {
                "parked": so_far.parked + one.count,
                "parked_ms": max(so_far.parked_ms, age_ms),
            }
        else:
            changes = {"dead": so_far.dead + one.count, "dead_ms": max(so_far.dead_ms, age_ms)}
        found[whose] = msgspec.structs.replace(so_far, **changes)
    return [found[whose] for whose in sorted(found)]


def _time_ms(name: str, age: str | None, now_ms: int) -> int | None:
    if age is None:
        return None
    try:
        return now_ms - parse_duration_ms(age)
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error.message}", parameter=name) from error


def _one_of(name: str, value: str, allowed: Sequence[T]) -> T:
    for one in allowed:
        if one == value:
            return one
    choices = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
    raise InvalidRequest(f"{name} is {choices}, not {value[:100]!r}", parameter=name)


def _number(given: Mapping[str, str], name: str, *, least: int, most: int) -> int | None:
    if (text := given.get(name)) is None:
        return None
    if text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    raise InvalidRequest(
        f"{name} is a number from {least} to {most}, not {text[:100]!r}", parameter=name
    )
