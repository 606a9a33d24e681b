"""A subscriber under a grant's filter.

The filter is part of what it subscribed with, so nothing that the filter excludes is ever matched
for it. What is left to do here: a record that has left what it watches is told, with everything,
also where the grant excludes its new state; of that the subscriber is told the key alone.
"""

from __future__ import annotations

from headgate.decide.access.showing import shows, shows_event
from headgate.decide.feed.feed import Delivered, Feed, Read
from headgate.decide.filter.plan import Filter
from headgate.model.delivery import Delivery
from headgate.model.event_message import read_part
from headgate.model.subscription import Subscription
from headgate.services.gateway.subscriptions.live import LiveSubscription, Totals
from headgate.services.gateway.wire import kind_of, left_as_key


class RestrictedSubscription(LiveSubscription):
    """`shown` says which records it may be shown."""

    __slots__ = ("_shown",)

    def __init__(
        self,
        subscription: Subscription,
        *,
        name: str,
        matches: Filter,
        feed: Feed[bytes],
        starts: dict[int, int],
        totals: Totals,
        version: int = 1,
        shown: Filter,
    ) -> None:
        super().__init__(
            subscription,
            name=name,
            matches=matches,
            feed=feed,
            starts=starts,
            totals=totals,
            version=version,
        )
        self._shown = shown

    def deliver(self, partition: int, seq: int, shared: bytes, *, since: int) -> Delivered:
        return super().deliver(partition, seq, self._seen(shared), since=since)

    def redeliver(self, partition: int, seq: int, shared: bytes, mark: object) -> None:
        super().redeliver(partition, seq, self._seen(shared), mark)

    def replayed(self, read: Read, through_seq: int, matches: list[tuple[int, bytes]]) -> None:
        seen = [(seq, self._seen(message)) for seq, message in matches]
        super().replayed(read, through_seq, seen)

    def may_see(self, delivery: Delivery) -> bool:
        return shows_event(self._shown, delivery)

    def _seen(self, message: bytes) -> bytes:
        if kind_of(message) != "left":
            return message
        event = read_part(message)
        if shows(self._shown, bytes(event.document), event.key, event.collection):
            return message
        return left_as_key(event)
