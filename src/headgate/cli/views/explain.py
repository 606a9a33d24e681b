"""How an explanation looks in a terminal: what became of the record, then which subscribers got it,
and why others didn't.

Only shapes what it's given. What others wrote (keys, filters, errors) can't move the cursor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from headgate.cli.views.letters import moment
from headgate.cli.views.tables import Grid, number
from headgate.model.explain_api import (
    ExplainedCondition,
    ExplainedGroup,
    ExplainedSubscription,
    Explanation,
    FieldValue,
)

MARKS = {"match": "yes", "no match": "no", "failed": "failed"}


def explanation_view(answer: Explanation) -> RenderableType:
    parts: list[RenderableType] = [Text(_plain(answer.why), style="bold"), *_record(answer)]
    if answer.subscriptions:
        parts += [Text(), *_subscriptions(answer)]
    if answer.groups:
        parts += [
            Text(),
            Grid(("group", "target>", "status", "why"), [*map(_group, answer.groups)]),
        ]
    if answer.attempts:
        rows = [
            (moment(one.at_ms), one.gateway, one.outcome, _plain(one.error) or "-")
            for one in answer.attempts
        ]
        parts += [Text(), Grid(("attempt", "gateway", "outcome", "error"), rows)]
    parts += [Text(f"also at {one.topic}:{one.partition}:{one.seq}") for one in answer.elsewhere]
    notes = [*answer.evidence.notes, *(f"no answer: {one}" for one in answer.evidence.silent)]
    parts += [Text(f"note: {_plain(note)}", style="yellow") for note in notes]
    return Group(*parts)


def _record(answer: Explanation) -> Iterator[Text]:
    if (one := answer.record) is not None:
        key = "no key" if one.key is None else f"key {_plain(one.key)}"
        collection = f"   collection {_plain(one.collection)}" if one.collection else ""
        yield Text(
            f"event {_plain(one.event_id)}   {key}{collection}   {one.op} at {moment(one.time_ms)}"
            f"   version {one.version}"
        )
    if answer.owner or answer.router:
        yield Text(
            f"log {answer.owner or '-'}   router {answer.router or '-'}   settled "
            f"{number(answer.settled)} of {number(answer.head)}"
        )


def _subscriptions(answer: Explanation) -> Iterator[RenderableType]:
    if len(answer.subscriptions) == 1:
        yield from _whole(answer.subscriptions[0])
        return
    rows = [
        (one.id, one.gateway or "-", one.status, _plain(one.why)) for one in answer.subscriptions
    ]
    yield Grid(("subscription", "?gateway", "status", "why"), rows)
    if answer.more:
        shown, examined = number(len(rows)), number(answer.examined)
        yield Text(f"{shown} of {examined} that were asked are shown: add --matching, or --limit")


def _whole(one: ExplainedSubscription) -> Iterator[RenderableType]:
    name = f"subscription {one.id}" if one.id else "this filter"
    yield Text(f"{name}: {one.status}")
    yield Text(_plain(one.why))
    if one.where is not None:
        yield Text(f"filter {_plain(one.where)}")
    if one.conditions:
        yield conditions_view(one.conditions)
    if one.route:
        yield Text(f"route {_plain(one.route)}")


def conditions_view(conditions: Sequence[ExplainedCondition]) -> Grid:
    """A row per condition, with what the record has there."""
    rows = [_condition(one) for one in conditions]
    return Grid(("condition", "holds", "the record has", "?because"), rows)


def _condition(one: ExplainedCondition) -> tuple[str, str, str, str]:
    side = f"({one.alternative}) " if one.alternative else ""
    has = ", ".join(map(_value, one.values)) or "-"
    return f"{side}{_plain(one.condition)}", MARKS[one.verdict], has, _plain(one.why)


def _value(one: FieldValue) -> str:
    if one.missing:
        return f"no {_plain(one.field)}"
    return f"{_plain(one.field)} {'(masked)' if one.masked else _plain(one.value)}"


def _group(one: ExplainedGroup) -> tuple[str, str, str, str]:
    target = "all" if one.target < 0 else str(one.target)
    return one.name, target, one.status, _plain(one.why)


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "�" for char in text)
