"""Which collections a filter excludes, whatever their documents are.

A record about a whole collection (model.event.WHOLE_COLLECTION) has no document that a filter could
be asked about. Of the conditions that must all hold for the filter to hold, those that look at
nothing but `_collection` can be answered all the same; where one of them is false, no record of
that collection can match, and the filter excludes it. Everything else is unknown, and excludes
nothing: so is a condition that fails, one that also looks at another field, and an `||` with such a
one in it.

A record that concerns two collections (decide.connectors.whole_collection) is excluded where both
are.

Invariant: the answer depends on the filter and the collections alone, so that a lane, a gateway and
the sender of a letter that is retried give the same one.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.decide.filter.compile import condition
from headgate.decide.filter.fast import Constants, Test
from headgate.decide.filter.paths import Document
from headgate.decide.filter.record_fields import COLLECTION_FIELD
from headgate.decide.filter.syntax import And, Expression, Field, children, conjuncts


def exclusion_of(shape: Expression) -> Test | None:
    """What is false for the fields of a record whose collection is excluded; None: none is."""
    known = tuple(part for part in conjuncts(shape) if _is_about_collections(part))
    if not known:
        return None
    return condition(And(known)) if len(known) > 1 else condition(known[0])


def excludes(exclusion: Test | None, constants: Constants, known: Sequence[Document]) -> bool:
    """Whether a filter with that `exclusion` wants nothing of any collection of which this is
    `known`."""
    if exclusion is None:
        return False
    return all(exclusion(one, constants) is False for one in known)


def known_of(collection: str) -> Document:
    """What is known of every document of `collection`: what an exclusion is asked about."""
    return {COLLECTION_FIELD: collection} if collection else {}


def _is_about_collections(node: Expression) -> bool:
    """Whether its answer is the same for all documents of a collection."""
    if isinstance(node, Field):
        return node.name == COLLECTION_FIELD
    return all(map(_is_about_collections, children(node)))
