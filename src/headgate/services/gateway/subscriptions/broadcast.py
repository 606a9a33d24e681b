"""Finds out who at this gateway wants a record that was sent to whom it may concern.

The gateway's own subscriptions are indexed as a lane's are; the index is built when the first such
delivery comes, and brought up to date before each one, so where nothing is broadcast it costs
nothing. Invariant: the answer is for the subscriptions that are here at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from headgate.decide.filter.record_fields import with_record_fields
from headgate.decide.matching.index import MatchIndex
from headgate.model.delivery import Delivery, record_of
from headgate.model.subscription import Subscription

decode_document = msgspec.json.Decoder().decode


class Broadcasts:
    """`here` lists the subscriptions; it is asked once, `came` and `went` tell the rest."""

    def __init__(self, here: Callable[[], Iterable[Subscription]]) -> None:
        self._here = here
        self._index: MatchIndex | None = None
        self._changed: dict[str, Subscription | None] = {}
        """What the index lacks, and None for what it has no more. Who came and went since isn't in
        it: there may be no other broadcast for long."""

    def came(self, subscription: Subscription) -> None:
        if self._index is not None:
            self._changed[subscription.id] = subscription

    def went(self, subscription_id: str) -> None:
        if self._index is not None and self._changed.pop(subscription_id, None) is None:
            self._changed[subscription_id] = None

    def addressed(self, delivery: Delivery) -> Delivery:
        """`delivery` for all here who want it.

        What its lane didn't know of counts as not read for up to there: the log is looked into.
        """
        found = self._wanted_by(delivery)
        unknown = tuple(name for name in found if name not in delivery.subscriptions)
        if not unknown:
            return delivery
        known_since = delivery.since or (0,) * len(delivery.subscriptions)
        return replace(
            delivery,
            subscriptions=(*delivery.subscriptions, *unknown),
            since=(*known_since, *((delivery.seq - 1,) * len(unknown))),
        )

    def _wanted_by(self, delivery: Delivery) -> list[str]:
        index = self._up_to_date()
        document: object = None
        if index.needs_document(delivery.topic):
            try:
                document = with_record_fields(
                    decode_document(delivery.document), delivery.key, delivery.collection
                )
            except msgspec.DecodeError:
                document = None  # it matches whoever has no filter, as it does in a lane
        matched = index.match(record_of(delivery), document).by_gateway
        return [name for ids in matched.values() for name in ids]

    def _up_to_date(self) -> MatchIndex:
        if self._index is None:
            self._index = MatchIndex.of(self._here())
        elif self._changed:
            removals = [name for name, one in self._changed.items() if one is None]
            upserts = [one for one in self._changed.values() if one is not None]
            self._index = self._index.patched(upserts, removals)
            self._changed.clear()
        return self._index
