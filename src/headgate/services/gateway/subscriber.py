"""One subscriber of this gateway: its feed, its filter, and whoever writes to its connection.

Invariant: `ready` is called, synchronously, whenever there may be something new to take or the
subscriber was closed; taking is up to the connection, at its own pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headgate import errors
from headgate.decide.filter.plan import Filter
from headgate.decide.subscriber import Delivered, Feed, Item, Read
from headgate.model.subscription import Subscription
from headgate.services.gateway.wire import own_part


@dataclass(slots=True)
class Totals:
    """What this gateway reports of all its subscribers together."""

    depth: int = 0
    sent: int = 0


def _nobody() -> None:
    """Nobody is connected yet."""


class Subscriber:
    def __init__(
        self,
        subscription: Subscription,
        *,
        matches: Filter,
        feed: Feed[bytes],
        starts: dict[int, int],
        totals: Totals,
    ) -> None:
        self.subscription = subscription
        self.id = subscription.id
        self.topic = subscription.topic
        self.matches = matches
        self.feed = feed
        self.starts = starts
        self.tail = own_part(subscription.id)
        self.ready: Callable[[], None] = _nobody
        self.closing: errors.HeadgateError | None = None
        self.catching_up: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._totals = totals

    # --- in --------------------------------------------------------------------------------------

    def deliver(self, partition: int, seq: int, shared: bytes, *, since: int) -> Delivered:
        """Take one live delivery. Who calls also calls `ready`, once per batch."""
        outcome = self.feed.deliver(partition, seq, shared, since=since)
        if outcome is Delivered.QUEUED:
            self._totals.depth += 1
        return outcome

    def replayed(self, read: Read, through_seq: int, matches: list[tuple[int, bytes]]) -> None:
        if self.closing is not None:
            return
        self.feed.replayed(read, through_seq, matches)
        self._totals.depth += len(matches)
        self.ready()

    # --- out -------------------------------------------------------------------------------------

    def take(self) -> Item[bytes] | None:
        item = self.feed.take()
        if item is not None:
            self._totals.depth -= 1
            self._totals.sent += 1
            if self.catching_up is not None and self.feed.roomy:
                self._room.set()
        return item

    async def room(self) -> None:
        """Until the queue is half empty, or the subscriber closed."""
        while self.closing is None and not self.feed.roomy:
            self._room.clear()
            await self._room.wait()

    # --- end -------------------------------------------------------------------------------------

    def close(self, reason: errors.HeadgateError) -> None:
        """No more deliveries; the connection says why, and ends."""
        if self.closing is not None:
            return
        self.closing = reason
        self._totals.depth -= len(self.feed)
        if self.catching_up is not None:
            self.catching_up.cancel()
        self._room.set()
        self.ready()
