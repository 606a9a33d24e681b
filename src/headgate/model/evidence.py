"""What lanes and gateways remember for a while of what became of records, and say when asked.

Nobody needs any of it to deliver: it is for people who ask why a record arrived, or didn't. It is
bounded in number and age where it is kept, and gone with the process that kept it, so a node that
tells it also says since when it is complete.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headgate.model.delivery import Verdict
from headgate.model.event import PartitionRef
from headgate.model.lanes import Mode

ATTEMPTS_TOLD = 100
"""So many attempts to deliver one record are told by one lane or gateway, the last ones."""
ENDED_TOLD = 100
ASKED_MAX = 1_000
"""Subscriptions that one question names."""

Outcome = Verdict | Literal["failed", "refused", "parked", "dead", "released", "told"]
"""What came of one attempt: the gateway's verdict, no answer (`failed`), a refusal of the whole
batch, a letter, that nobody it was for was there any more (`released`), or that subscribers were
told of its absence in its place (`told`)."""


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One time that a lane tried to bring a record to a gateway, or a gateway took it. `error` is
    what went wrong, or why a letter was written."""

    at_ms: int
    gateway: str
    outcome: Outcome
    subscriptions: tuple[str, ...] = ()
    error: str = ""


class WayThere(msgspec.Struct, frozen=True, omit_defaults=True):
    """A lane's way to one gateway, as it is now; `behind`: letters of the partition are parked for
    it, and everything newer is parked behind them."""

    gateway: str
    waiting: int = 0
    breaker: str = "closed"
    pressure: str = "normal"
    behind: bool = False
    error: str = ""


class LaneAccount(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a lane says of a record. `holds`: it reads the partition now, is at `read_seq`, and has
    settled everything up to `settled`; `awaits`: the record is read and a gateway must still answer
    for it. `read_it`: its process has read the record itself, so what it remembers of it is all
    that was done. `held_for`: nothing more is read before what comes before that partitioning
    version is settled; `reason`: why nothing is read, where that is so."""

    since_ms: int
    attempts: tuple[Attempt, ...] = ()
    holds: bool = False
    read_seq: int = 0
    settled: int = 0
    awaits: bool = False
    read_it: bool = False
    held_for: int = 0
    reason: str = ""
    mode: Mode = "direct"
    revision: int = 0
    ways: tuple[WayThere, ...] = ()


Stand = Literal["held", "passed", "waiting", "behind", "expected", "unknown"]
"""Where a subscriber is, of one record. `held`: it gets nothing for now, because the coordinator
had forgotten it. `passed`: all up to there that it wants was handed to its connection. `waiting`:
in its queue. `behind`: it will be read from the log for it. `expected`: no lane has brought it, or
anything newer of its partition."""


class LeftOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `resync` that a subscriber was told: what it wanted of the partition between `after_seq`
    and `from_seq` was left out. Of a `repeat`, which nobody is told of, `first` is the partition
    and seq from which it had the same event."""

    at_ms: int
    subscription: str
    topic: str
    partition: int
    after_seq: int
    from_seq: int
    reason: str
    first: tuple[int, int] | None = None


class Skip(msgspec.Struct, frozen=True):
    """An operator moved the position of a partition on, past the records behind `after_seq` up to
    `settled`, and nobody was told."""

    at_ms: int
    ref: PartitionRef
    after_seq: int
    settled: int


class Whereabouts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a gateway knows of one of its subscriptions and a record; `group` and `target` where it
    is one of a consumer group's. It began behind `start`, and
    `position` is up to where it was handed what it wants; `left_out` covers the record, if it was
    told so; `read_at_ms` is when the log was read for it up to the record (0: nobody remembers that
    it was). `slow` is what happens when its queue is full. Of a group's target `unacknowledged`
    says that its consumer has the record in hand, and `acknowledged` up to where it has processed
    everything; of a subscriber that says how far it is, that, else -1."""

    subscription: str
    start: int
    position: int
    stand: Stand
    slow: str = ""
    queued: int = 0
    left_out: LeftOut | None = None
    read_at_ms: int = 0
    unacknowledged: bool = False
    acknowledged: int = -1
    stopped: bool = False
    """Of a target: nothing more is handed out, because it is on its way to another consumer."""
    group: str = ""
    target: int = -1


class Ended(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subscription that has ended here: where it began and how far it was, in the partition, and
    what was `left_out` for it that covers the record."""

    at_ms: int
    subscription: str
    topic: str
    start: int
    position: int
    reason: str = ""
    left_out: LeftOut | None = None


class GatewayAccount(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a gateway says of a record. `unknown` are those of the subscriptions it was asked about
    that aren't here, `targets` those of the targets that are."""

    since_ms: int
    attempts: tuple[Attempt, ...] = ()
    standings: tuple[Whereabouts, ...] = ()
    ended: tuple[Ended, ...] = ()
    unknown: tuple[str, ...] = ()
    targets: tuple[Whereabouts, ...] = ()
