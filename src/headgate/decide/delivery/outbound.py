"""What one lane owes one gateway, and what to do about it next. No I/O; time is an argument.

Deliveries go out in the order they came, one batch at a time. A batch that fails for the moment is
sent again, and holds what is behind it; what can't be sent is set aside, to be parked (the gateway
doesn't answer, is too far behind, or kept it waiting for too long) or as a dead letter (it is
refused for good, or of low priority while the gateway is behind). From then on everything newer of
that partition is set aside too, until the parked letters are through: `behind` names those
partitions.

Invariants: a delivery that was put leaves in exactly one way: with a verdict, aside, or because
its partition was dropped. Per partition nothing is sent while something older is parked or waits.
The order of what is set aside is not the order of what was put: whoever sends letters sorts them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from headgate.decide.batching import BatchLimits
from headgate.decide.delivery.breaker import NEVER, Breaker
from headgate.decide.delivery.pressure import Pressure, Watermarks
from headgate.decide.retrying import Backoff
from headgate.model.delivery import Delivery, Verdict
from headgate.model.event import PartitionRef
from headgate.model.letters import LetterReason, LetterState

LOOK_AGAIN_S = 1.0
"""Pause after letters couldn't be read."""


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """`redrive_every_s` is the pause before parked letters are tried again after a failure."""

    limits: BatchLimits = field(default_factory=BatchLimits)
    backoff: Backoff = field(default_factory=Backoff)
    max_attempts: int = 3
    buffer_timeout_s: float = 60.0
    redrive_every_s: float = 10.0
    watermarks: Watermarks = field(default_factory=Watermarks)
    breaker_threshold: int = 5
    breaker_timeout_s: float = 30.0
    sheds: bool = True
    """Whether what is of low priority may become a dead letter."""


@dataclass(frozen=True, slots=True)
class Send:
    """Deliver these now, then say `answered`, `failed` or `refused`."""

    deliveries: list[Delivery]


@dataclass(frozen=True, slots=True)
class Redrive:
    """Send up to `limit` parked letters, oldest first.

    Say `redriving` when there are some, then `redriven`, `failed` or `redrive_refused`; or
    `drained` when there are none, or `postponed` when nobody can tell.
    """

    limit: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before this instant, unless something is put."""

    until_s: float


Step = Send | Redrive | Wait
Low = Callable[[Sequence[str]], Sequence[str]]
"""Picks the subscriptions that are of low priority."""


class Aside(msgspec.Struct, frozen=True, gc=False):
    """A delivery that is not to be sent now."""

    delivery: Delivery
    state: LetterState
    reason: LetterReason
    attempts: int = 0
    error: str = ""


class Outbound:
    """`behind`: the partitions that have parked letters for this gateway when it begins."""

    def __init__(self, rules: DeliveryRules, behind: Iterable[PartitionRef] = ()) -> None:
        self._rules = rules
        self._waiting: deque[tuple[float, Delivery]] = deque()
        self._in_flight: list[tuple[float, Delivery]] = []
        self._asides: list[Aside] = []
        self._attempts = 0
        self._retry_at_s = -NEVER
        self._redrive_at_s = -NEVER
        self._sent_s = -NEVER
        self._size_limit = rules.limits.max_size
        self._redrive_next = False
        self._revived = False
        self._is_overloaded = False
        self._flushing = False
        self.behind: set[PartitionRef] = set(behind)
        self.breaker = Breaker(rules.breaker_threshold, rules.breaker_timeout_s)
        self.pressure = Pressure(rules.watermarks)
        self.error = ""

    def __len__(self) -> int:
        """What waits in memory, on its way included."""
        return len(self._waiting) + len(self._in_flight)

    @property
    def attempts(self) -> int:
        """How often what is sent next has failed already."""
        return self._attempts

    @property
    def struggles(self) -> bool:
        """Is something wrong with the gateway right now?"""
        return self._attempts > 0 or self.breaker.state != "closed"

    @property
    def wants_redrive(self) -> bool:
        return bool(self.behind) or self._revived

    # --- what comes in ---------------------------------------------------------------------------

    def put(self, delivery: Delivery, now_s: float, low: Low) -> None:
        """`low` is asked only while the gateway is behind."""
        if self.behind and _ref(delivery) in self.behind:
            self._park(delivery, "unreachable" if self.struggles else "overloaded")
            return
        if not self.breaker.allows(now_s):
            self.behind.add(_ref(delivery))
            self._park(delivery, "unreachable")
            return
        level = self.pressure.weigh(len(self._waiting) + len(self._in_flight))
        if level != "normal":
            if level == "hard":
                self._overloaded(now_s)
                self.behind.add(_ref(delivery))
                self._park(delivery, "overloaded")
                return
            if self._rules.sheds and delivery.broadcast and not delivery.subscriptions:
                # A copy for whom it may concern: nobody there is known to want it.
                self._asides.append(Aside(delivery, "dead", "shed"))
                return
            if shed := frozenset(low(delivery.subscriptions)):
                kept = frozenset(delivery.subscriptions) - shed
                self._asides.append(Aside(narrowed(delivery, shed), "dead", "shed"))
                if not kept:
                    return
                delivery = narrowed(delivery, kept)
        self._waiting.append((now_s, delivery))

    @property
    def stirred(self) -> bool:
        """After a put: must whoever waits for the next step look again? (For the first of a batch,
        and for a full one.)"""
        size = len(self._waiting)
        return size == 1 or size == self._size_limit

    @property
    def has_asides(self) -> bool:
        return bool(self._asides)

    def take_asides(self) -> list[Aside]:
        """What was set aside since the last call; the caller makes letters of it."""
        asides, self._asides = self._asides, []
        return asides

    def found_behind(self, refs: Iterable[PartitionRef]) -> None:
        """The store has parked letters of these; somebody else may have written them."""
        self.behind.update(refs)

    def revived(self) -> None:
        """An operator wants letters to be sent again."""
        self._revived = True
        self._redrive_at_s = -NEVER

    def renewed(self) -> None:
        """The gateway has another address: whatever was wrong, try again."""
        self.breaker.renewed()
        self._attempts, self.error = 0, ""
        self._retry_at_s = self._redrive_at_s = -NEVER

    def drop(self, ref: PartitionRef) -> None:
        """The partition is somebody else's now, and so is all that waits of it."""
        self.behind.discard(ref)
        self._waiting = deque(one for one in self._waiting if _ref(one[1]) != ref)

    def flush(self) -> None:
        """From now on send what waits at once."""
        self._flushing = True

    # --- what to do ------------------------------------------------------------------------------

    def next(self, now_s: float) -> Step:
        waiting = self._waiting
        if waiting and not self.breaker.allows(now_s):
            self._park_all("unreachable")
        elif waiting and now_s - waiting[0][0] >= self._rules.buffer_timeout_s:
            self._park_all("too_old")
        if self._is_overloaded and self.pressure.weigh(len(self)) != "hard":
            self._is_overloaded, self._redrive_at_s = False, -NEVER
        if self._retry_at_s > now_s:
            return Wait(self._retry_at_s)
        due_s = self._due_s()
        redrive_s = self._redrive_due_s()
        if redrive_s <= now_s and (self._redrive_next or due_s > now_s):
            if not self._overlaps():
                self._redrive_next = False
                return Redrive(self._size_limit)
            redrive_s = NEVER
        if due_s <= now_s:
            return self._send(now_s)
        return Wait(min(due_s, redrive_s))

    def upcoming(self) -> list[Delivery]:
        """What will be sent after what is in flight, if all goes well: a full batch, or nothing."""
        if len(self._waiting) < self._size_limit:
            return []
        return [delivery for _, delivery in islice(self._waiting, self._size_limit)]

    def _due_s(self) -> float:
        waiting = self._waiting
        if not waiting:
            return NEVER
        if self._flushing or self._attempts or len(waiting) >= self._size_limit:
            return -NEVER
        return self._rules.limits.send_at(
            waiting=len(waiting), first_at_s=waiting[0][0], last_sent_s=self._sent_s
        )

    def _redrive_due_s(self) -> float:
        if not (self.behind or self._revived):
            return NEVER
        return max(self._redrive_at_s, self.breaker.probe_at_s)

    def _overlaps(self) -> bool:
        """Does something wait that is older than what is parked of its partition?"""
        behind = self.behind
        return bool(behind) and any(_ref(one[1]) in behind for one in self._waiting)

    def _send(self, now_s: float) -> Send:
        size = min(len(self._waiting), self._size_limit)
        self._in_flight = [self._waiting.popleft() for _ in range(size)]
        self._sent_s = now_s
        self._redrive_next = self.wants_redrive
        self.breaker.attempted()
        return Send([delivery for _, delivery in self._in_flight])

    # --- what came of it -------------------------------------------------------------------------

    def answered(
        self, verdicts: Sequence[Verdict], *, fill: float, now_s: float, jitter: float = 1.0
    ) -> None:
        """The gateway took the batch apart. What it wants again goes to the front, as one attempt;
        what it refuses for good is set aside. The caller settles the others."""
        batch, self._in_flight = self._in_flight, []
        self._well(fill)
        again = []
        for one, verdict in zip(batch, verdicts, strict=True):
            if verdict == "retry":
                again.append(one)
            elif verdict == "rejected":
                self._bury(one[1], "the gateway rejected it")
        if again:
            self._waiting.extendleft(reversed(again))
            error = "the gateway wants it later"
            self._another_attempt([d for _, d in again], error, now_s, jitter)
        else:
            self._attempts = 0

    def failed(self, error: str, *, now_s: float, jitter: float = 1.0) -> None:
        """The batch didn't arrive, or nobody knows whether it did."""
        batch, self._in_flight = self._in_flight, []
        self.error = error
        self.breaker.failed(now_s)
        if batch:
            self._waiting.extendleft(reversed(batch))
            self._another_attempt([delivery for _, delivery in batch], error, now_s, jitter)
        self._redrive_at_s = now_s + self._rules.redrive_every_s

    def refused(self, error: str) -> None:
        """The gateway will never take this batch: send smaller ones, until one delivery is left
        that is to blame."""
        batch, self._in_flight = self._in_flight, []
        self._well(self.pressure.fill)
        self._attempts = 0
        if len(batch) == 1:
            self._bury(batch[0][1], error)
            return
        self._waiting.extendleft(reversed(batch))
        self._size_limit = max(1, len(batch) // 2)

    def redriving(self) -> None:
        """Letters are about to be sent."""
        self.breaker.attempted()

    def redriven(self, *, fill: float, again: bool, now_s: float) -> None:
        """Letters were sent and answered; `again`: some of them are wanted later."""
        self._well(fill)
        if self.pressure.weigh(len(self)) == "hard":
            self._overloaded(now_s)
        else:
            self._redrive_at_s = now_s + self._rules.redrive_every_s if again else -NEVER

    def redrive_refused(self, count: int) -> bool:
        """The gateway won't take `count` letters at once; True when the only one is to blame."""
        self._well(self.pressure.fill)
        self._size_limit = max(1, count // 2)
        return count == 1

    def drained(self) -> None:
        """There are no parked letters any more: what comes is sent again."""
        self.behind.clear()
        self._revived = False

    def postponed(self, now_s: float) -> None:
        """The letters can't be read at the moment."""
        self._redrive_at_s = now_s + min(LOOK_AGAIN_S, self._rules.redrive_every_s)

    # --- parts -----------------------------------------------------------------------------------

    def _well(self, fill: float) -> None:
        self.breaker.succeeded()
        self.pressure.filled(fill)
        self.error = ""
        self._size_limit = min(self._size_limit * 2, self._rules.limits.max_size)

    def _overloaded(self, now_s: float) -> None:
        """Letters wait until the gateway has got over it, or might have said so."""
        self._is_overloaded = True
        self._redrive_at_s = now_s + self._rules.redrive_every_s

    def _another_attempt(
        self, batch: list[Delivery], error: str, now_s: float, jitter: float
    ) -> None:
        self._attempts += 1
        rules = self._rules
        if self._attempts >= rules.max_attempts:
            self._park_partitions({_ref(delivery) for delivery in batch}, error)
            self._attempts = 0
            self._retry_at_s = -NEVER
            self._redrive_at_s = now_s + rules.redrive_every_s
        else:
            self._retry_at_s = now_s + rules.backoff.delay_s(self._attempts - 1, jitter=jitter)

    def _park(self, delivery: Delivery, reason: LetterReason, error: str = "") -> None:
        self._asides.append(Aside(delivery, "parked", reason, self._attempts, error or self.error))

    def _bury(self, delivery: Delivery, error: str) -> None:
        self._asides.append(Aside(delivery, "dead", "rejected", self._attempts + 1, error))

    def _park_all(self, reason: LetterReason) -> None:
        for _, delivery in self._waiting:
            self.behind.add(_ref(delivery))
            self._park(delivery, reason)
        self._waiting.clear()
        self._attempts = 0
        self._retry_at_s = -NEVER

    def _park_partitions(self, refs: set[PartitionRef], error: str) -> None:
        kept: deque[tuple[float, Delivery]] = deque()
        for one in self._waiting:
            if _ref(one[1]) in refs:
                self._park(one[1], "unreachable", error)
            else:
                kept.append(one)
        self.behind |= refs
        self._waiting = kept


def _ref(delivery: Delivery) -> PartitionRef:
    return PartitionRef(delivery.topic, delivery.partition)


def narrowed(delivery: Delivery, names: frozenset[str]) -> Delivery:
    """`delivery` for those of its subscriptions that are in `names`."""
    if names.issuperset(delivery.subscriptions):
        return delivery
    since = delivery.since
    return msgspec.structs.replace(
        delivery,
        subscriptions=tuple(name for name in delivery.subscriptions if name in names),
        since=tuple(since[at] for at, name in enumerate(delivery.subscriptions) if name in names)
        if since
        else (),
        left=tuple(name for name in delivery.left if name in names),
    )
