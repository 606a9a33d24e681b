"""What a consumer of a group sends over WebSocket: the messages of docs/protocol.md, parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from headgate.errors import InvalidRequest
from headgate.model.api import NAME_PATTERN
from headgate.services.gateway.subscriptions.protocol import Misfit, Ping, parse_as

MOST_KEYS = 10**12
MOST_DELIVERIES = 10_000
MOST_AT_WORK = 1_000
MOST_HELD = 1_000

GroupName = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
Incarnation = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class Join(
    msgspec.Struct,
    tag_field="type",
    tag="join",
    forbid_unknown_fields=True,
    rename={"from_": "from"},
):
    """`consumer` is unique in the group, `incarnation` for every process that uses it. What makes
    a new group (`keys`, `from`) means nothing where the group is there already. `max_deliveries`:
    what it is handed so often in vain becomes a dead letter of the group; 0: it comes for ever.
    `at_work`: target, partition, seq and delivery of what it works on, from a connection before."""

    topic: str
    group: GroupName
    consumer: GroupName
    incarnation: Incarnation
    keys: Annotated[int, msgspec.Meta(ge=0, le=MOST_KEYS)] = 0
    where: str | None = None
    filter: Any = None
    from_: str | dict[str, int] = "now"
    max_deliveries: Annotated[int, msgspec.Meta(ge=0, le=MOST_DELIVERIES)] = 0
    at_work: Annotated[list[tuple[int, int, int, int]], msgspec.Meta(max_length=MOST_AT_WORK)] = []


class TargetAck(msgspec.Struct, tag_field="type", tag="ack", forbid_unknown_fields=True):
    """Everything of the target up to `positions` (partition to seq) has been processed, and those
    redeliveries (partition to seqs), for which positions say nothing. `processed` (partition to
    seqs) are events beyond the positions: something before them is wanted later."""

    target: int
    epoch: int
    positions: dict[str, int] = {}
    redelivered: dict[str, list[int]] = {}
    processed: dict[str, list[int]] = {}


class TargetNack(msgspec.Struct, tag_field="type", tag="nack", forbid_unknown_fields=True):
    """The consumer failed with an event of the target, or with a redelivery of it, for the time
    number `deliveries`; it has it in hand still."""

    target: int
    epoch: int
    partition: int
    seq: int
    deliveries: Annotated[int, msgspec.Meta(ge=1, le=MOST_DELIVERIES)]
    redelivery: bool = False


class TargetHeld(msgspec.Struct, tag_field="type", tag="held", forbid_unknown_fields=True):
    """All of the target that the consumer has and its program hasn't: partition, seq and whether it
    is a redelivery. Said anew whenever that changes."""

    target: int
    epoch: int
    items: Annotated[list[tuple[int, int, bool]], msgspec.Meta(max_length=MOST_HELD)]


class TargetReleased(msgspec.Struct, tag_field="type", tag="released", forbid_unknown_fields=True):
    """The consumer is done with a target that it was asked to give up."""

    target: int
    epoch: int


class TargetRenewal(msgspec.Struct, tag_field="type", tag="renew", forbid_unknown_fields=True):
    """The consumer works on items of a target, and needs more time before it gives the target
    up."""

    target: int
    epoch: int


class Leave(msgspec.Struct, tag_field="type", tag="leave", forbid_unknown_fields=True):
    """The consumer is done with everything, or `failed` with what it has in hand."""

    failed: bool = False


def seqs_in(named: Mapping[str, Sequence[int]], field: str) -> dict[int, frozenset[int]]:
    """The seqs that a message names, by partition. Raises InvalidRequest for what can't be one."""
    for partition in named:
        if not (partition.isascii() and partition.isdigit()):
            raise InvalidRequest(f"{field} names {partition[:50]}, which is no partition")
    return {int(partition): frozenset(seqs) for partition, seqs in named.items()}


AboutTarget = TargetAck | TargetNack | TargetHeld | TargetRenewal | TargetReleased
ConsumerMessage = Join | AboutTarget | Leave | Ping
TYPES = ("join", "ack", "nack", "held", "renew", "released", "leave", "ping")

_decoder: msgspec.json.Decoder[ConsumerMessage] = msgspec.json.Decoder(ConsumerMessage)


def parse_consumer(frame: bytes) -> ConsumerMessage | Misfit:
    """Raises InvalidRequest for what isn't a message at all."""
    return parse_as(frame, _decoder, TYPES)
