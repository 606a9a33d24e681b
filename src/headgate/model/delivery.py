"""What a lane sends to a gateway, and what the gateway answers, event by event."""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.event import Op

Verdict = Literal["accepted", "duplicate", "no_subscriber", "stale_fence", "retry", "rejected"]
"""`accepted`, `duplicate` and `no_subscriber` settle the event; `retry` means not now, `rejected`
never; a sender whose fence is stale must stop."""

SETTLING_VERDICTS: frozenset[Verdict] = frozenset({"accepted", "duplicate", "no_subscriber"})


class Delivery(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One record for one gateway, with every subscription there that it matched.

    The document travels as raw JSON, so that no hop parses it again.
    """

    topic: str
    partition: int
    seq: int
    event_id: str
    key: str | None
    collection: str
    op: Op
    document: msgspec.Raw
    subscriptions: tuple[str, ...]
    epoch: int
    time_ms: int = 0
    since: tuple[int, ...] = ()
    """Per subscription the seq up to which this lane read without it; empty when it had all of
    them from its start."""
    left: tuple[str, ...] = ()
    """Those of `subscriptions` that the record matched before this change and doesn't any more."""
    redelivery: bool = False
    """Sent again on purpose, by an operator: it passes though its seq or its event id was here
    before, outside the order, and subscribers see the mark."""
    lost_from: int = 0
    """Not a record but a gap: the records from here up to `seq` are lost, and the subscriptions of
    the topic at this gateway (`subscriptions` is empty) are told to resync (0: a record)."""
    broadcast: bool = False
    """The gateway is to look itself who else there wants the record: `subscriptions` has only those
    that the sender knows to be there."""


class DeliveryBatch(msgspec.Struct, frozen=True):
    """Deliveries of one lane, in `seq` order per partition.

    With the epoch on each delivery, `window` and `attempt` complete the sender's fence.
    """

    gateway_id: str
    window: int
    attempt: int
    deliveries: tuple[Delivery, ...]


class DeliveryAnswer(msgspec.Struct, frozen=True):
    """One verdict per delivery, in order; `depth` is how many events wait at the gateway, `fill`
    how much of what it can hold that is (0 to 1)."""

    verdicts: tuple[Verdict, ...]
    depth: int = 0
    fill: float = 0.0
