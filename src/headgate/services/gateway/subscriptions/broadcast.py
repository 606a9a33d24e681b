"""Finds out which subscriptions at this gateway want a record that was broadcast.

The gateway's own subscriptions are indexed as a lane's are; the index is built when the first such
delivery comes, and brought up to date before each batch, so where nothing is broadcast it costs
nothing. What filters and documents made for it take may be a second per record: everybody else at
this gateway has a turn in between. Invariant: the answer is for the subscriptions that are here at
the moment in which it is used: those that came while others were asked are asked after them, in
turns as well. A lane that waits no longer sends its batch again: then nobody is asked for the
former one any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager

import msgspec
from msgspec.structs import replace

from headgate import errors
from headgate.decide.filter.record_fields import with_record_fields
from headgate.decide.matching.index import MatchIndex
from headgate.decide.pacing import Pace
from headgate.model.delivery import Delivery, DeliveryBatch, record_of
from headgate.model.event import UNDECODABLE
from headgate.model.subscription import Subscription
from headgate.ports.machine import Machine

decode_document = msgspec.json.Decoder().decode


class Broadcasts:
    """`here` lists the subscriptions; it is asked once, `came` and `went` tell the rest."""

    def __init__(self, here: Callable[[], Iterable[Subscription]], machine: Machine) -> None:
        self._here = here
        self._now_s = machine.monotonic_s
        self._index: MatchIndex | None = None
        self._changed: dict[str, Subscription | None] = {}
        """What the index lacks, and None for what it has no more. Who came and went since isn't in
        it: there may be no other broadcast for long."""
        self._looking: set[Looking] = set()

    def came(self, subscription: Subscription) -> None:
        if self._index is not None:
            self._changed[subscription.id] = subscription
        for looking in self._looking:
            looking.came(subscription)

    def went(self, subscription_id: str) -> None:
        if self._index is not None and self._changed.pop(subscription_id, None) is None:
            self._changed[subscription_id] = None
        for looking in self._looking:
            looking.went(subscription_id)

    @contextmanager
    def looking(self, batch: DeliveryBatch) -> Iterator[Looking]:
        """It hears of who comes and goes for as long as this lasts."""
        looking = Looking(batch, self._up_to_date(), Pace(self._now_s))
        for former in self._looking:
            former.is_outdated = former.is_outdated or looking.comes_after(former)
        self._looking.add(looking)
        try:
            yield looking
        finally:
            self._looking.discard(looking)

    def _up_to_date(self) -> MatchIndex:
        if self._index is None:
            self._index = MatchIndex.of(self._here())
        elif self._changed:
            removals = [name for name, one in self._changed.items() if one is None]
            upserts = [one for one in self._changed.values() if one is not None]
            self._index = self._index.patched(upserts, removals)
            self._changed.clear()
        return self._index


class Looking:
    """Whom the broadcasts of a batch are for."""

    def __init__(self, batch: DeliveryBatch, index: MatchIndex, pace: Pace) -> None:
        self._deliveries = batch.deliveries
        self._sender = batch.window, batch.attempt
        self._records = {
            (one.topic, one.partition, one.seq, one.redelivery) for one in batch.deliveries
        }
        self.is_outdated = False
        """The lane has sent the batch again, so it doesn't wait for the answer to this one."""
        self._index = index
        self._pace = pace
        self._found: list[list[str]] = [[] for _ in batch.deliveries]
        """By the place in the batch, with nothing for what is no broadcast."""
        self._came: dict[str, Subscription] = {}
        """Subscriptions that are still to be asked, because they came after the others."""
        self._gone: set[str] = set()

    def came(self, subscription: Subscription) -> None:
        self._came[subscription.id] = subscription
        self._gone.discard(subscription.id)

    def went(self, subscription_id: str) -> None:
        self._came.pop(subscription_id, None)
        self._gone.add(subscription_id)

    def comes_after(self, former: Looking) -> bool:
        """A lane sends no record in two batches at a time."""
        is_of_its_sender = former._sender == self._sender
        return is_of_its_sender and not self._records.isdisjoint(former._records)

    async def look(self) -> None:
        """Ask which subscriptions want each delivery, and then those that came meanwhile, until
        none did; raises NotNow when no lane waits for the answer any more."""
        self._pace.begin()
        await self._ask(self._index, ())
        while self._came:
            came, self._came = self._came, {}
            await self._ask(MatchIndex.of(came.values()), came)

    async def _ask(self, index: MatchIndex, anew: Container[str]) -> None:
        """Ask the subscriptions of `index`; earlier answers of those that are asked `anew` don't
        count any more."""
        for number, delivery in enumerate(self._deliveries):
            if delivery.broadcast:
                before = [name for name in self._found[number] if name not in anew]
                self._found[number] = before + _wanted_by(index, delivery)
            if self._pace.is_over():
                await asyncio.sleep(0)
                self._pace.begin()
                if self.is_outdated:
                    raise errors.NotNow("its sender has sent it again")

    def addressed(self, number: int) -> Delivery:
        """The delivery of that number in the batch, for all here who want it; to be asked for in
        the moment in which `look` is over.

        What its lane didn't know of counts as not read for up to there: the log is looked into.
        """
        assert not self._came, "they are asked first"
        delivery = self._deliveries[number]
        found = [name for name in self._found[number] if name not in self._gone]
        unknown = tuple(name for name in found if name not in delivery.subscriptions)
        if not unknown:
            return delivery
        known_since = delivery.since or (0,) * len(delivery.subscriptions)
        return replace(
            delivery,
            subscriptions=(*delivery.subscriptions, *unknown),
            since=(*known_since, *((delivery.seq - 1,) * len(unknown))),
        )


def _wanted_by(index: MatchIndex, delivery: Delivery) -> list[str]:
    document: object = None
    if index.needs_document(delivery.topic):
        try:
            document = with_record_fields(
                decode_document(delivery.document), delivery.key, delivery.collection
            )
        except UNDECODABLE:
            document = None  # it matches subscriptions without a filter, as it does in a lane
    matched = index.match(record_of(delivery), document).by_gateway
    return [name for ids in matched.values() for name in ids]
