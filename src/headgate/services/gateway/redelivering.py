"""Takes what an operator wants delivered again: a partition that was reset, dead letters.

Invariant: everybody it is for gets it once, as far as it is remembered who has had it, in the order
in which lanes send. Whoever has room takes it; for the others it is put off, with all that follows
of its partition in the batch, whatever it is (`Round`): the lane sends that again, before anything
newer. So one that doesn't read holds nobody but itself. Only while there is too much to remember,
it goes to nobody yet.

It is no position that anybody could resume from. So it isn't settled before every connection it is
for has taken it, and every consumer has acknowledged it: until then the lane hears `retry`, keeps
it, and asks again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.decide.redelivered import Redelivered, sending_of
from headgate.model.delivery import Delivery, Verdict
from headgate.services.gateway.subscriber import Subscriber
from headgate.services.gateway.subscriptions import Subscriptions
from headgate.services.gateway.wire import shared_part


@dataclass(slots=True)
class Round:
    """What became of a batch so far: who got something of it, and for whom something was put off,
    in which partition."""

    now_s: float
    touched: dict[str, Subscriber] = field(default_factory=dict)
    put_off: set[tuple[str, int]] = field(default_factory=set)


class Redelivering:
    def __init__(self, subscriptions: Subscriptions, redelivered: Redelivered) -> None:
        self._subscriptions = subscriptions
        self._redelivered = redelivered

    @property
    def remembered(self) -> int:
        return len(self._redelivered)

    def take(self, delivery: Delivery, round_: Round) -> Verdict:
        found = [self._subscriptions.get(name) for name in delivery.subscriptions]
        here = [one for one in found if one is not None and one.closing is None]
        if not here:
            return "no_subscriber"
        sending = sending_of(delivery)
        redelivered, now_s = self._redelivered, round_.now_s
        redelivered.forget_old(now_s)
        waiting = [one.id for one in here if one.awaits(sending)]
        had = redelivered.had_by(sending).union(waiting)
        missing = [one for one in here if one.id not in had]
        takers = [one for one in missing if _may_take(one, delivery.partition, round_)]
        have = had.union([one.id for one in takers])
        if not redelivered.put_off(sending, have, now_s):
            takers, have = [], had
            redelivered.put_off(sending, have, now_s)
        _hand_out(delivery, takers, round_)
        late = [one.id for one in missing if one.id not in have]
        round_.put_off.update([(name, delivery.partition) for name in late])
        if late or any(one.awaits(sending) for one in here):
            return "retry"
        redelivered.settled(sending, have, now_s)
        return "accepted" if takers else "duplicate"


def _may_take(subscriber: Subscriber, partition: int, round_: Round) -> bool:
    """Room that appears within a batch is for what was put off before."""
    return subscriber.feed.takes_redeliveries and (subscriber.id, partition) not in round_.put_off


def _hand_out(delivery: Delivery, takers: list[Subscriber], round_: Round) -> None:
    as_event = as_left = b""
    for subscriber in takers:
        if subscriber.id in delivery.left:
            shared = as_left = as_left or shared_part(delivery, "left")
        else:
            shared = as_event = as_event or shared_part(delivery)
        subscriber.redeliver(delivery.partition, delivery.seq, shared, sending_of(delivery))
        round_.touched[subscriber.id] = subscriber
        subscriber.ready()
    for subscriber in takers:
        subscriber.write()
