"""What subscribers and consumers of a group hear, as types: the messages of docs/protocol.md.

Fields that aren't known are ignored; a message of a type that isn't known can't be decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from headgate.model.api import ErrorBody
from headgate.model.event import WHOLE_COLLECTION, Op

SHOWN = 200
"""Characters of a document that `print` shows."""
NO_TARGET = -1
"""Of what comes from a subscription, not from a consumer group."""

Acks = Literal["auto", "manual"]
Conditions = Sequence[Mapping[str, Any]]
"""A structured filter: conditions with `field`, `op` and `value` that must all hold."""


class Subscribed(msgspec.Struct, frozen=True, tag_field="type", tag="subscribed"):
    """Delivery starts after `positions`; nothing after them can be missed."""

    subscription: str
    topic: str
    positions: dict[int, int]


class _Record(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    seq: int
    event_id: str
    key: str | None
    collection: str
    op: Op
    raw: msgspec.Raw = msgspec.field(name="document")
    subscriptions: tuple[str, ...] = ()
    redelivery: bool = False
    """An operator had it sent again, outside the order: its `seq` may have been here before."""
    target: int = NO_TARGET
    """To a consumer of a group: the target it belongs to, and the epoch it is owned under."""
    epoch: int = 0
    deliveries: int = 1
    """To a consumer with `max_deliveries`: which delivery of it this is, as far as is known."""
    version: int = 1
    """To a consumer: the partitioning version of its topic that it was written under. Of one key,
    the lower version comes first, then the lower seq."""
    headers: dict[str, str] = {}
    """The short texts by name that its producer gave it."""

    @property
    def document(self) -> Any:
        """The document, decoded anew with every access."""
        return msgspec.json.decode(self.raw)

    def __repr__(self) -> str:
        """The event's place in the log, its key and the beginning of its document."""
        place = f"{self.topic}:{self.partition}:{self.seq}"
        again = ", redelivery=True" if self.redelivery else ""
        document = bytes(self.raw).decode(errors="replace")
        if len(document) > SHOWN:
            document = document[:SHOWN] + "…"
        if self.op in WHOLE_COLLECTION:
            what = f"{self.op} of {self.collection!r}"
            return f"{type(self).__name__}({place}, {what}{again}, document={document})"
        return (
            f"{type(self).__name__}({place}, {self.op}, "
            f"key={self.key!r}{again}, document={document})"
        )


class Event(_Record, frozen=True, tag_field="type", tag="event"):
    """One record; `raw` is its document as it was produced."""


class Left(_Record, frozen=True, tag_field="type", tag="left"):
    """A record that matched before this change and doesn't any more."""


_RESYNC_REASONS = {
    "retention": "are no longer kept",
    "gap": "were lost or skipped",
    "slow": "came faster than they left",
    "corrupt": "are corrupt",
    "lost_history": "are lost with the history of the log",
}


class Resync(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    tag="resync",
    rename={"after_seq": "after", "from_seq": "from"},
):
    """Matching records with after_seq < seq < from_seq are left out, because the log doesn't have
    them any more (`retention`), because a router couldn't read them or an operator skipped them
    (`gap`), because this subscriber was too slow (`slow`), or because what is stored isn't what was
    appended (`corrupt`: a router stops there, until an operator says how to go on). Or the origin
    that the topic is fed from has lost changes, which never came into the log (`origin`): one seq
    stands for all of them.
    A consumer may hear that the log has lost its history (`lost_history`): seqs that it has seen
    come again, and are other records. Or that an operator wants records again (`reset`): none are
    left out, and those from `from_seq` on come, also if a consumer has processed them before."""

    subscription: str
    topic: str
    partition: int
    after_seq: int
    from_seq: int
    reason: str
    target: int = NO_TARGET
    epoch: int = 0
    version: int = 1

    def __str__(self) -> str:
        if self.reason == "reset":
            return (
                f"partition {self.partition} of {self.topic} was reset; its records come again "
                f"from {self.from_seq} on"
            )
        if self.reason == "origin":
            return (
                f"the origin of {self.topic} has lost changes before seq {self.after_seq + 1} of "
                f"partition {self.partition}; going on from {self.from_seq}"
            )
        why = _RESYNC_REASONS.get(self.reason, "don't come")
        return (
            f"records {self.after_seq + 1} to {self.from_seq - 1} of partition {self.partition} of "
            f"{self.topic} {why}; going on from {self.from_seq}"
        )


class Failure(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """About one subscription, about one target of a consumer, or about the connection."""

    error: ErrorBody
    subscription: str | None = None
    target: int | None = None


class Redirect(msgspec.Struct, frozen=True, tag_field="type", tag="redirect"):
    """This subscriber, called `id`, belongs to another gateway, which takes it at `url`."""

    url: str
    gateway: str
    id: str


class Joined(msgspec.Struct, frozen=True, tag_field="type", tag="joined"):
    """The group as it is: its number of targets and its filter don't change any more.
    `tells_lost_history`: a log that has lost its history is told with that reason; from an older
    gateway it is told as `retention` after 0. `hears_held`: it can be told what is held back."""

    topic: str
    group: str
    consumer: str
    targets: int
    where: str | None = None
    tells_lost_history: bool = False
    hears_held: bool = False


class Assigned(msgspec.Struct, frozen=True, tag_field="type", tag="assigned"):
    """The target is this consumer's, from after `positions` on."""

    target: int
    epoch: int
    positions: dict[int, int]


class Revoke(msgspec.Struct, frozen=True, tag_field="type", tag="revoke"):
    """The target is wanted elsewhere: finish what is in hand, then say `released`."""

    target: int
    epoch: int


class Revoked(msgspec.Struct, frozen=True, tag_field="type", tag="revoked"):
    target: int
    epoch: int


class GivenUp(msgspec.Struct, frozen=True, tag_field="type", tag="given_up"):
    """An event, or a redelivery of it, was nacked too often and is a dead letter of the group."""

    target: int
    epoch: int
    partition: int
    seq: int
    redelivery: bool = False


class Ended(msgspec.Struct, frozen=True, tag_field="type", tag="ended"):
    """Everything that was acknowledged is saved, and the targets are free."""


Item = Event | Left | Resync
"""What clients yield."""
ToSubscriber = Subscribed | Failure | Redirect
ToConsumer = Joined | Assigned | Revoke | Revoked | GivenUp | Ended | Failure

decode_for_subscriber = msgspec.json.Decoder(Item | ToSubscriber).decode
decode_for_consumer = msgspec.json.Decoder(Item | ToConsumer).decode


def seq_of(item: Item) -> int:
    """Where it stands: up to there everything of its partition came, or was said not to come."""
    return item.from_seq - 1 if isinstance(item, Resync) else item.seq


def is_redelivery(item: Item) -> bool:
    """Whether it stands outside the order and is no position."""
    return not isinstance(item, Resync) and item.redelivery


def names_of(item: Item) -> tuple[str, ...]:
    """The subscriptions that it is for."""
    return (item.subscription,) if isinstance(item, Resync) else item.subscriptions
