"""What an outbound wants to be done: the next step, and what is to be written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef
from headgate.model.letters import LetterReason, LetterState


class Aside(msgspec.Struct, frozen=True, gc=False):
    """A delivery that is not to be sent now: a letter is made of it."""

    delivery: Delivery
    state: LetterState
    reason: LetterReason
    attempts: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Put:
    """A delivery goes on in so many `parts`, each of which leaves in a way of its own. `stirs`: the
    sender that waits for the next step must look again."""

    parts: int = 1
    stirs: bool = False
    asides: tuple[Aside, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """A batch didn't arrive: deliveries in it that an operator wanted and that are `given_up`
    aren't tried again."""

    given_up: list[Delivery]
    asides: tuple[Aside, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do, once `asides` are handed in to be written down."""

    asides: tuple[Aside, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class Send(Step):
    """Deliver these now, then say `answered`, `failed` or `refused`; or `unwritten` where a letter
    has to be written before."""

    deliveries: list[Delivery]


@dataclass(frozen=True, slots=True)
class SendAgain(Step):
    """Deliver these, which an operator wants; then say `sent_again`, `failed`, `again_refused`."""

    deliveries: list[Delivery]


@dataclass(frozen=True, slots=True)
class Redrive(Step):
    """Send parked letters, up to `each` of every partition, the oldest first; of those in
    `after_seqs`, the oldest behind that seq.

    Say `drained` of the partitions that have none, and `unread` of those whose letters are newer
    than what was put. When there are some, ask whether it `may_redrive` still, where other steps
    were taken meanwhile (`is_redriving`), and say `redriving`, then `redriven`, `failed` or
    `redrive_refused`; or `postponed` when nobody can tell, and `store_failed` when the store
    of letters failed at any point.
    """

    refs: tuple[PartitionRef, ...]
    each: int
    after_seqs: Mapping[PartitionRef, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wait(Step):
    """Nothing to do before this instant, unless something is put."""

    until_s: float
