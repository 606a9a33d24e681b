"""An event on its way out, and the call that waits for it.

Invariant: every event of a call gets exactly one outcome; when the last one has it, the call ends.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from headgate import errors
from headgate.client.outgoing import Outcome, Receipt
from headgate.model.api import ProduceEvent


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """`deadline_s` is how long a call tries before it gives up, retries included; `hops` is how
    often an event may be redirected before that counts as a failure."""

    linger_s: float = 0.002
    batch_events: int = 500
    batch_bytes: int = 4 * 1024 * 1024
    outstanding_events: int = 10_000
    outstanding_bytes: int = 64 * 1024 * 1024
    request_timeout_s: float = 5.0
    deadline_s: float = 30.0
    backoff_first_s: float = 0.05
    backoff_max_s: float = 2.0
    hops: int = 5


class Call:
    """One `send_many`: its outcomes, in the order of its events.

    `deadline_s` is set when there is room for its events: waiting for that isn't trying.
    """

    def __init__(self, events: int) -> None:
        self.deadline_s = 0.0
        self.outcomes: list[Outcome] = [errors.HeadgateError("not sent")] * events
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = events
        if not events:
            self.done.set_result(None)

    @property
    def is_abandoned(self) -> bool:
        """Nobody waits for it any more."""
        return self.done.cancelled()

    def settle(self, index: int, outcome: Outcome) -> None:
        self.outcomes[index] = outcome
        self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(None)


@dataclass(slots=True, eq=False)
class Pending:
    """`number` is its place in the order of all events of the producer, `index` that in its call.

    `unknown` is set once an attempt may have been written without anybody having said so, and
    `bound` is then the address of the node that may have it.
    """

    event: ProduceEvent
    number: int
    size_bytes: int
    arrived_s: float
    call: Call
    index: int
    hops: int = 0
    unknown: bool = False
    bound: str | None = None
    is_settled: bool = False

    @property
    def routing_key(self) -> str:
        """As `placement.routing_key` has it."""
        key = self.event.key
        return event_id(self) if key is None else key

    def verdict(self, outcome: Outcome) -> Outcome:
        """What to tell the call: where an attempt may have been written, "failed" isn't known."""
        if isinstance(outcome, Receipt) or not self.unknown:
            return outcome
        if isinstance(outcome, errors.OutcomeUnknown | errors.CallerError):
            return outcome
        return errors.OutcomeUnknown(
            f"the event may or may not be in the log, and then: {outcome}", **outcome.details
        )


def event_id(pending: Pending) -> str:
    assert pending.event.event_id is not None
    return pending.event.event_id
