"""What a subscriber hears and asks, as types, and how far one of its subscriptions is.

Invariant: `positions` only grow, but for `rewind`, which takes them back to what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from headgate import errors
from headgate.model.api import ErrorBody
from headgate.model.event import Op
from headgate.model.subscription import Priority

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

    @property
    def document(self) -> Any:
        """The document, decoded anew with every access."""
        return msgspec.json.decode(self.raw)


class Event(_Record, frozen=True, tag_field="type", tag="event"):
    """One record; `raw` is its document as it was produced."""


class Left(_Record, frozen=True, tag_field="type", tag="left"):
    """A record that matched before this change and doesn't any more."""


_RESYNC_REASONS = {
    "retention": "are no longer kept",
    "gap": "were lost or skipped",
    "slow": "came faster than they left",
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
    (`gap`), or because this subscriber was too slow (`slow`)."""

    subscription: str
    topic: str
    partition: int
    after_seq: int
    from_seq: int
    reason: str
    target: int = NO_TARGET
    epoch: int = 0

    def __str__(self) -> str:
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


Item = Event | Left | Resync
"""What a subscriber yields."""
Message = Subscribed | Item | Failure | Redirect

decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Subscription:
    """One question of a subscriber, and how far its answers have come."""

    def __init__(
        self,
        id_: str,
        topic: str,
        *,
        where: str | None,
        filter_: Conditions | None,
        start: str,
        priority: Priority,
        tenant: str = "",
    ) -> None:
        self.id = id_
        self.topic = topic
        self.positions: dict[int, int] = {}
        self.acknowledged: dict[int, int] = {}
        self.subscribed: Subscribed | None = None
        self._where = where
        self._filter = filter_
        self._start = start
        self._priority = priority
        self._tenant = tenant
        self._unsaid: dict[int, int] = {}

    def request(self) -> bytes:
        """Asks for everything after the positions, or from the start if there are none."""
        asked: dict[str, Any] = {"type": "subscribe", "id": self.id, "topic": self.topic}
        if self._where is not None:
            asked["where"] = self._where
        if self._filter is not None:
            asked["filter"] = self._filter
        if self._priority != "normal":
            asked["priority"] = self._priority
        if self._tenant:
            asked["tenant"] = self._tenant
        if self.positions:
            asked["from"] = {str(number): seq + 1 for number, seq in self.positions.items()}
        else:
            asked["from"] = self._start
        return msgspec.json.encode(asked)

    def begin(self, answer: Subscribed) -> None:
        self.subscribed = answer
        for partition, seq in answer.positions.items():
            self.positions.setdefault(partition, seq)
            self.acknowledged.setdefault(partition, seq)

    def advance(self, partition: int, seq: int) -> bool:
        """Whether `seq` is new; then it is where this subscription is."""
        if seq <= self.positions.get(partition, 0):
            return False
        self.positions[partition] = seq
        return True

    def acknowledge(self, partition: int, seq: int) -> None:
        if seq > self.positions.get(partition, 0):
            raise errors.InvalidRequest(
                f"subscription {self.id} is at seq {self.positions.get(partition, 0)} of partition "
                f"{partition}, so {seq} can't be acknowledged"
            )
        if seq > self.acknowledged.get(partition, 0):
            self.acknowledged[partition] = self._unsaid[partition] = seq

    def rewind(self) -> None:
        """What was not acknowledged comes again."""
        self.positions = dict(self.acknowledged)

    def acknowledgement(self) -> bytes | None:
        """What the gateway hasn't been told yet, if anything."""
        if not self._unsaid:
            return None
        said: Mapping[str, int] = {str(number): seq for number, seq in self._unsaid.items()}
        self._unsaid.clear()
        return msgspec.json.encode({"type": "ack", "subscription": self.id, "positions": said})

    def forget_unsaid(self) -> None:
        """A new connection begins after all that was acknowledged."""
        self._unsaid.clear()
