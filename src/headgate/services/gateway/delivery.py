"""Takes the batches that lanes deliver, event by event.

Invariant: a verdict that settles an event means that it waits here for its subscribers, or that the
log will be read up to it for them, or that nobody here wants it. Decided without waiting, so the
order of a batch is the order of every queue.
"""

from __future__ import annotations

from collections import Counter

from headgate import errors
from headgate.adapters.http.messages import Request, Response, json_response
from headgate.decide.subscriber import Delivered
from headgate.model.delivery import Delivery, DeliveryAnswer, DeliveryBatch, Verdict
from headgate.model.event import Fence, PartitionRef
from headgate.services.gateway.subscriber import Subscriber
from headgate.services.gateway.subscriptions import Subscriptions
from headgate.services.gateway.wire import shared_part

MAX_BATCH_BYTES = 256 * 1024 * 1024


class Deliveries:
    def __init__(self, node_id: str, subscriptions: Subscriptions) -> None:
        self._node_id = node_id
        self._subscriptions = subscriptions
        self.verdicts: Counter[Verdict] = Counter()

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
        verdict: Verdict = "no_subscriber"
        shared: bytes | None = None
        for index, subscription_id in enumerate(delivery.subscriptions):
            subscriber = self._subscriptions.get(subscription_id)
            if subscriber is None or subscriber.closing is not None:
                continue
            if shared is None:
                shared = shared_part(delivery)
            since = delivery.since[index] if index < len(delivery.since) else 0
            outcome = subscriber.deliver(delivery.partition, delivery.seq, shared, since=since)
            if outcome is Delivered.DUPLICATE:
                verdict = "duplicate" if verdict == "no_subscriber" else verdict
            else:
                verdict = "accepted"
                touched[subscriber.id] = subscriber
        return verdict
