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

LetterState = Literal["parked", "dead"]
LetterReason = Literal["unreachable", "overloaded", "too_old", "halted", "rejected", "shed", "left"]
"""Why a letter was written: its gateway didn't answer (also: its breaker is open), was too far
behind, had left it waiting for too long, it stood behind one that is refused, it was refused for
good, it was of low priority while the gateway was behind, or it is a redelivery and whoever it was
for left before they had it. The last three make dead letters, the others parked ones; where no dead
letters are kept, one that is refused is parked, too."""


class NewLetter(msgspec.Struct, frozen=True):
    """`attempts` counts how often it was sent; `error` is what was said the last time."""

    gateway_id: str
    state: LetterState
    reason: LetterReason
    delivery: Delivery
    attempts: int = 0
    error: str = ""

    @property
    def ref(self) -> PartitionRef:
        return PartitionRef(self.delivery.topic, self.delivery.partition)


class Letter(msgspec.Struct, frozen=True):
    """A stored letter; `id` is never given out twice, `at_ms` is when it was written."""

    id: int
    gateway_id: str
    state: LetterState
    reason: LetterReason
    delivery: Delivery
    attempts: int
    error: str
    at_ms: int

    @property
    def ref(self) -> PartitionRef:
        return PartitionRef(self.delivery.topic, self.delivery.partition)


class LetterQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which letters are meant; what is None or empty doesn't matter. `before_ms`: written before
    then."""

    state: LetterState | None = "dead"
    ids: tuple[int, ...] = ()
    gateway_id: str | None = None
    topic: str | None = None
    partition: int | None = None
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
    """The letters for one gateway; ages are those of the oldest ones, 0 where there are none."""

    gateway: str
    parked: int = 0
    parked_ms: int = 0
    dead: int = 0
    dead_ms: int = 0
