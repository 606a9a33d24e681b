"""What couldn't be delivered for now (parked) or for good (dead), with the whole event.

A parked letter waits for its gateway and is sent by itself; a dead one waits for an operator. What
an operator sends again is parked once more, marked as a redelivery and outside the order, until
everybody who is subscribed to it now has it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef
from headgate.model.groups import PREFIX

LetterState = Literal["parked", "dead"]
LetterReason = Literal[
    "unreachable", "overloaded", "too_old", "halted", "rejected", "shed", "left", "failed"
]
"""Why a letter was written: its gateway didn't answer (also: its breaker is open), was too far
behind, had left it waiting for too long, it stood behind one that is refused, it was refused for
good, it was of low priority while the gateway was behind, it is a redelivery whose subscribers left
before they had it, or the consumers of a group were handed it too often in vain. The last four make
dead letters, the others parked ones; where no dead letters are kept, one that is refused is parked,
too."""


class NewLetter(msgspec.Struct, frozen=True):
    """`attempts` counts how often it was sent; `error` is the last answer. A letter of a consumer
    group has the name of the group's target in place of the gateway's id: only the gateway where
    the target is open changes it and sends it again."""

    gateway_id: str
    state: LetterState
    reason: LetterReason
    delivery: Delivery
    attempts: int = 0
    error: str = ""

    @property
    def ref(self) -> PartitionRef:
        return PartitionRef(self.delivery.topic, self.delivery.partition)

    @property
    def fenced_by(self) -> PartitionRef:
        """The holder of this partition may change the letter."""
        return _fenced_by(self.gateway_id, self.delivery)


class Letter(msgspec.Struct, frozen=True):
    """A stored letter; `id` is never given out twice, `at_ms` is when it was written. Of one that
    the store has damaged, an operator is shown what else is known, and the `damage`."""

    id: int
    gateway_id: str
    state: LetterState
    reason: LetterReason
    delivery: Delivery
    attempts: int
    error: str
    at_ms: int
    damage: str = ""

    @property
    def ref(self) -> PartitionRef:
        return PartitionRef(self.delivery.topic, self.delivery.partition)

    @property
    def fenced_by(self) -> PartitionRef:
        """The holder of this partition may change the letter."""
        return _fenced_by(self.gateway_id, self.delivery)


def _fenced_by(gateway_id: str, delivery: Delivery) -> PartitionRef:
    """The partition that its lane has, or the position of the target it is for."""
    if gateway_id.startswith(PREFIX):
        return PartitionRef(gateway_id, delivery.partition)
    return PartitionRef(delivery.topic, delivery.partition)


class LetterQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which letters are meant; what is None or empty doesn't matter. `before_ms`: written before
    then."""

    state: LetterState | None = "dead"
    ids: tuple[int, ...] = ()
    gateway_id: str | None = None
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    seq: int | None = None
    key: str | None = None
    reason: LetterReason | None = None
    before_ms: int | None = None
    after_ms: int | None = None


class LetterCount(msgspec.Struct, frozen=True):
    """How many letters there are of one kind, and since when."""

    state: LetterState
    gateway_id: str
    topic: str
    reason: LetterReason
    count: int
    oldest_ms: int


class GatewayLetters(msgspec.Struct, frozen=True):
    """The letters for one gateway, or for one consumer group (`topic/name`); ages are those of the
    oldest ones, 0 where there are none."""

    gateway: str
    parked: int = 0
    parked_ms: int = 0
    dead: int = 0
    dead_ms: int = 0
    group: str = ""
