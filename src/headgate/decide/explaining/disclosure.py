"""What of an explanation a principal may see: the one place that every answer goes through.

Invariant: what isn't shown leaves no trace in the answer: no name, no filter, no reason, no sum,
and no sentence that is different because of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from headgate.decide.access.deciding import enforced, knows_topic, may
from headgate.decide.access.showing import shows_event
from headgate.decide.explaining.predicates import Looked, verdict_on
from headgate.decide.filter.unparse import unparse
from headgate.errors import Forbidden, Unauthorized
from headgate.model.access import Principal
from headgate.model.event import Record


class Sight(Protocol):
    """What the principal that asks may see."""

    def topic(self, name: str) -> bool:
        """Whether they may know of this topic at all."""

    def record(self, record: Record) -> Record | None:
        """As much of the record as they may see; None: to them it isn't there."""

    def letters(self, topic: str, record: Record | None) -> bool:
        """Whether they may see the letters of that record; None: nobody knows what it was."""

    def unseen(self, topic: str) -> bool:
        """Whether the principal may be told what became of a record of the topic that can't be
        looked at any more: not where a filter might have hidden it."""

    @property
    def system(self) -> bool:
        """Whether the principal may see subscribers, and how nodes fare. Without that, no node is
        asked: the answer has the record, and what a filter makes of it."""


class Everything:
    """Where callers need no credential, every answer is shown whole."""

    system = True

    def topic(self, name: str) -> bool:
        del name
        return True

    def record(self, record: Record) -> Record | None:
        return record

    def letters(self, topic: str, record: Record | None) -> bool:
        del topic, record
        return True

    def unseen(self, topic: str) -> bool:
        del topic
        return True


@dataclass(frozen=True, slots=True)
class Granted:
    """What the grants of a principal say."""

    principal: Principal

    @property
    def system(self) -> bool:
        return may(self.principal, "read", "nodes")

    def topic(self, name: str) -> bool:
        return knows_topic(self.principal, name)

    def letters(self, topic: str, record: Record | None) -> bool:
        try:
            held = enforced(self.principal, "read", "letters", topic=topic)
        except (Forbidden, Unauthorized):
            return False
        if held is None:
            return True
        if record is None:
            return False
        return shows_event(held.filter, record)

    def unseen(self, topic: str) -> bool:
        try:
            return enforced(self.principal, "subscribe", topic=topic) is None
        except (Forbidden, Unauthorized):
            return False

    def record(self, record: Record) -> Record | None:
        """Without its earlier state where the grant excludes that."""
        try:
            held = enforced(self.principal, "subscribe", topic=record.topic)
        except (Forbidden, Unauthorized):
            return None
        if held is None:
            return record
        where = unparse(held.expression)
        if verdict_on(Looked.at(record, record), where).verdict != "match":
            return None
        if record.earlier is None:
            return record
        before = replace(record, document=record.earlier, earlier=None)
        was_shown = verdict_on(Looked.at(before, before), where).verdict == "match"
        return record if was_shown else replace(record, earlier=None)


def sight_of(principal: Principal | None) -> Sight:
    return Everything() if principal is None else Granted(principal)
