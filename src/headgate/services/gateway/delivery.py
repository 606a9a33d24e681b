"""Takes the batches that lanes deliver, event by event.

Invariant: a verdict that settles an event means that it waits here for its subscribers, or that the
log will be read up to it for them, or that nobody here wants it. Decided without waiting, so the
order of a batch is the order of every queue.

An event that is in the log twice goes to a subscriber once, as far as ids are remembered: from
where it was seen first, provided that the subscriber began before that place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from headgate import errors
from headgate.adapters.http.messages import Request, Response, json_response
from headgate.decide.leaving import Kind
from headgate.decide.recent_ids import Place, RecentIds
from headgate.decide.subscriber import Delivered
from headgate.model.delivery import Delivery, DeliveryAnswer, DeliveryBatch, Verdict
from headgate.model.event import Fence, PartitionRef
from headgate.services.gateway.subscriber import Subscriber
from headgate.services.gateway.subscriptions import Subscriptions
from headgate.services.gateway.wire import shared_part

MAX_BATCH_BYTES = 256 * 1024 * 1024


class Deliveries:
    """`recent` None: events are not told apart by their ids."""

    def __init__(
        self,
        node_id: str,
        subscriptions: Subscriptions,
        *,
        recent: RecentIds | None,
        now_s: Callable[[], float],
    ) -> None:
        self._node_id = node_id
        self._subscriptions = subscriptions
        self._recent = recent
        self._now_s = now_s
        self.verdicts: Counter[Verdict] = Counter()
        self.repeats = 0

    async def endpoint(self, request: Request) -> Response:
        """POST /internal/v1/streamer/events"""
        return json_response(self.accept(await request.decode(DeliveryBatch, MAX_BATCH_BYTES)))

    def accept(self, batch: DeliveryBatch) -> DeliveryAnswer:
        if batch.gateway_id != self._node_id:
            raise errors.NotFound(
                f"this is gateway {self._node_id}, not {batch.gateway_id}",
                gateway_id=self._node_id,
            )
        touched: dict[str, Subscriber] = {}
        verdicts = tuple(self._verdict(batch, delivery, touched) for delivery in batch.deliveries)
        self.verdicts.update(verdicts)
        for subscriber in touched.values():
            subscriber.ready()
            self._subscriptions.catch_up.wake(subscriber)
        return DeliveryAnswer(verdicts, self._subscriptions.totals.depth)

    def _verdict(
        self, batch: DeliveryBatch, delivery: Delivery, touched: dict[str, Subscriber]
    ) -> Verdict:
        ref = PartitionRef(delivery.topic, delivery.partition)
        if not self._subscriptions.fences.admit(
            ref, Fence(delivery.epoch, batch.window, batch.attempt)
        ):
            return "stale_fence"
        place = Place(delivery.partition, delivery.seq)
        first = self._seen_before(delivery, place)
        verdict: Verdict = "no_subscriber"
        encoded: dict[Kind, bytes] = {}
        for index, subscription_id in enumerate(delivery.subscriptions):
            subscriber = self._subscriptions.get(subscription_id)
            if subscriber is None or subscriber.closing is not None:
                continue
            if first is not None and subscriber.covers(first.partition, first.seq):
                self.repeats += 1
                verdict = "duplicate" if verdict == "no_subscriber" else verdict
                continue
            kind: Kind = "left" if subscription_id in delivery.left else "event"
            shared = encoded.get(kind)
            if shared is None:
                shared = encoded[kind] = shared_part(delivery, kind)
            since = delivery.since[index] if index < len(delivery.since) else 0
            if subscriber.pass_on(delivery.partition, delivery.seq, shared, since=since):
                verdict = "accepted"
                continue
            outcome = subscriber.deliver(delivery.partition, delivery.seq, shared, since=since)
            if outcome is Delivered.DUPLICATE:
                verdict = "duplicate" if verdict == "no_subscriber" else verdict
            elif outcome is not Delivered.OVERFLOW:
                verdict = "accepted"
                touched[subscriber.id] = subscriber
        if verdict == "accepted" and self._recent is not None:
            self._recent.remember(delivery.topic, delivery.event_id, place, self._now_s())
        return verdict

    def _seen_before(self, delivery: Delivery, place: Place) -> Place | None:
        """Where else this event was delivered from lately."""
        if self._recent is None or delivery.redelivery:
            return None
        return self._recent.elsewhere(delivery.topic, delivery.event_id, place, self._now_s())
