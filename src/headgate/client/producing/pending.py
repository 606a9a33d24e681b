"""An event on its way out, and the call that waits for it.

Invariant: every event of a call gets exactly one outcome; when the last one has it, the call ends.
"Failed" means not written: while nobody knows that, the outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headgate import errors
from headgate.client.producing.outgoing import Outcome, Receipt
from headgate.model.api import ProduceEvent


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """`deadline_s` is how long a call tries before it gives up, retries included; `hops` is how
    often an event follows a redirect at once, before it waits for that. `again`: another producer
    may have sent the events before, whose outcome nobody knows: they are looked for everywhere."""

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
    again: bool = False


_NOT_SENT = errors.HeadgateError("not sent")
"""Stands where an outcome will; nobody is told it."""


class Call:
    """One `send_many`: its outcomes, in the order of its events.

    `began_s` is when it came in, `deadline_s` when it gives up, `entered` what of it got room.
    `release` is told of every event that has left, `over` when nothing of the call is left.
    """

    def __init__(
        self,
        events: int,
        began_s: float,
        deadline_s: float,
        *,
        release: Callable[[Pending], None],
        over: Callable[[Call], None],
    ) -> None:
        self.began_s = began_s
        self.deadline_s = deadline_s
        self.outcomes: list[Outcome] = [_NOT_SENT] * events
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.entered: list[Pending] = []
        self.has_failed = False
        self._release = release
        self._over = over
        self._left = events
        self._is_cut = False
        if not events:
            self._end()

    def abandon(self) -> None:
        """Nobody waits for it from now on; what got no room never will."""
        self.done.cancel()
        self.refuse_rest(errors.NotNow("the call was cancelled"))

    def refuse_rest(self, outcome: errors.HeadgateError) -> None:
        """What got no room until now was not sent and is not going to be."""
        entered = len(self.entered)
        rest = len(self.outcomes) - entered
        if self._left and rest and not self._is_cut:
            self._is_cut = True
            self.outcomes[entered:] = [outcome] * rest
            self._left -= rest
            if not self._left:
                self._end()

    def settle(self, pending: Pending, outcome: Outcome) -> None:
        self.outcomes[pending.index] = outcome
        if not isinstance(outcome, Receipt):
            self.has_failed = True
        self._left -= 1
        self._release(pending)
        if not self._left:
            self._end()

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        self._over(self)
        # They know their call, and it them: a circle, which lasts until the collector looks for
        # circles. To look for one per call is a good part of what a call costs.
        self.entered = []


@dataclass(frozen=True, slots=True, eq=False)
class Doubt:
    """A request that the node at `url` may have written, without an answer that says so.

    A node on an opportunistic topic, which chose the partition itself, finds it again if it comes
    as it was: with all of its events, and no other.
    """

    url: str


@dataclass(slots=True, eq=False)
class Pending:
    """`number` is its place in the order of all events of the producer, `index` that in its call.

    `asked` is set while a request with it is under way, or the answer is being read; `unknown` once
    an attempt may have been written without anybody having said so, and `doubt` is then the first
    such request. `again`: an earlier call with its id ended without anybody knowing that.
    `setbacks` is how often its partition was set aside for refusing it, the last time until
    `not_before_s`.
    """

    event: ProduceEvent
    number: int
    size_bytes: int
    arrived_s: float
    call: Call
    index: int
    again: bool = False
    hops: int = 0
    setbacks: int = 0
    not_before_s: float = 0.0
    asked: bool = False
    unknown: bool = False
    doubt: Doubt | None = None
    is_settled: bool = False

    @property
    def routing_key(self) -> str:
        """As `placement.routing_key` has it."""
        key = self.event.key
        return event_id(self) if key is None else key

    def is_wanted(self, now_s: float) -> bool:
        """A call waits for its outcome, and there is time left to get one."""
        call = self.call
        return not self.is_settled and call.deadline_s > now_s and not call.done.cancelled()

    def settle(self, outcome: Outcome, *, is_about_it: bool = True) -> None:
        """Tell the call, unless it has heard of this event already. `is_about_it`: and not about
        another one of its request, or all of that together."""
        if self.is_settled:
            return
        if not isinstance(outcome, Receipt):
            outcome = self._verdict(outcome, is_about_it=is_about_it)
        self.is_settled = True
        self.call.settle(self, outcome)

    def _verdict(self, outcome: errors.HeadgateError, *, is_about_it: bool) -> Outcome:
        """What to tell the call: where an attempt may have been written, "failed" isn't known. What
        is refused for what it is would have been so by that attempt, too; who may send it, and
        whether there is such a topic, may have changed since."""
        if not (self.unknown or self.asked):
            return outcome
        if isinstance(outcome, errors.OutcomeUnknown):
            return outcome
        said_here = not outcome.details.keys() & {"no_answer", "foreign"}
        is_never_taken = isinstance(outcome, errors.InvalidRequest | errors.TooLarge)
        if is_never_taken and said_here and is_about_it:
            return outcome
        return errors.OutcomeUnknown(
            f"the event may or may not be in the log, and then: {outcome}", **outcome.details
        )


def settle_all(batch: Iterable[Pending], outcome: Outcome) -> None:
    for pending in batch:
        pending.settle(outcome)


def failed(error: Exception) -> errors.HeadgateError:
    """For callers, who must not wait for ever because of a mistake in here."""
    return errors.HeadgateError(f"the producer failed: {error!r}")


def event_id(pending: Pending) -> str:
    assert pending.event.event_id is not None
    return pending.event.event_id
