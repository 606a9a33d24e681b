"""What a principal is shown of what is about many topics, or about records of them.

Invariant: whatever is left out is left out as if it weren't there: not counted, not named.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from headgate.decide.access.deciding import enforced, knows_topic, may
from headgate.decide.connectors.whole_collection import collections_of
from headgate.decide.delivery.gaps import is_marker
from headgate.decide.filter.plan import Filter
from headgate.decide.filter.record_fields import with_record_fields
from headgate.errors import Forbidden
from headgate.model.access import EVERY, Action, Principal
from headgate.model.delivery import Delivery
from headgate.model.event import UNDECODABLE, WHOLE_COLLECTION, Record
from headgate.model.letters import Letter
from headgate.model.topology import Topology

_decode = msgspec.json.Decoder().decode


def routed_by(principal: Principal, topology: Topology) -> Topology:
    """The topology that producers need, with only the topics that the principal may know of."""
    topics = tuple(one for one in topology.topics if knows_topic(principal, one.name))
    names = {topic.name for topic in topics}
    return Topology(
        topology.generation,
        topics,
        tuple(node for node in topology.nodes if node.role == "ingest"),
        tuple(owner for owner in topology.logs if owner.ref.topic in names),
        deleted=tuple(name for name in topology.deleted if knows_topic(principal, name)),
    )


def shows(shown: Filter | None, document: bytes, key: str | None, collection: str) -> bool:
    """Whether a grant's filter, if there is one, lets a record with that document be seen: one that
    has a document."""
    if shown is None:
        return True
    try:
        decoded = with_record_fields(_decode(document), key, collection)
    except UNDECODABLE:
        return False
    return shown.matches(decoded)


def shows_event(shown: Filter | None, event: Record | Delivery) -> bool:
    """The same for an event as a whole. What is about a whole collection is hidden where that is
    excluded; that an origin has lost changes is for everybody on the topic."""
    if shown is None or is_marker(event):
        return True
    if event.op in WHOLE_COLLECTION:
        return not shown.excludes(*collections_of(event.op, event.collection, event.document))
    return shows(shown, bytes(event.document), event.key, event.collection)


def without_hidden(shown: Filter | None, record: Record) -> Record | None:
    """The record as the principal may see it: not at all, or without its earlier state."""
    if not shows_event(shown, record):
        return None
    if record.earlier and not shows(shown, record.earlier, record.key, record.collection):
        return msgspec.structs.replace(record, earlier=None)
    return record


@dataclass(slots=True)
class Sight:
    """Which letters a principal sees, to read them or to change them."""

    principal: Principal | None
    action: Action
    _filters: dict[str, Filter | None] = field(default_factory=dict)

    @property
    def see_all(self) -> bool:
        """No letter is hidden from them."""
        if self.principal is None:
            return True
        about = [
            one
            for one in self.principal.grants
            if one.action == self.action and one.area == "letters"
        ]
        free = any(not one.deny and one.topics == EVERY and one.where is None for one in about)
        return free and not any(one.deny for one in about)

    def sees(self, letter: Letter) -> bool:
        if self.principal is None:
            return True
        event = letter.delivery
        if not may(self.principal, self.action, "letters", topic=event.topic):
            return False
        if event.topic not in self._filters:
            try:
                limit = enforced(self.principal, self.action, "letters", topic=event.topic)
            except Forbidden:  # a claim is missing: the principal sees nothing of that topic
                return False
            self._filters[event.topic] = None if limit is None else limit.filter
        limit_to = self._filters[event.topic]
        if letter.damage:  # whether a filter would show it can't be told any more
            return limit_to is None
        return shows_event(limit_to, event)
