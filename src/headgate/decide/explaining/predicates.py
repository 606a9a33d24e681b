"""Whether a record concerns a subscription, and predicate by predicate why (not).

`verdict_on` answers as lanes do (lane/subscriptions/matching.py): for the record as it is, as it
was before, and for what is about a whole collection. Values are those of the record as it may be
shown, so a masked one decides and isn't told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.decide.connectors.whole_collection import concerned
from headgate.decide.delivery.gaps import is_marker
from headgate.decide.filter.paths import follow, path_of
from headgate.decide.filter.plan import compile_filter
from headgate.decide.filter.record_fields import with_record_fields
from headgate.decide.filter.syntax import Call, Compare, Expression, Literal, children
from headgate.decide.filter.unparse import unparse
from headgate.decide.filter.values import MISSING
from headgate.decide.groups.targets import Shard, belongs
from headgate.decide.matching.explain import explain
from headgate.model.browse_api import MASKED
from headgate.model.event import UNDECODABLE, WHOLE_COLLECTION, Record
from headgate.model.explain_api import (
    VALUE_CHARS_MAX,
    ExplainedCondition,
    FieldValue,
    Verdict,
)
from headgate.model.subscription import Subscription

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

TEXT_METHODS = ("contains", "startsWith", "endsWith")
CONDITIONS_MAX = 100
"""Of one filter that are shown."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A record with its documents decoded as filters see them; None where there is none, or it
    can't be read. `shown` is what of it may be shown."""

    record: Record
    shown_record: Record
    document: object
    earlier: object
    shown: object
    is_whole: bool
    """It says something of a whole collection, or of lost changes: no filter is asked of it."""

    @classmethod
    def at(cls, record: Record, shown: Record) -> Looked:
        is_whole = record.op in WHOLE_COLLECTION or is_marker(record)
        if is_whole:
            return cls(record, shown, None, None, None, True)
        about = record.key, record.collection
        return cls(
            record,
            shown,
            with_record_fields(_decoded(record.document), *about),
            with_record_fields(_decoded(record.earlier), *about) if record.earlier else None,
            with_record_fields(_decoded(shown.document), shown.key, shown.collection),
            False,
        )

    def as_shown(self) -> Looked:
        """As if it were no more than what may be shown of it."""
        return Looked.at(self.shown_record, self.shown_record)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """`left`: it matched before the change and doesn't now. `mine` False: it is another target's of
    the group."""

    verdict: Verdict
    left: bool = False
    mine: bool = True

    @property
    def concerns(self) -> bool:
        return self.mine and (self.verdict == "match" or self.left)


def verdict_on(looked: Looked, where: str | None, shard: Shard | None = None) -> Verdicts:
    """Raises InvalidFilter."""
    matches, record = compile_filter(where), looked.record
    if not belongs(record, shard):
        return Verdicts("no match", mine=False)
    if is_marker(record):
        return Verdicts("match")
    if record.op in WHOLE_COLLECTION:
        return Verdicts("no match" if matches.excludes(*concerned(record)) else "match")
    now = matches.evaluate(looked.document)
    if now is True:
        return Verdicts("match")
    before = looked.earlier is not None and matches.matches(looked.earlier)
    return Verdicts("failed" if now is None else "no match", left=before)


def conditions_of(looked: Looked, where: str | None) -> list[ExplainedCondition]:
    """In the order of the text; none without a filter, or where none is asked."""
    if where is None or looked.is_whole:
        return []
    asked = Subscription("", "", looked.record.topic, where)
    found = explain(looked.document, asked).conditions[:CONDITIONS_MAX]
    return [_shown(one.condition, one.verdict, one.alternative, one.node, looked) for one in found]


def _shown(
    text: str, verdict: Verdict, alternative: int, node: Expression | None, looked: Looked
) -> ExplainedCondition:
    values: list[FieldValue] = []
    why = ""
    for field in _fields(node) if node is not None else ():
        value = _value(field, looked.shown)
        if all(value.field != other.field for other in values):
            values.append(value)
        if value.missing and verdict != "match" and not why:
            why = f"it has no {value.field}"
    if not why and verdict != "match" and node is not None:
        why = _other_kind(node, looked.shown)
    if not why and verdict == "failed":
        why = "what it computes has no value for this document"
    return ExplainedCondition(text, verdict, values, alternative, why)


def _fields(node: Expression) -> Iterator[Expression]:
    """What it looks at in the document, each as far as it is a path."""
    if path_of(node) is not None:
        yield node
        return
    for child in children(node):
        yield from _fields(child)


def _value(field: Expression, document: object) -> FieldValue:
    name = unparse(field)
    found = _at(field, document)
    if found is MISSING:
        return FieldValue(name, missing=True)
    if found == MASKED:
        return FieldValue(name, masked=True)
    text = _encode(found).decode()
    return FieldValue(name, text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…")


def _at(field: Expression, document: object) -> Any:
    path = path_of(field)
    if path is None or type(document) is not dict:
        return MISSING
    return follow(path)(document)


def _other_kind(node: Expression, document: object) -> str:
    """A text that is compared with a number, and the like: that is false whatever they are."""
    match node:
        case Compare(op=op, left=left, right=Literal() as meant) if op != "in":
            pass
        case Compare(op=op, left=Literal() as meant, right=left) if op != "in":
            pass
        case Call(name=name, arguments=(left, Literal() as meant)) if name in TEXT_METHODS:
            pass
        case _:
            return ""
    found = _at(left, document)
    if found is MISSING or found == MASKED:
        return ""
    is_, wanted = _kind(found), _kind(meant.value)
    if is_ == wanted:
        return ""
    return f"{unparse(left)} is {is_}, and {wanted} is meant"


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "an object"


def _decoded(document: bytes) -> object:
    try:
        return _decode(document)
    except UNDECODABLE:
        return None  # it matches nothing
