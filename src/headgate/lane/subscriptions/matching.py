"""From records to deliveries: whom each record concerns, as it is now and as it was before.

Invariant: what is made of one list of records uses one index and one set of routes, the newest
there were when it began; a document that can't be read matches nothing, and is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from headgate.decide.delivery.routing import Routes
from headgate.decide.feed.matched_or_left import SoftDeletes, leavers
from headgate.decide.filter.record_fields import with_record_fields
from headgate.lane.positions.partition import SourcePartition
from headgate.lane.subscriptions.adopted import Adopted
from headgate.model.delivery import Delivery, record_of
from headgate.model.event import UNDECODABLE, WHOLE_COLLECTION, Op, Record

NOBODY: dict[str, tuple[str, ...]] = {}

decode_document = msgspec.json.Decoder().decode


class Matching:
    """`soft_delete` is the path of the mark that deletes a record; empty: none does."""

    def __init__(self, adopted: Adopted, soft_delete: str) -> None:
        self._adopted = adopted
        self._soft_deletes = SoftDeletes(soft_delete) if soft_delete else None
        self.routes = Routes(())
        """Swapped for others when the gateways change."""
        self.filter_errors = 0

    def deliveries(
        self, partition: SourcePartition, records: Iterable[Record]
    ) -> Iterator[tuple[Record, dict[str, Delivery]]]:
        """Each record that a subscription wants, with its delivery per gateway; to be used up
        without an await."""
        index, soft_deletes, routes = self._adopted.index, self._soft_deletes, self.routes
        needs_document = index.needs_document(partition.ref.topic) or soft_deletes is not None
        for record in records:
            document = earlier = None
            if needs_document and record.op not in WHOLE_COLLECTION:
                about = record.key, record.collection
                document = with_record_fields(self._decoded(record.document), *about)
                if record.earlier:
                    earlier = with_record_fields(self._decoded(record.earlier), *about)
            matched = index.match(record, document)
            self.filter_errors += matched.failures
            by_gateway, left = matched.by_gateway, NOBODY
            if earlier is None and not by_gateway:
                continue
            if earlier is not None:
                left = leavers(index.match(record, earlier).by_gateway, by_gateway)
            op = soft_deletes.op(record.op, document, earlier) if soft_deletes else record.op
            made: dict[str, Delivery] = {}
            for gateway_id in {**left, **by_gateway} if left else by_gateway:
                gone = left.get(gateway_id, ())
                subscriptions = (*by_gateway.get(gateway_id, ()), *gone)
                since = self._adopted.since(partition.ref, subscriptions)
                made[gateway_id] = _delivery(record, op, subscriptions, gone, partition, since)
            if made and not routes.lead_to(made):
                made = rerouted(made, routes, record.seq)
            if made and record.seq <= partition.redeliver_to:
                made = {gateway_id: self._to_groups(one) for gateway_id, one in made.items()}
            if made:
                yield record, made

    def _to_groups(self, delivery: Delivery) -> Delivery:
        """The redelivery as it is, or as an ordinary record where it is for targets of consumer
        groups alone: groups go back by their own positions, so they drop it as a repeat, and need
        no letter when a consumer leaves."""
        found = [self._adopted.index.subscription(name) for name in delivery.subscriptions]
        if delivery.broadcast or any(one is None or one.shard is None for one in found):
            return delivery
        return replace(delivery, redelivery=False, wish=0, in_turn=False)

    def anew(self, delivery: Delivery) -> dict[str, Delivery]:
        """A delivery that was made before, for the subscriptions that want the record now, per
        gateway: those that it matches, and those that were told that it had left their filter and
        are still there."""
        index = self._adopted.index
        document: object = None
        if index.needs_document(delivery.topic):
            document = with_record_fields(
                self._decoded(bytes(delivery.document)), delivery.key, delivery.collection
            )
        found = {**index.match(record_of(delivery), document).by_gateway}
        left: dict[str, tuple[str, ...]] = {}
        for name in delivery.left:
            subscription = index.subscription(name)
            if subscription is None or name in found.get(subscription.gateway_id, ()):
                continue
            left[subscription.gateway_id] = (*left.get(subscription.gateway_id, ()), name)
        return {
            gateway_id: replace(
                delivery,
                subscriptions=(*found.get(gateway_id, ()), *left.get(gateway_id, ())),
                left=left.get(gateway_id, ()),
                since=(),
                broadcast=False,
                in_turn=False,
            )
            for gateway_id in {**left, **found}
        }

    def _decoded(self, document: bytes) -> object:
        """The document, or None for one that can't be decoded."""
        try:
            return decode_document(document)
        except UNDECODABLE:
            self.filter_errors += 1
            return None


def rerouted(made: dict[str, Delivery], routes: Routes, turn: int) -> dict[str, Delivery]:
    """What goes out instead of deliveries that were made for the holders of subscriptions."""
    shares = routes.of({gateway: one.subscriptions for gateway, one in made.items()}, turn)
    for_anybody = replace(
        next(iter(made.values())), subscriptions=(), since=(), left=(), broadcast=True
    )
    return {
        gateway: (
            replace(made[gateway], broadcast=share.broadcast)
            if share.subscriptions
            else for_anybody
        )
        for gateway, share in shares.items()
    }


def _delivery(
    record: Record,
    op: Op,
    subscriptions: tuple[str, ...],
    left: tuple[str, ...],
    partition: SourcePartition,
    since: tuple[int, ...],
) -> Delivery:
    again = record.seq <= partition.redeliver_to
    return Delivery(
        record.topic,
        record.partition,
        record.seq,
        record.event_id,
        record.key,
        record.collection,
        op,
        msgspec.Raw(record.document),
        subscriptions,
        partition.fence.epoch,
        record.time_ms,
        since,
        left,
        again,
        wish=partition.wish if again else 0,
        headers=msgspec.UNSET if record.headers is None else msgspec.Raw(record.headers),
        in_turn=again,
    )
