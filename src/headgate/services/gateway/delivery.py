"""Takes the batches that lanes deliver, event by event.

Invariant: a verdict that settles an event means that it waits here for its subscribers, or that the
log will be read up to it for them, or that nobody here wants it. Decided without waiting, so the
order of a batch is the order of every queue.

An event that is in the log twice goes to a subscriber once, as far as ids are remembered: from
where it was seen first, provided that the subscriber began before that place. What an operator
wants delivered again goes to everybody it is for, or, while one of them has no room, to nobody yet;
that it arrives twice, because the answer got lost, is noticed for as long as ids are remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from headgate import errors
from headgate.decide.leaving import Kind
from headgate.decide.recent_ids import RecentIds
from headgate.decide.subscriber import Delivered
from headgate.model.delivery import Delivery, DeliveryAnswer, DeliveryBatch, Verdict
from headgate.model.event import Fence, PartitionRef
from headgate.services.gateway.subscriber import Subscriber
from headgate.services.gateway.subscriptions import Subscriptions
from headgate.services.gateway.wire import event_part, shared_part


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
        self._get = subscriptions.get
        self._recent = recent
        self._redelivered = None if recent is None else recent.alike()
        self._now_s = now_s
        self.verdicts: Counter[Verdict] = Counter()
        self.repeats = 0
        self.stopping = False
        """Nothing more is taken: lanes keep it for whoever serves the subscribers next."""

    @property
    def remembered(self) -> int:
        """Event ids."""
        return len(self._recent or ()) + len(self._redelivered or ())

    def accept(self, batch: DeliveryBatch) -> DeliveryAnswer:
        if batch.gateway_id != self._node_id:
            raise errors.NotFound(
                f"this is gateway {self._node_id}, not {batch.gateway_id}",
                gateway_id=self._node_id,
            )
        if self.stopping:
            later: list[Verdict] = ["retry"] * len(batch.deliveries)
            self.verdicts.update(later)
            return DeliveryAnswer(tuple(later))
        touched: dict[str, Subscriber] = {}
        verdicts = self._verdicts(batch, touched)
        self.verdicts.update(verdicts)
        for subscriber in touched.values():
            subscriber.ready()
            self._subscriptions.catch_up.wake(subscriber)
        budget = self._subscriptions.budget
        return DeliveryAnswer(
            tuple(verdicts),
            self._subscriptions.totals.depth,
            round(budget.taken_bytes / budget.limit_bytes, 3),
        )

    def _verdicts(self, batch: DeliveryBatch, touched: dict[str, Subscriber]) -> list[Verdict]:
        now_s = self._now_s()
        if self._recent is not None:
            self._recent.forget_old(now_s)
        verdicts: list[Verdict] = []
        fences: dict[tuple[str, int], int] = {}
        """The epoch under which each partition's records were admitted last."""
        for delivery in batch.deliveries:
            where = (delivery.topic, delivery.partition)
            if fences.get(where) != delivery.epoch:
                fence = Fence(delivery.epoch, batch.window, batch.attempt)
                if not self._subscriptions.fences.admit(PartitionRef(*where), fence):
                    verdicts.append("stale_fence")
                    continue
                fences[where] = delivery.epoch
            if delivery.lost_from:
                verdict = self._lost(delivery, touched)
            else:
                addressed = (
                    self._subscriptions.broadcasts.addressed(delivery)
                    if delivery.broadcast
                    else delivery
                )
                verdict = (
                    self._redeliver(addressed, touched)
                    if delivery.redelivery
                    else self._deliver(addressed, touched, now_s)
                )
            verdicts.append(verdict)
        return verdicts

    def _deliver(self, delivery: Delivery, touched: dict[str, Subscriber], now_s: float) -> Verdict:
        """What becomes of a record. This runs for every delivery there is, so what nearly all of
        them need is done in place: see docs/benchmarks/deliver.md."""
        place = partition, seq = delivery.partition, delivery.seq
        sinces, left = delivery.since, delivery.left
        recent, get = self._recent, self._get
        first = None
        if recent is not None:
            first = recent.see(delivery.topic, delivery.event_id, place, now_s)
        subscriptions: Sequence[str] = delivery.subscriptions
        verdict: Verdict = "no_subscriber"
        as_event = as_left = b""
        if not left and not sinces and (first is None or first == place):
            as_event = event_part(delivery)
            subscriptions = self._pass_on(delivery, as_event)
            if len(subscriptions) < len(delivery.subscriptions):
                verdict = "accepted"
        for index, subscription_id in enumerate(subscriptions):
            subscriber = get(subscription_id)
            if subscriber is None or subscriber.closing is not None:
                continue
            if first is not None and first != place and subscriber.covers(*first):
                self.repeats += 1
                verdict = "duplicate" if verdict == "no_subscriber" else verdict
                continue
            if left and subscription_id in left:
                shared = as_left = as_left or shared_part(delivery, "left")
            else:
                shared = as_event = as_event or event_part(delivery)
            since = sinces[index] if sinces and index < len(sinces) else 0
            outcome = subscriber.deliver(partition, seq, shared, since=since)
            if outcome is Delivered.DUPLICATE:
                verdict = "duplicate" if verdict == "no_subscriber" else verdict
            elif outcome is not Delivered.OVERFLOW:
                verdict = "accepted"
                touched[subscriber.id] = subscriber
        if first is None and recent is not None and verdict != "accepted":
            recent.take_back()
        return verdict

    def _pass_on(self, delivery: Delivery, message: bytes) -> list[str]:
        """Write to everybody who has nothing else waiting; returns those for whom that won't do.

        One event may go to ten thousand: nothing is done here that isn't needed for each of them.
        """
        partition, seq, get = delivery.partition, delivery.seq, self._get
        others: list[str] = []
        for subscription_id in delivery.subscriptions:
            subscriber = get(subscription_id)
            if subscriber is not None and (send := subscriber.send) is not None:
                feed = subscriber.feed
                flow = feed.flow if feed.flow is not None else feed.begin_flow()
                if flow is not None and flow.get(partition, seq) < seq:
                    flow[partition] = seq
                    send(message + subscriber.tail)
                    continue
            others.append(subscription_id)
        self._subscriptions.totals.sent += len(delivery.subscriptions) - len(others)
        return others

    def _lost(self, delivery: Delivery, touched: dict[str, Subscriber]) -> Verdict:
        """A gap: everybody on the topic who isn't past it hears of it."""
        verdict: Verdict = "no_subscriber"
        for subscriber in self._subscriptions:
            if subscriber.topic != delivery.topic or subscriber.closing is not None:
                continue
            outcome = subscriber.lost(delivery.partition, delivery.lost_from, delivery.seq)
            if outcome is Delivered.DUPLICATE:
                verdict = "duplicate" if verdict == "no_subscriber" else verdict
            elif outcome is not Delivered.OVERFLOW:
                verdict = "accepted"
                touched[subscriber.id] = subscriber
        return verdict

    def _redeliver(self, delivery: Delivery, touched: dict[str, Subscriber]) -> Verdict:
        found = [self._subscriptions.get(name) for name in delivery.subscriptions]
        here = [one for one in found if one is not None and one.closing is None]
        if not here:
            return "no_subscriber"
        # A reset takes a new epoch, so what it brings is never taken for that of the one before.
        place = delivery.partition, delivery.seq
        known = f"{place[0]}:{place[1]}:{delivery.epoch}:{delivery.subscriptions}"
        now_s = self._now_s()
        if self._redelivered is not None and self._redelivered.has(delivery.topic, known, now_s):
            return "duplicate"
        if not all(subscriber.feed.takes_redeliveries for subscriber in here):
            return "retry"
        for subscriber in here:
            kind: Kind = "left" if subscriber.id in delivery.left else "event"
            shared = shared_part(delivery, kind)
            subscriber.redeliver(delivery.partition, delivery.seq, shared)
            touched[subscriber.id] = subscriber
        if self._redelivered is not None:
            self._redelivered.see(delivery.topic, known, place, now_s)
            self._redelivered.forget_old(now_s)
        return "accepted"
