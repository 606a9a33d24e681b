"""What subscribers read of a record: the `event` message of docs/protocol.md, as bytes.

Invariant: all of it but the ids of the subscriptions is the same for everybody, so it is made once
however many get it; the document is passed through as it was produced, never parsed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import msgspec

from headgate.model.event import Op

if TYPE_CHECKING:
    from headgate.model.delivery import Delivery

_OPENED = msgspec.Raw(b"[")


class EventMessage(msgspec.Struct, frozen=True, gc=False):
    type: Literal["event", "left"]
    topic: str
    partition: int
    seq: int
    event_id: str
    key: str | None
    collection: str
    op: Op
    document: msgspec.Raw
    redelivery: bool | msgspec.UnsetType = msgspec.UNSET
    """Only where it is one."""
    headers: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Only where there are some."""
    subscriptions: msgspec.Raw = _OPENED
    """Whose ids and brackets are added for each that gets it."""


_encoder = msgspec.json.Encoder()
_encode = _encoder.encode
_decode = msgspec.json.Decoder(EventMessage).decode
_CLOSED = b"]}"


def event_part(delivery: Delivery) -> bytes:
    """The message of an ordinary delivery, up to the ids of the subscriptions."""
    return _encode(_message(delivery))[:-1]


def event_lines(deliveries: Iterable[Delivery]) -> bytes:
    """The `event_part` of each, with `}` and a line break behind it."""
    return _encoder.encode_lines([_message(delivery) for delivery in deliveries])


def read_part(part: bytes) -> EventMessage:
    """What `event_part` made; raises msgspec.DecodeError for anything else."""
    return _decode(part + _CLOSED)


def _message(delivery: Delivery) -> EventMessage:
    return EventMessage(
        "event",
        delivery.topic,
        delivery.partition,
        delivery.seq,
        delivery.event_id,
        delivery.key,
        delivery.collection,
        delivery.op,
        delivery.document,
        headers=delivery.headers,
    )
