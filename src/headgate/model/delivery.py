"""What a lane sends to a gateway, and what the gateway answers, event by event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from headgate.model.event import Op, Record
from headgate.model.event_message import event_part

Verdict = Literal["accepted", "duplicate", "no_subscriber", "stale_fence", "retry", "rejected"]
"""`accepted`, `duplicate` and `no_subscriber` settle the event; `retry` means not now, `rejected`
never; a sender whose fence is stale must stop. A gateway that rejects an event takes nothing newer
of its partition in the same answer: that has to wait until its letter is written."""

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
    wish: int = 0
    """Of a redelivery: the number of the operator's wish that brings it, the same from every sender
    and under every epoch; a later wish has another one. 0, as from an older router: the epoch tells
    wishes apart."""
    from_seq: int = 0
    """Of a parked record: the batch has all that is parked of the partition from this seq on, up to
    the last one in it; what is older may be unsettled, and comes again (0: nothing is left out)."""
    headers: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """A JSON object of texts; only where the record has some."""
    in_turn: bool = False
    """Of a redelivery: it comes where its record stands, since its partition is read again. A
    subscriber that has not had the record yet, because it was parked until then, takes it as the
    record itself."""


def record_of(delivery: Delivery) -> Record:
    """What matching looks at of the record: its topic, for shards its key, and, where a collection
    was renamed, to what."""
    return Record(
        delivery.topic,
        delivery.partition,
        delivery.seq,
        0,
        delivery.event_id,
        delivery.key,
        delivery.collection,
        delivery.op,
        bytes(delivery.document) if delivery.op == "rename" else b"",
        None,
        None,
        delivery.time_ms,
    )


def identity(delivery: Delivery) -> str:
    """The event id and, if there is one, the key: ids may be chosen for each key by itself.

    A slash ends the id. One that has slashes of its own begins with a slash and its length, so that
    no two identities read the same.
    """
    return identity_of(delivery.event_id, delivery.collection, delivery.key)


def identity_of(event_id: str, collection: str, key: str | None) -> str:
    if not event_id or "/" in event_id:
        event_id = f"/{len(event_id)}:{event_id}"
    return event_id if key is None else f"{event_id}/{collection}/{key}"


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Deliveries of one partition that follow each other: the seq and the subscriptions of each."""

    partition: int
    epoch: int
    seqs: tuple[int, ...]
    subscriptions: tuple[tuple[str, ...], ...]


class Outline(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a batch of ordinary records of one topic that is needed to settle it: the place
    of each record, and its subscriptions."""

    gateway_id: str
    window: int
    attempt: int
    topic: str
    runs: tuple[Run, ...]
    incarnation: str = ""

    def __len__(self) -> int:
        return sum([len(run.seqs) for run in self.runs])

    def names(self) -> set[str]:
        """All subscriptions that it is for."""
        return {name for run in self.runs for names in run.subscriptions for name in names}


class Batch(Protocol):
    """What a gateway is given: a DeliveryBatch, or one that is still to be read."""

    @property
    def gateway_id(self) -> str: ...

    @property
    def window(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    @property
    def incarnation(self) -> str: ...

    @property
    def deliveries(self) -> tuple[Delivery, ...]: ...

    @property
    def outline(self) -> Outline | None: ...

    @property
    def identities(self) -> Sequence[str]:
        """What tells the event of each delivery from all others of its topic: opaque, equal for
        the same event whatever its place."""

    @property
    def messages(self) -> Sequence[bytes]:
        """What subscribers read of each delivery: see `event_part`."""


class DeliveryBatch(msgspec.Struct, frozen=True):
    """Deliveries of one lane, in `seq` order per partition.

    With the epoch on each delivery, `window` and `attempt` complete the sender's fence.
    `incarnation` is the process of the gateway whose subscriptions it names; any other, which can't
    know them, refuses it (empty from an older router: the gateway that gets it takes it).
    """

    gateway_id: str
    window: int
    attempt: int
    deliveries: tuple[Delivery, ...]
    incarnation: str = ""

    @property
    def identities(self) -> list[str]:
        """Made for every delivery, so nearly all are made without another call."""
        return [
            f"{event_id}/{one.collection}/{one.key}"
            if (event_id := one.event_id) and "/" not in event_id and one.key is not None
            else identity(one)
            for one in self.deliveries
        ]

    @property
    def messages(self) -> list[bytes]:
        return [event_part(delivery) for delivery in self.deliveries]

    @property
    def outline(self) -> Outline | None:
        """None where there is anything but records of one topic that everybody here is to have."""
        if not self.deliveries:
            return None
        topic = self.deliveries[0].topic
        runs: list[Run] = []
        partition, epoch = -1, -1
        seqs: list[int] = []
        subscriptions: list[tuple[str, ...]] = []
        for delivery in self.deliveries:
            if (
                delivery.topic != topic
                or delivery.since
                or delivery.left
                or delivery.redelivery
                or delivery.lost_from
                or delivery.broadcast
                or delivery.from_seq
            ):
                return None
            if delivery.partition != partition or delivery.epoch != epoch:
                if seqs:
                    runs.append(Run(partition, epoch, tuple(seqs), tuple(subscriptions)))
                partition, epoch = delivery.partition, delivery.epoch
                seqs, subscriptions = [], []
            seqs.append(delivery.seq)
            subscriptions.append(delivery.subscriptions)
        runs.append(Run(partition, epoch, tuple(seqs), tuple(subscriptions)))
        sender = self.gateway_id, self.window, self.attempt
        return Outline(*sender, topic, tuple(runs), self.incarnation)


class GoOn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Parked records of this partition that are newer than what was sent may be sent, though some
    of that isn't settled: the gateway keeps the order of each subscriber. `wanted_seq`: from there
    on a subscriber has room for what was put off (0: none has)."""

    topic: str
    partition: int
    wanted_seq: int = 0


class DeliveryAnswer(msgspec.Struct, frozen=True):
    """One verdict per delivery, in order; `fill` is how much of the memory that the gateway has for
    its subscribers is taken (0 to 1). Where deliveries have a `from_seq`, `go_on` says of their
    partitions how to continue."""

    verdicts: tuple[Verdict, ...]
    fill: float = 0.0
    go_on: tuple[GoOn, ...] = ()
