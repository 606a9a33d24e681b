"""A delivery for some of its subscriptions, and one for those of two deliveries of one record.

A record may fall apart at a gateway: shed for one subscription, sent to another. Invariant: every
subscription keeps what belongs to it, how far the lane had read without it (`since`) and whether
the record left it (`left`).
"""

from __future__ import annotations

import msgspec

from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef


def narrowed(delivery: Delivery, names: frozenset[str]) -> Delivery:
    """`delivery` for those of its subscriptions that are in `names`."""
    if names.issuperset(delivery.subscriptions):
        return delivery
    since = delivery.since
    return msgspec.structs.replace(
        delivery,
        subscriptions=tuple(name for name in delivery.subscriptions if name in names),
        since=tuple(since[at] for at, name in enumerate(delivery.subscriptions) if name in names)
        if since
        else (),
        left=tuple(name for name in delivery.left if name in names),
    )


def for_nobody_else(delivery: Delivery) -> Delivery:
    """`delivery` without the gateway's look for other subscriptions: that would find those it was
    shed for."""
    if not delivery.broadcast:
        return delivery
    return msgspec.structs.replace(delivery, broadcast=False)


def joined(one: Delivery, other: Delivery) -> Delivery:
    """Two deliveries of one record to one gateway as one, for the subscriptions of both.

    `other` is the newer one: its word on a subscription counts, but for `since`, of which the
    larger one makes the gateway look into the log. Two gaps that end at one place are the longer; a
    gap covers a record that it ends with, not the other way round.
    """
    if other == one:
        return one
    if one.lost_from and other.lost_from:
        return msgspec.structs.replace(other, lost_from=min(one.lost_from, other.lost_from))
    if one.lost_from or other.lost_from:
        gap = one if one.lost_from else other
        return msgspec.structs.replace(gap, epoch=max(one.epoch, other.epoch))
    names = (*one.subscriptions, *(n for n in other.subscriptions if n not in one.subscriptions))
    since = _since_by_name(one)
    for name, seq in _since_by_name(other).items():
        since[name] = max(seq, since.get(name, 0))
    kept_left = tuple(name for name in one.left if name not in other.subscriptions)
    return msgspec.structs.replace(
        other,
        subscriptions=names,
        since=tuple(since[name] for name in names) if one.since or other.since else (),
        left=(*kept_left, *other.left),
        epoch=max(one.epoch, other.epoch),
        redelivery=one.redelivery or other.redelivery,
        broadcast=one.broadcast or other.broadcast,
        wish=other.wish or one.wish,
        in_turn=_is_in_turn(one) and _is_in_turn(other) and (one.redelivery or other.redelivery),
    )


def _is_in_turn(delivery: Delivery) -> bool:
    return delivery.in_turn or not delivery.redelivery


def _since_by_name(delivery: Delivery) -> dict[str, int]:
    since = delivery.since or (0,) * len(delivery.subscriptions)
    return dict(zip(delivery.subscriptions, since, strict=True))


def ref_of(delivery: Delivery) -> PartitionRef:
    return PartitionRef(delivery.topic, delivery.partition)
