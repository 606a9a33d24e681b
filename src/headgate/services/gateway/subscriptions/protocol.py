"""What a subscriber sends over WebSocket: the messages of docs/protocol.md, parsed.

Invariant: `parse` never raises anything but InvalidRequest, whatever the bytes are. A message whose
type is known comes back, as itself or as a Misfit that says what is wrong with it; anything else is
not this protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from headgate import errors
from headgate.decide.feed.start_positions import parse_positions
from headgate.model.subscription import Priority

MAX_FRAME_BYTES = 64 * 1024
MAX_NAME_CHARS = 128

T = TypeVar("T")
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]


class Subscribe(
    msgspec.Struct,
    tag_field="type",
    tag="subscribe",
    forbid_unknown_fields=True,
    rename={"from_": "from"},
):
    """`id` is the client's own name for the subscription, unique on its connection. What `filter`
    may be is for decide.filter.structured to say."""

    id: Name
    topic: str
    where: str | None = None
    filter: Any = None
    from_: str | dict[str, int] = "now"
    priority: Priority = "normal"
    tenant: str = ""


class Unsubscribe(msgspec.Struct, tag_field="type", tag="unsubscribe", forbid_unknown_fields=True):
    subscription: Name


class Ack(msgspec.Struct, tag_field="type", tag="ack", forbid_unknown_fields=True):
    """Everything up to `positions` (partition to seq) has been processed."""

    subscription: Name
    positions: dict[str, int]


class Ping(msgspec.Struct, tag_field="type", tag="ping", forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)] = ""


class _Envelope(msgspec.Struct):
    type: str
    id: Name | None = None
    subscription: Name | None = None


Incoming = Subscribe | Unsubscribe | Ack | Ping
TYPES = ("subscribe", "unsubscribe", "ack", "ping")


class Misfit(msgspec.Struct, frozen=True):
    """A message of a known type that says something impossible about `name`."""

    name: str | None
    error: errors.InvalidRequest


_incoming: msgspec.json.Decoder[Incoming] = msgspec.json.Decoder(Incoming)
_envelope: msgspec.json.Decoder[_Envelope] = msgspec.json.Decoder(_Envelope)


def parse(frame: bytes) -> Incoming | Misfit:
    """Raises InvalidRequest for what isn't a message at all."""
    return parse_as(frame, _incoming, TYPES)


def parse_as(frame: bytes, decoder: msgspec.json.Decoder[T], types: Sequence[str]) -> T | Misfit:
    """The same for any kind of connection; `types` are those that `decoder` knows."""
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError) as error:
        problem = _shown(error)
    try:
        envelope = _envelope.decode(frame)
    except (msgspec.DecodeError, RecursionError):
        envelope = _Envelope("")
    if envelope.type not in types:
        raise errors.InvalidRequest(
            f"a frame is not a message of this protocol ({problem}); send JSON objects whose type "
            f"is {', '.join(types[:-1])} or {types[-1]}, as text"
        )
    refused = errors.InvalidRequest(f"a message of type {envelope.type} is wrong: {problem}")
    return Misfit(envelope.id or envelope.subscription, refused)


def positions_in(named: Mapping[str, int]) -> dict[int, int]:
    """The positions of a message. Raises InvalidRequest for what can't be one."""
    text = ",".join(f"{partition}:{seq}" for partition, seq in named.items())
    return parse_positions(text, "positions")


def _shown(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it nests too deeply"
    return str(error)[:300]
