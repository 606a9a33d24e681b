"""What a subscriber reads: the messages of docs/protocol.md, as bytes.

Ordinary records come as messages already: model/event_message.py. Invariant: a record is encoded
once however many subscribers get it (all but the subscription's own id is shared), and its document
is passed through as it was produced, never parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headgate import errors
from headgate.decide.feed.matched_or_left import Kind
from headgate.decide.feed.queue import Resync
from headgate.model.access import Principal
from headgate.model.delivery import Delivery
from headgate.model.event import Op, Record
from headgate.model.event_message import EventMessage
from headgate.model.groups import Group
from headgate.services.gateway.subscriptions.placing import Redirect


class _Subscribed(msgspec.Struct, tag_field="type", tag="subscribed"):
    subscription: str
    topic: str
    positions: dict[str, int]


class _Resync(msgspec.Struct, tag_field="type", tag="resync", rename={"from_seq": "from"}):
    subscription: str
    topic: str
    partition: int
    after: int
    from_seq: int
    reason: str


_Headers = msgspec.Raw | msgspec.UnsetType
_encoder = msgspec.json.Encoder(enc_hook=str)
CLOSE_REDIRECT = 4307
"""The close code of a connection whose subscriber belongs elsewhere; the others are WebSocket's."""
CLOSE_UNAUTHORIZED = 4401
"""That of one whose token is wrong or not good any more: come again with another."""
CLOSE_OK = 1000
CLOSE_GOING_AWAY = 1001
CLOSE_POLICY = 1008
CLOSE_TOO_BIG = 1009
CLOSE_FAILED = 1011
CLOSE_LATER = 1013
_NULL, _OPENED = msgspec.Raw(b"null"), msgspec.Raw(b"[")
_LEFT = b'{"type":"left"'
_SUBSCRIPTIONS = b',"subscriptions":['


def shared_part(record: Record | Delivery, kind: Kind = "event", op: Op | None = None) -> bytes:
    """An event message up to the subscription ids; `own_part` adds those.

    `op` is what the record's own means here, where that is another.
    """
    document = record.document
    event = EventMessage(
        kind,
        record.topic,
        record.partition,
        record.seq,
        record.event_id,
        record.key,
        record.collection,
        op or record.op,
        document if isinstance(document, msgspec.Raw) else msgspec.Raw(document),
        True if isinstance(record, Delivery) and record.redelivery else msgspec.UNSET,
        _headers(record.headers),
    )
    return _encoder.encode(event)[:-1]


def _headers(headers: msgspec.Raw | msgspec.UnsetType | bytes | None) -> _Headers:
    """As a record or a delivery has them."""
    if headers is None:
        return msgspec.UNSET
    return msgspec.Raw(headers) if isinstance(headers, bytes) else headers


def kind_of(message: bytes) -> Kind:
    """What `shared_part` made it."""
    return "left" if message.startswith(_LEFT) else "event"


def encode_name(subscription: str) -> bytes:
    return _encoder.encode(subscription)


def own_part(*encoded_names: bytes) -> bytes:
    """What ends an event message for these subscriptions."""
    return b",".join(encoded_names) + b"]}"


def resync_message(subscription: str, topic: str, mark: Resync) -> bytes:
    return _encoder.encode(
        _Resync(subscription, topic, mark.partition, mark.after_seq, mark.from_seq, mark.reason)
    )


def target_part(target: int, epoch: int, *, version: int = 1, deliveries: int = 1) -> bytes:
    """What ends an event message for the consumer that owns `target`; how often it was handed out,
    and of which partitioning version it is, are said from the second on."""
    about = {"target": target, "epoch": epoch}
    if version > 1:
        about["version"] = version
    if deliveries > 1:
        about["deliveries"] = deliveries
    return _encoder.encode(about)[1:]


def for_target(shared: bytes, part: bytes) -> bytes:
    """An event message for a consumer: `shared_part`, which names no subscriptions here."""
    return shared[: -len(_SUBSCRIPTIONS)] + b"," + part


def resync_for_target(topic: str, mark: Resync, part: bytes) -> bytes:
    message = _Resync("", topic, mark.partition, mark.after_seq, mark.from_seq, mark.reason)
    return _encoder.encode(message)[:-1] + b"," + part


def target_message(
    kind: str, target: int, epoch: int, positions: Mapping[int, int] | None = None
) -> bytes:
    """`assigned`, with the positions after which it begins, `revoke` or `revoked`."""
    about: dict[str, Any] = {"type": kind, "target": target, "epoch": epoch}
    if positions is not None:
        about["positions"] = {str(number): seq for number, seq in sorted(positions.items())}
    return _encoder.encode(about)


def given_up_message(
    target: int, epoch: int, partition: int, seq: int, *, redelivery: bool
) -> bytes:
    """The event is a dead letter of the group: nobody has to acknowledge it any more."""
    about: dict[str, Any] = {"type": "given_up", "target": target, "epoch": epoch}
    again = {"redelivery": True} if redelivery else {}
    return _encoder.encode({**about, "partition": partition, "seq": seq, **again})


def joined_message(group: Group, consumer: str) -> bytes:
    return _encoder.encode(
        {
            "type": "joined",
            "topic": group.topic,
            "group": group.name,
            "consumer": consumer,
            "targets": group.targets,
            "where": group.where,
            "tells_lost_history": True,
            "hears_held": True,
        }
    )


def target_error(error: errors.HeadgateError, target: int) -> bytes:
    body: dict[str, Any] = {"code": error.code, "message": error.message, "details": error.details}
    return _encoder.encode({"type": "error", "target": target, "error": body})


ENDED = b'{"type":"ended"}'


def unsubscribed_message(subscription: str) -> bytes:
    return _encoder.encode({"type": "unsubscribed", "subscription": subscription})


def redirect_message(redirect: Redirect) -> bytes:
    gateway = redirect.gateway
    return _encoder.encode(
        {
            "type": "redirect",
            "url": gateway.ws_url,
            "gateway": gateway.id,
            "id": redirect.subscriber_id,
        }
    )


def authenticated_message(principal: Principal) -> bytes:
    """The client's principal is known, and until when (null: until it is revoked)."""
    ends = principal.expires_ms or None
    return _encoder.encode(
        {"type": "authenticated", "principal": principal.name, "expires_at_ms": ends}
    )


def left_as_key(message: EventMessage) -> bytes:
    """A `left`, up to the ids, without anything of the record but what it is about."""
    bare = msgspec.structs.replace(
        message, document=_NULL, headers=msgspec.UNSET, subscriptions=_OPENED
    )
    return _encoder.encode(bare)[:-1]


def pong_message(id_: str) -> bytes:
    return _encoder.encode({"type": "pong", "id": id_})


def subscribed_message(subscription_id: str, topic: str, positions: Mapping[int, int]) -> bytes:
    named = {str(partition): seq for partition, seq in sorted(positions.items())}
    return _encoder.encode(_Subscribed(subscription_id, topic, named))


def error_message(error: errors.HeadgateError, subscription: str | None = None) -> bytes:
    """`subscription`: the one that the error is about, if it isn't about the connection."""
    body: dict[str, Any] = {"code": error.code, "message": error.message, "details": error.details}
    about = {} if subscription is None else {"subscription": subscription}
    return _encoder.encode({"type": "error", **about, "error": body})


def vector(positions: Mapping[int, int]) -> str:
    """Positions as one short string, `0:15,1:22`: the last seq of each partition."""
    return ",".join(f"{partition}:{seq}" for partition, seq in sorted(positions.items()))


def sse_event(kind: str, message: bytes, positions: Mapping[int, int] | None = None) -> bytes:
    """`message` as one server-sent event.

    A line break in JSON can only be white space between tokens, and would end the data line.
    """
    if b"\n" in message or b"\r" in message:
        message = message.replace(b"\n", b" ").replace(b"\r", b" ")
    place = f"id: {vector(positions)}\n" if positions is not None else ""
    return f"{place}event: {kind}\ndata: ".encode() + message + b"\n\n"


SSE_KEEP_ALIVE = b": keep-alive\n\n"
