"""Takes what an operator wants delivered again: a partition that was reset, dead letters.

Invariant: everybody it is for gets it once, as far as it is remembered who has had it, in the order
in which lanes send. Subscribers with room take it; for the others it is put off, with all that
follows of its partition in the batch, whatever it is (`Round`): the lane sends that again, before
anything newer. So one that doesn't read holds nobody but itself. Only while there is too much to
remember, it goes to nobody yet.

What is parked comes page by page (`Delivery.from_seq`): then it is known of each subscriber by
itself how far it is (decide/feed/paged.py), it is left out of all pages behind what was put off for
it, and the lane hears from where on somebody has room again. Nothing has to be remembered per
record.

A partition that was reset may bring records that were parked until then: what somebody has not had
yet is no redelivery to them, but the record itself (`Delivery.in_turn`), unless it was a dead
letter at the end of a partitioning version, and they have gone on to the next. To targets of
consumer groups it never is a redelivery: their positions are put back, and they read it in the log.

A redelivery is no position that anybody could resume from. So it isn't settled before every
connection it is for has taken it, and every consumer has acknowledged it: until then the lane hears
`retry`, keeps it, and asks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.decide.feed.matched_or_left import Kind
from headgate.decide.feed.paged import Paged
from headgate.decide.feed.redelivered import Redelivered, Sending, sending_of
from headgate.model.delivery import Delivery, GoOn, Verdict
from headgate.model.event import PartitionRef
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.services.gateway.subscriptions.subscriptions import Subscriptions
from headgate.services.gateway.wire import shared_part


@dataclass(slots=True)
class Round:
    """What became of a batch so far: the subscriptions that got something of it, those that `had` a
    record (by partition and seq) before, the first record that was put off for a subscription in a
    partition, and its pages, each with its first and last seq."""

    now_s: float
    touched: dict[str, LiveSubscription] = field(default_factory=dict)
    had: set[tuple[str, int, int]] = field(default_factory=set)
    put_off: dict[tuple[str, int], int] = field(default_factory=dict)
    pages: dict[PartitionRef, tuple[int, int]] = field(default_factory=dict)

    def is_put_off(self, subscriber: LiveSubscription, delivery: Delivery) -> bool:
        """Must the subscriber wait for something older?"""
        partition, from_seq = delivery.partition, delivery.from_seq
        if self.put_off and (subscriber.id, partition) in self.put_off:
            return True
        return from_seq > 0 and subscriber.is_held(partition, from_seq)

    def turns_to(self, delivery: Delivery) -> None:
        if delivery.from_seq:
            ref = PartitionRef(delivery.topic, delivery.partition)
            self.pages[ref] = delivery.from_seq, delivery.seq


@dataclass(slots=True)
class _Behind:
    """The subscriptions for which something of a partition was put off, and how far its pages
    went."""

    reached_seq: int = 0
    names: set[str] = field(default_factory=set)


class Redelivering:
    def __init__(self, subscriptions: Subscriptions, redelivered: Redelivered) -> None:
        self._subscriptions = subscriptions
        self._redelivered = redelivered
        self._behind: dict[PartitionRef, _Behind] = {}

    @property
    def remembered(self) -> int:
        return len(self._redelivered)

    def take(self, delivery: Delivery, round_: Round) -> Verdict:
        found = [self._subscriptions.get(name) for name in delivery.subscriptions]
        here = [one for one in found if one is not None and one.closing is None]
        if not here:
            return "no_subscriber"
        sending = sending_of(delivery)
        self._redelivered.forget_old(round_.now_s)
        had = self._had_by(sending, here)
        if delivery.in_turn:
            had = had.union([one.id for one in here if _goes_back_itself(one, delivery)])
        missing = [one for one in here if one.id not in had]
        firsts = [one for one in missing if _is_first(one, delivery, round_)]
        others = [one for one in missing if one not in firsts] if firsts else missing
        messages = _Messages(delivery)
        takers = _takers(others, delivery, messages, round_)
        have = had.union([one.id for one in (*takers, *firsts)])
        if delivery.from_seq:
            _keep_page(sending, [one for one in here if one.id in have])
            if have.issubset([one.id for one in here]):  # of each it is known by its pages now
                self._redelivered.forget(sending)
        elif not self._redelivered.put_off(
            sending, have, round_.now_s, are_all=have.issuperset([one.id for one in here])
        ):
            takers, firsts, have = [], [], had
            self._redelivered.put_off(sending, have, round_.now_s)
        _hand_out(delivery, takers, messages, round_)
        _deliver(delivery, firsts, round_)
        late = [one.id for one in missing if one.id not in have]
        for name in late:
            round_.put_off.setdefault((name, delivery.partition), delivery.seq)
        if late or any(one.awaits(sending) for one in here):
            return "retry"
        if not delivery.from_seq:
            self._redelivered.settled(sending, have, round_.now_s)
        return "accepted" if takers or firsts else "duplicate"

    def _had_by(self, sending: Sending, here: Sequence[LiveSubscription]) -> frozenset[str]:
        _, partition, seq, wish = sending
        known = [
            one.id
            for one in here
            if one.awaits(sending)
            or (one.paged is not None and one.paged.has_had(partition, wish, seq))
        ]
        return self._redelivered.had_by(sending).union(known)

    def ended(self, round_: Round) -> tuple[GoOn, ...]:
        """The batch is over: how the lane may go on with the pages that it had."""
        return tuple([self._turned(ref, *page, round_) for ref, page in round_.pages.items()])

    def _turned(self, ref: PartitionRef, from_seq: int, last_seq: int, round_: Round) -> GoOn:
        behind = self._behind.setdefault(ref, _Behind())
        behind.reached_seq = max(last_seq, behind.reached_seq)
        behind.names.update([name for name, number in round_.put_off if number == ref.partition])
        wanted: list[int] = []
        for subscriber in self._of_topic(ref.topic, behind.names):
            paged = subscriber.paged = subscriber.paged or Paged()
            paged.paged(
                ref.partition,
                from_seq=from_seq,
                last_seq=last_seq,
                reached_seq=behind.reached_seq,
                put_off=round_.put_off.get((subscriber.id, ref.partition)),
            )
            seq = paged.put_off.get(ref.partition)
            if seq is None:
                behind.names.discard(subscriber.id)
            elif subscriber.feed.wants_redeliveries:
                wanted.append(seq)
        if not behind.names:
            del self._behind[ref]
        return GoOn(ref.topic, ref.partition, min(wanted, default=0))

    def _of_topic(self, topic: str, names: set[str]) -> Iterable[LiveSubscription]:
        """Those who are here; the others are forgotten."""
        for name in tuple(names):
            subscriber = self._subscriptions.get(name)
            if subscriber is None or subscriber.closing is not None or subscriber.topic != topic:
                names.discard(name)
            else:
                yield subscriber


class _Messages:
    """The messages that one delivery makes, one for each kind of subscriber, each made once."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._made: dict[Kind, bytes] = {}

    def of(self, subscriber: LiveSubscription) -> bytes:
        kind: Kind = "left" if subscriber.id in self._delivery.left else "event"
        message = self._made.get(kind)
        if message is None:
            message = self._made[kind] = shared_part(self._delivery, kind)
        return message


def _takers(
    subscribers: Sequence[LiveSubscription],
    delivery: Delivery,
    messages: _Messages,
    round_: Round,
) -> list[LiveSubscription]:
    """The subscriptions with room, which they share: what one takes isn't there for the next. Room
    that appears within a batch is for what was put off before."""
    takers: list[LiveSubscription] = []
    taken_bytes = 0
    for one in subscribers:
        has_room = one.feed.takes_redelivery(beside_bytes=taken_bytes)
        if has_room and not round_.is_put_off(one, delivery):
            takers.append(one)
            taken_bytes += len(messages.of(one))
    return takers


def _is_first(subscriber: LiveSubscription, delivery: Delivery, round_: Round) -> bool:
    """Whether it is the record itself to them, and stands where they are."""
    feed, place = subscriber.feed, (delivery.partition, delivery.seq)
    return (
        delivery.in_turn
        and not feed.has_reached(*place)
        and not (feed.has_passed(*place) and subscriber.subscription.shard is None)
        and not round_.is_put_off(subscriber, delivery)
    )


def _goes_back_itself(subscriber: LiveSubscription, delivery: Delivery) -> bool:
    """Whether it has what a reset brings again, and gets that by its own position: a target of a
    consumer group begins there anew."""
    return subscriber.subscription.shard is not None and subscriber.feed.has_reached(
        delivery.partition, delivery.seq
    )


def _keep_page(sending: Sending, subscribers: Iterable[LiveSubscription]) -> None:
    _, partition, seq, wish = sending
    for subscriber in subscribers:
        subscriber.paged = subscriber.paged or Paged()
        subscriber.paged.had(partition, wish, seq)


def _deliver(delivery: Delivery, firsts: list[LiveSubscription], round_: Round) -> None:
    """As any other record, which a position guards from now on."""
    if not firsts:
        return
    record = replace(delivery, redelivery=False)
    since = dict(zip(delivery.subscriptions, delivery.since, strict=False))
    for subscriber in firsts:
        kind: Kind = "left" if subscriber.id in delivery.left else "event"
        shared = shared_part(record, kind)
        subscriber.deliver(
            delivery.partition, delivery.seq, shared, since=since.get(subscriber.id, 0)
        )
        round_.touched[subscriber.id] = subscriber


def _hand_out(
    delivery: Delivery, takers: list[LiveSubscription], messages: _Messages, round_: Round
) -> None:
    for subscriber in takers:
        shared = messages.of(subscriber)
        subscriber.redeliver(delivery.partition, delivery.seq, shared, sending_of(delivery))
        round_.touched[subscriber.id] = subscriber
        subscriber.ready()
    for subscriber in takers:
        subscriber.write()
