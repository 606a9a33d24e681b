"""What is parked for one gateway: of which partitions, when letters may be sent and how many, and
what waits in memory right behind the last of them.

From its first parked letter on everything newer of a partition is parked, too, until its letters
are through. Partitions take turns when letters are sent, so none waits for a busier one
(parked_partitions.py). What is newer than the last letters of one waits in memory
(last_letters.py), or there would always be more.

The sender of letters says here how each was answered; but for a failure, of which the outbound has
to know (`Outbound.failed`). What is to be parked for that is returned, for letters to be made of it
at once. Invariant: per partition nothing is sent while something older is parked. The order of what
is set aside is not the order of what was put: the sender of letters sorts them. Time is an
argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from headgate.decide.delivery.backlog import Backlog
from headgate.decide.delivery.batch_size import BatchSize
from headgate.decide.delivery.breaker import NEVER
from headgate.decide.delivery.condition import Condition
from headgate.decide.delivery.parts import ref_of
from headgate.decide.delivery.rules import DeliveryRules
from headgate.decide.delivery.steps import Aside, Redrive
from headgate.decide.letters.last_letters import Joining
from headgate.decide.letters.pacing import Pacing
from headgate.decide.letters.parked_partitions import Behind, Page
from headgate.model.control.reports import PressureLevel
from headgate.model.delivery import Delivery
from headgate.model.event import PartitionRef
from headgate.model.letters import LetterReason


class Parked:
    """`behind`: the partitions that have parked letters when it begins. What waited for the last of
    them goes into the `backlog`."""

    def __init__(
        self,
        rules: DeliveryRules,
        behind: Iterable[PartitionRef],
        *,
        condition: Condition,
        backlog: Backlog,
        size: BatchSize,
    ) -> None:
        self._rules = rules
        self._behind = Behind(behind)
        self.refs: AbstractSet[PartitionRef] = self._behind.refs
        """The partitions that have parked letters, as they come and go; asked for every record."""
        self._condition = condition
        self._backlog = backlog
        self._size = size
        """Letters may well be larger than new deliveries, so each has a batch size of its own."""
        self._joining = Joining()
        self._pacing = Pacing()
        self._redrive_at_s = -NEVER
        self._looking_for = 0
        """How many letters were asked for last."""
        self._sending = 0
        """How many letters were sent last."""
        self._sending_full = False
        """Whether there are more of them, which the size of the batch kept back."""
        self._is_overloaded = False
        self._under_way = False
        """Are letters looked for or sent? Then no others are, until that is over."""

    @property
    def halted(self) -> Mapping[PartitionRef, str]:
        """Those that stand still at a letter which is refused or damaged, and why."""
        return self._behind.halted

    @property
    def waiting(self) -> int:
        """What waits in memory behind the last letters of its partition."""
        return self._joining.size

    @property
    def most(self) -> int:
        """How many are sent at once."""
        return self._size.limit

    @property
    def waiting_bytes(self) -> int:
        return self._joining.size_bytes

    def _level(self) -> PressureLevel:
        backlog, joining = self._backlog, self._joining
        return self._condition.pressure.weigh(
            len(backlog) + joining.size, backlog.size_bytes + joining.size_bytes
        )

    # --- what is parked --------------------------------------------------------------------------

    def put_behind(self, ref: PartitionRef, delivery: Delivery, now_s: float) -> tuple[Aside, ...]:
        """It is newer than letters of its partition."""
        condition, joined = self._condition, list[Aside]()
        if ref in self._joining:
            if not condition.struggles and self._level() == "normal":
                self._joining.add(ref, (now_s, delivery))
                return ()
            joined = self.park_joining([ref])
        waits_for: LetterReason = "halted" if ref in self.halted else "overloaded"
        return *joined, self.park(delivery, "unreachable" if condition.struggles else waits_for)

    def park(
        self, delivery: Delivery, reason: LetterReason, error: str = "", attempts: int = 0
    ) -> Aside:
        ref = ref_of(delivery)
        self._behind.park(ref)
        self._pacing.parked(ref)
        attempts, error = attempts or self._condition.attempts, error or self._condition.error
        return Aside(delivery, "parked", reason, attempts, error)

    def park_joining(self, refs: Iterable[PartitionRef]) -> list[Aside]:
        """What waits in memory behind the letters of these is parked behind them after all."""
        reason: LetterReason = "unreachable" if self._condition.struggles else "overloaded"
        return [
            self.park(delivery, reason) for ref in refs for _, delivery in self._joining.take(ref)
        ]

    def park_all_joining(self) -> list[Aside]:
        return self.park_joining(self._joining.refs())

    def fall_behind(self, ref: PartitionRef) -> list[Aside]:
        """Everything of `ref` is set aside from now on, until the lane has looked for its letters
        and for those that come before them, and found none."""
        joined = self.park_joining([ref])
        self._behind.park(ref)
        return joined

    def refused(self, ref: PartitionRef, seq: int, error: str, now_s: float) -> list[Aside]:
        """A letter of it is refused for good, and dead letters aren't kept."""
        return self.halt(ref, _refusal(seq, error), now_s)

    def halt(self, ref: PartitionRef, why: str, now_s: float) -> list[Aside]:
        """It stands still, until the letter that it stands still at is gone or goes through."""
        joined = self.park_joining([ref])
        self._behind.halt(ref, why)
        self._behind.rest(ref, now_s + self._rules.redrive_every_s)
        return joined

    def rest(self, ref: PartitionRef, now_s: float) -> None:
        """Its letters wait a moment."""
        self._behind.rest(ref, now_s + self._rules.look_again_s)

    def drop(self, ref: PartitionRef) -> None:
        """The partition is another lane's now, and so are its letters."""
        self._behind.forget(ref)
        self._pacing.forget(ref)
        self._joining.take(ref)

    # --- when letters may be sent ----------------------------------------------------------------

    def look(self, now_s: float) -> Sequence[Aside]:
        """What has waited in memory for too long is parked; a gateway that was overloaded may have
        got over it."""
        is_due = self._joining.due_s <= now_s
        joined = self.park_joining(self._joining.overdue(now_s)) if is_due else ()
        if self._is_overloaded and self._level() != "hard":
            self._is_overloaded, self._redrive_at_s = False, -NEVER
        return joined

    def due_s(self) -> float:
        """When some may be sent."""
        if self._under_way or not self.refs:
            return NEVER
        may_s = max(self._redrive_at_s, self._condition.breaker.probe_at_s)
        return self._behind.due_s(may_s, self._backlog.counted())

    def joining_until_s(self) -> float:
        """When something has waited in memory for too long."""
        return self._joining.due_s

    def next(self, now_s: float) -> Redrive:
        """Those whose turn it is; only when some are due."""
        step = self._behind.next(now_s, self._backlog.counted(), limit=self._size.limit)
        self._looking_for = len(step.refs) * step.each
        return step

    def begin(self) -> None:
        """Letters are looked for, and sent, beside what is live; until `end` no others are."""
        self._under_way = True

    def end(self) -> None:
        self._under_way = False

    def outruns_letters(self, ref: PartitionRef, now_s: float) -> bool:
        """Is more parked of `ref` than sent, although its letters are on their way?"""
        if not self._pacing.is_ahead(ref) or self._condition.struggles or self._is_overloaded:
            return False
        return now_s >= self._redrive_at_s and self._behind.is_moving(ref, now_s)

    def overloaded(self, now_s: float) -> None:
        """Letters wait until the gateway has got over it, or might have said so."""
        self._is_overloaded = True
        self._redrive_at_s = now_s + self._rules.redrive_every_s

    @property
    def is_overloaded(self) -> bool:
        return self._is_overloaded

    def pause(self, now_s: float) -> None:
        """After a failure; not again and again, or a gateway that fails now and then gets no
        letters at all."""
        if self._redrive_at_s <= now_s:
            self._redrive_at_s = now_s + self._rules.redrive_every_s

    def pause_anew(self, pause_s: float, now_s: float) -> None:
        self._redrive_at_s = now_s + min(pause_s, self._rules.redrive_every_s)

    def renewed(self) -> None:
        """The gateway has another address."""
        self._redrive_at_s = -NEVER
        self._size.renewed()
        self._behind.wake()

    # --- what came of looking --------------------------------------------------------------------

    def drained(self, refs: Collection[PartitionRef]) -> None:
        """There are no parked letters of these any more: what comes is sent again, and what has
        waited for that goes first."""
        self._behind.drained(refs)
        for ref in refs:
            if ref not in self.refs:
                self._pacing.forget(ref)
                self._backlog.put_back(self._joining.take(ref))

    def nearly_drained(self, refs: Iterable[PartitionRef], *, now_s: float) -> None:
        """There are few parked letters of these partitions, and nothing speaks against sending
        them: new deliveries wait for them in memory."""
        for ref in refs:
            is_stuck = self._condition.struggles or self._condition.hurries or ref in self.halted
            if ref in self.refs and not is_stuck:
                self._joining.begin(ref, now_s)

    def pages_empty(self, refs: Iterable[PartitionRef], *, now_s: float) -> None:
        """There are parked letters of these, but none where they were looked for."""
        for ref in refs:
            self._behind.page_empty(ref, now_s=now_s, longest_s=self._rules.redrive_every_s)

    def held(self, refs: Mapping[PartitionRef, bool], *, now_s: float) -> list[Aside]:
        """The letters of these have to wait for parked ones of other partitions, which are on their
        way or not."""
        joined = self.park_joining(refs)
        for ref, moving in refs.items():
            self._behind.hold(ref, now_s + self._rules.look_again_s, moving=moving)
        return joined

    def unread(self, refs: Iterable[PartitionRef], *, now_s: float) -> None:
        """The letters of these have to wait for what is older and still to be put."""
        for ref in refs:
            self.rest(ref, now_s)

    def found_halted(self, ref: PartitionRef, seq: int, error: str) -> None:
        """A former lane left the partition standing still at this letter."""
        if not self._rules.keeps_dead:
            self._behind.halt(ref, _refusal(seq, error))

    def postponed(self, now_s: float) -> None:
        """The letters can't be looked for at the moment."""
        self._redrive_at_s = now_s + self._rules.look_again_s

    def store_failed(self, now_s: float) -> None:
        """The letters couldn't be read, or changed after they were sent. Fewer are asked for the
        next time: it may take too long as it is."""
        self._size.failed(self._looking_for, now_s=now_s)
        self.postponed(now_s)

    # --- what came of sending --------------------------------------------------------------------

    def may_redrive(self, now_s: float) -> bool:
        """Are the letters that were looked for still to be sent, after all that has happened since?
        If not, the same partitions have the next turn."""
        condition = self._condition
        may = now_s >= max(self._redrive_at_s, condition.retry_at_s, condition.breaker.probe_at_s)
        if not may:
            self._behind.again()
        return may

    def redriving(self, count: int, *, full: bool = True) -> None:
        """So many letters are about to be sent; `full` where some partition has more of them than
        it may send."""
        self._sending, self._sending_full = count, full
        self._condition.breaker.attempted()

    def redriven(
        self,
        *,
        fill: float,
        later: Collection[PartitionRef] = (),
        through: Iterable[PartitionRef] = (),
        pages: Mapping[PartitionRef, Page | None] | None = None,
        now_s: float,
    ) -> list[Aside]:
        """Letters were sent and answered; of some partitions all went `through`, of others the
        gateway wants something `later` and nothing went forward, so they rest. Partitions that have
        a page may go on behind it, however the page ended."""
        self._condition.well(fill)
        self._size.fitted(self._sending, full=self._sending_full, now_s=now_s)
        for ref in through:
            self._behind.go_on(ref)
        longest_s = self._rules.redrive_every_s
        joined = self.park_joining(later)
        for ref, page in (pages or {}).items():
            if page is not None and not page.whole:
                joined += self.park_joining([ref])
            self._behind.page(ref, page, now_s=now_s, longest_s=longest_s)
        if self._level() == "hard":
            self.overloaded(now_s)
            return joined
        self._redrive_at_s = -NEVER
        for ref in later:
            self._behind.rest(ref, now_s + self._rules.redrive_every_s)
        return joined

    def redrive_refused(self, count: int, *, now_s: float) -> bool:
        """The gateway won't take `count` letters at once; True when the only one is to blame. The
        same partitions have the next turn, with fewer letters."""
        self._condition.well(self._condition.pressure.fill)
        self._size.failed(count, now_s=now_s)
        self._behind.again()
        return count == 1

    def letter_rejected(
        self, ref: PartitionRef, seq: int, error: str, *, now_s: float
    ) -> list[Aside] | None:
        """A parked letter is refused for good: None when it becomes a dead letter; else it stays,
        and its partition halts at it."""
        return None if self._rules.keeps_dead else self.refused(ref, seq, error, now_s)

    def removed(self, counts: Mapping[PartitionRef, int]) -> None:
        """So many letters of these have left the store."""
        self._pacing.removed(counts)

    def failed(self, again: int, *, now_s: float) -> bool:
        """A batch of letters, or of so many that an operator wanted, didn't arrive. True when it
        was probably too many, and nothing else is wrong."""
        return self._size.failed(again or self._sending, now_s=now_s)

    def send_fewer(self, than: int, *, now_s: float) -> None:
        """So many of what is live didn't arrive, as often as they may be tried."""
        self._size.failed(than, now_s=now_s)

    def again_fitted(self, count: int, *, now_s: float) -> None:
        """So many that an operator wanted arrived."""
        self._size.fitted(count, full=count >= self._size.limit, now_s=now_s)


def _refusal(seq: int, error: str) -> str:
    return f"record {seq} is refused ({error}), and routing.dlq.enabled is false"
